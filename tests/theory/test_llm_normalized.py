"""FairServe and Equinox: counters of more than tokens, against their definitions."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from scheduler.cost import linear_cost, memory_cost, profile_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts
from scheduler.policies.equinox import Equinox
from scheduler.policies.fairserve import MAX_TYPES, FairServe
from scheduler.policies.vtc import Vtc
from scheduler.policies.vtc_predict import VtcPredict
from tests.queueing import Request, Station
from tests.theory.llm_loads import application, backlog, call, random_load
from tests.theory.llm_naive import NaiveCounters


class NaiveFairServe(NaiveCounters):
    """Keeps the cost of every application that has left, by its type."""

    def __init__(self) -> None:
        super().__init__(lambda call, made, ended: linear_cost(call.prompt_tokens, made))
        self.costs: dict[str, list[float]] = defaultdict(list)
        self.expected: dict[str, float] = {}
        self.given: Counter[str] = Counter()

    def granted(self, call: CallFacts, replica_id: str) -> None:
        costs = self.costs[call.application.application_type]
        usual = sum(costs) / len(costs) if costs else call.application.predicted_cost
        self.expected.setdefault(call.key.application_id, usual)
        super().granted(call, replica_id)

    def unit(self, call: CallFacts) -> float:
        return call.flow_weight * self.expected[call.key.application_id]

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        super().ended(call, output_tokens, finished)
        self.given[call.key.application_id] += int(linear_cost(call.prompt_tokens, output_tokens))

    def application_left(self, application: ApplicationFacts) -> None:
        super().application_left(application)
        self.costs[application.application_type].append(self.given[application.application_id])


@pytest.mark.parametrize("seed", range(9))
def test_fairserve_has_the_order_of_its_definition(seed: int) -> None:
    load, servers = random_load(seed), 1 + seed % 3
    mine = Station(FairServe(), load, servers=servers, tokens=True).run()
    assert mine.order() == Station(NaiveFairServe(), load, servers=servers, tokens=True).run().order()


def interactions(flow: str, kind: str, p: int, d: int, count: int, weight: float = 1.0) -> list[Request]:
    """Applications of two calls, the second after the first."""
    return [
        Request(
            app=f"{flow}{n}",
            call=name,
            p=p,
            d=d,
            after=after,
            flow=flow,
            weight=weight,
            application_type=kind,
        )
        for n in range(count)
        for name, after in (("ask", ()), ("answer", ("ask",)))
    ]


@pytest.mark.parametrize(("weight", "servers"), [(1.0, 1), (1.0, 3), (2.0, 1), (2.0, 3)])
def test_users_get_equal_numbers_of_interactions_by_weight(weight: float, servers: int) -> None:
    """One user's interactions are twenty times the other's; VTC gives the other about twenty times as many."""
    load = interactions("doc", "doc", 200, 100, 30) + interactions("chat", "chat", 10, 5, 210 * servers, weight)
    fair, tokens = (
        calls_by_flow(Station(policy, load, servers=servers, tokens=True).run(until=6_000))
        for policy in (FairServe(), Vtc())
    )
    assert abs(fair["chat"] / weight - fair["doc"]) <= 2 * servers
    assert fair["doc"] > 8
    assert tokens["chat"] / tokens["doc"] > 10 * weight


def calls_by_flow(station: Station) -> Counter[str]:
    """Calls that ended."""
    assert {call.flow for call in station.waiting.values()} == {"chat", "doc"}, "both must be backlogged to the end"
    return Counter(key.application_id.rstrip("0123456789") for key in station.ends)


def test_a_type_is_learnt_from_what_its_applications_cost() -> None:
    policy = FairServe(window=2)
    charged = []
    for number, answer in enumerate([10, 30, 30, 30]):
        of = application(f"a{number}", number, predicted_cost=999.0, application_type="t")
        policy.application_arrived(of)
        one = call(of, number, p=40)
        before = policy._counters.counter("f")
        policy.add(one)
        policy.granted(one, "r")
        policy.remove(one.key)
        policy.ended(one, (answer,), True)
        charged.append(policy._counters.counter("f") - before)
        policy.application_left(of)
    means = [999, 60, 80, 90]  # 60, then halfway to 100 twice, as the window is two
    costs = [60, 100, 100, 100]
    assert charged == pytest.approx([cost / mean for cost, mean in zip(costs, means, strict=True)], abs=1e-6)


def test_applications_without_service_teach_nothing_and_types_are_bounded() -> None:
    policy = FairServe()
    never = application("never", predicted_cost=7.0)
    policy.application_arrived(never)
    policy.application_left(never)
    policy.application_left(never)
    assert not policy._means
    for number in range(MAX_TYPES + 10):
        of = application(f"a{number}", number, predicted_cost=0.0, application_type=f"t{number}")
        policy.application_arrived(of)
        policy.granted(call(of), "r")
        policy.ended(call(of), (), number % 2 == 0)
        policy.application_left(of)
    assert len(policy._means) == MAX_TYPES
    assert "t0" not in policy._means
    assert (policy._interactions, policy._charged) == ({}, {})


def test_fairserve_measures_applications_in_its_own_cost() -> None:
    assert FairServe().cost is linear_cost
    assert FairServe(cost=memory_cost).cost is memory_cost
    for window in (0.5, float("nan")):
        with pytest.raises(ValueError, match="window must be at least 1"):
            FairServe(window=window)


class NaiveEquinox(NaiveCounters):
    """alpha·UFC + beta·RFC, with the wait at the grant."""

    def __init__(self, alpha: float, beta: float, wait_discount: float) -> None:
        super().__init__(self.holistic)
        self.alpha, self.beta, self.wait_discount, self.now_s = alpha, beta, wait_discount, 0.0
        self.waited: dict[str, float] = {}

    def advance(self, now_s: float) -> None:
        self.now_s = now_s

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self.waited[str(call.key)] = self.now_s - call.ready_s
        super().granted(call, replica_id)

    def holistic(self, call: CallFacts, made: tuple[int, ...], ended: bool) -> float:
        tokens = made if ended else tuple(max(call.predicted_output_tokens, n) for n in made)
        share = 1 / (1 + self.wait_discount * self.waited[str(call.key)])
        user = linear_cost(call.prompt_tokens, tokens) * share
        return self.alpha * user + self.beta * profile_cost(call.prompt_tokens, tokens)


@pytest.mark.parametrize("options", [(0.7, 0.3, 0.1), (1.0, 0.0, 0.5), (0.0, 1.0, 0.1), (0.5, 2.0, 0.0)])
@pytest.mark.parametrize("seed", range(4))
def test_equinox_grants_the_smallest_weighted_sum_of_its_counters(
    options: tuple[float, float, float], seed: int
) -> None:
    alpha, beta, discount = options
    load, servers = random_load(seed), 1 + seed % 3
    policy = Equinox(alpha=alpha, beta=beta, wait_discount=discount)
    mine = Station(policy, load, servers=servers, tokens=True).run()
    assert mine.order() == Station(NaiveEquinox(*options), load, servers=servers, tokens=True).run().order()
    assert (policy._discounts, policy._charged) == ({}, {})


@pytest.mark.parametrize("seed", range(4))
def test_equinox_without_resources_and_waits_is_vtc(seed: int) -> None:
    for servers in (1, 3):
        load = random_load(seed)
        predicting = Station(VtcPredict(), load, servers=servers, tokens=True).run()
        users_only = Equinox(alpha=1, beta=0, wait_discount=0)
        assert Station(users_only, load, servers=servers, tokens=True).run().order() == predicting.order()
    load = backlog(seed, {"long": (20, 20), "short": (5, 5), "prompts": (40, 2)}, predicted=9)
    users_only = Equinox(alpha=1, beta=0, wait_discount=0)
    assert Station(users_only, load, tokens=True).run().order() == Station(Vtc(), load, tokens=True).run().order()
    assert Station(Equinox(beta=1), load, tokens=True).run().order() != Station(Vtc(), load, tokens=True).run().order()


def test_whoever_waited_is_charged_less() -> None:
    """Two flows, one call each at a time; the one that waited ten seconds comes first the next time."""
    policy = Equinox(alpha=1, beta=0)
    apps = [application(f"a{n}", n, flow=f"f{n}") for n in range(2)]
    for of in apps:
        policy.application_arrived(of)
    policy.advance(10.0)
    for of, ready_s in zip(apps, (10.0, 0.0), strict=True):
        one = call(of, of.sequence, ready_s=ready_s)
        policy.granted(one, "r")
        policy.ended(one, (10,), True)
        policy.add(call(of, 10 + of.sequence, ready_s=10.0))
    assert policy._counters.counter("f0") == 30.0
    assert policy._counters.counter("f1") == 15.0
    assert policy.head() == ("a1", "c11")


def test_a_machine_heavy_call_counts_more_with_beta() -> None:
    """Equal tokens, p + 2·d = 400; the long answer takes the machine more."""
    prompt, answer = (380, (10,)), (20, (190,))
    assert linear_cost(*prompt) == linear_cost(*answer)
    counters = {}
    for beta in (0.0, 1.0):
        policy = Equinox(alpha=1, beta=beta, wait_discount=0)
        for number, (p, made) in enumerate((prompt, answer)):
            of = application(f"a{number}", number, flow=f"f{number}")
            policy.application_arrived(of)
            one = call(of, number, p=p, predicted=made[0])
            policy.granted(one, "r")
            counters[beta, number] = policy._counters.counter(f"f{number}")
    assert counters[0.0, 0] == 400.0
    assert counters[0.0, 1] == 800.0, "lifted to the other's 400, which was active"
    gain = [counters[1.0, 0] - 400, counters[1.0, 1] - counters[1.0, 0] - 400]
    assert gain == pytest.approx([profile_cost(*prompt), profile_cost(*answer)])
    assert gain[1] > 1.5 * gain[0]


@pytest.mark.parametrize("options", [{"alpha": -1}, {"beta": float("inf")}, {"wait_discount": float("nan")}])
def test_equinox_refuses_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be finite and not negative"):
        Equinox(**options)  # type: ignore[arg-type]


def test_equinox_needs_one_of_its_counters() -> None:
    with pytest.raises(ValueError, match="must not both be 0"):
        Equinox(alpha=0, beta=0)
