"""What a tenant gets beside others: its share by weight at every moment, however many the others' applications are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.types import ApplicationSpec, CallSpec
from tests.property.engine_loop import EngineLoop
from tests.property.scripted_loop import ScriptedLoop
from tests.scheduling import Bench, application, call

LONGEST = 12

weights = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0])


def memory(spec: ApplicationSpec) -> int:
    """KV token-time, by addition."""
    return sum(c.prompt_tokens + step for c in spec.calls for step in range(1, c.predicted_output_tokens + 1))


class Watched(ScriptedLoop):
    """It counts what each of two tenants, a and b, was served and what is prepaid for its running calls."""

    def __init__(self, bench: Bench, workload: Sequence[tuple[int, ApplicationSpec]]) -> None:
        super().__init__(bench, workload, check_each=False)
        self.served_to = Counter[str]()
        self.widest = 0.0  # gap over its bound
        self.compared = 0
        self.waiting = Counter(spec.tenant for _, spec in self.arrivals for _ in spec.calls)
        self.largest = max(memory(spec) for _, spec in self.arrivals)

    def _report(self, replica_id: str) -> int:
        prepaid: Counter[str] = Counter()
        for running in self.running:
            p, d, made = running.spec.prompt_tokens, running.spec.predicted_output_tokens, running.made
            self.served_to[running.grant.application_id[0]] += p + made
            prepaid[running.grant.application_id[0]] += sum(p + step for step in range(made + 1, d + 1))
        weight = dict(self.bench.core.settings.tenant_weights)
        started = Counter(name[0] for _, name, _ in self.starts)
        if all(started[tenant] < self.waiting[tenant] for tenant in "ab"):
            self.compared += 1
            gap = abs(self.served_to["a"] / weight["a"] - self.served_to["b"] / weight["b"])
            bound = max((self.largest + prepaid[tenant]) / weight[tenant] for tenant in "ab")
            self.widest = max(self.widest, gap / bound)
        return super()._report(replica_id)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), weights, weights, st.sampled_from([1, 4, 256]))
def test_two_tenants_with_work_are_served_by_weight(rng: random.Random, a: float, b: float, slots: int) -> None:
    """Bound, at every moment at which both have calls waiting: one largest application and what runs, over the weight.

    A call is granted to the tenant with the smaller F, and F leads A by one application at most; so accounts are
    never further apart than one application of the one behind. Service lags the account by what was charged for
    running calls and has not been made yet.
    """
    workload = [
        (0, application(f"{tenant}{n}", *[_small(rng, c) for c in range(rng.choice([1, 2, 9]))], tenant=tenant))
        for tenant in "ab"
        for n in range(20)
    ]
    bench = Bench(check_each=False, tenant_weights=(("a", a), ("b", b)))
    bench.join(max_sequences=slots)
    loop = Watched(bench, workload)
    loop.run()
    assert loop.compared > 4
    assert loop.widest <= 1.0


def _small(rng: random.Random, number: int) -> CallSpec:
    return call(str(number), rng.randint(1, 40), rng.randint(1, LONGEST))


def elephant_and_mice(mice: int) -> list[tuple[float, ApplicationSpec]]:
    """A map-reduce of sixty calls, then a mouse a second: a chain of three to eight turns."""
    rng = random.Random(1)
    maps = [call(f"map{n}", rng.randint(500, 1000), rng.randint(100, 300)) for n in range(60)]
    reduce = call("reduce", 1200, 200, after=[c.call_id for c in maps])
    arrivals = [(0.0, application("elephant", *maps, reduce, tenant="theirs"))]
    for second in range(1, mice + 1):
        turns = range(rng.randint(3, 8))
        calls = [call(str(n), rng.randint(200, 400), rng.randint(60, 140), after=[str(n - 1)] * (n > 0)) for n in turns]
        arrivals.append((float(second), application(f"mouse{second}", *calls, tenant="ours")))
    return arrivals


def elephant_s(mice: int, *, tenant_level: bool = True) -> float:
    bench = Bench(check_each=False, tenant_level=tenant_level)
    return EngineLoop(bench, elephant_and_mice(mice)).seconds_of("elephant")


def test_an_elephant_among_another_tenants_mice_takes_about_twice_its_time_alone() -> None:
    """Half of the engine is its tenant's, however many the mice; in the flat order it waits for each of them."""
    alone = elephant_s(0)
    assert [mice for mice in (100, 300, 500) if elephant_s(mice) > 2.2 * alone] == []
    flat = [elephant_s(mice, tenant_level=False) for mice in (100, 300)]
    assert 2.2 * alone < flat[0] < 0.6 * flat[1]
