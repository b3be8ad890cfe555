"""Random crowds of applications on the closed loop, and what became of each, reckoned without the core's audit.

Small calls: none holds more than a tenth of a replica. True costs: lengths are as predicted. Late binding: a call is
bound to a replica when that has room. Crowds come faster than they can be served, so that most calls wait.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from scheduler.actions import PublishAudit
from scheduler.types import ApplicationRecord, ApplicationSpec
from tests.property.closed_loop import ClosedLoop
from tests.property.fluid_gps import Job, Stretch, fluid_finishes
from tests.scheduling import Bench, application, call, clean_state

BLOCKS, BLOCK_TOKENS = 256, 4
POOL_TOKENS = BLOCKS * BLOCK_TOKENS
LONGEST_S = 12
ROUNDING = 1e-6
Workload = list[tuple[int, ApplicationSpec]]
Lengths = Mapping[tuple[str, str], int]


def crowd(seed: int, *, count: int = 100, replicas: int = 1, staged: bool = False) -> Workload:
    """`count` applications: alike large ones at the start, small ones as fast as all can be served, or faster.

    Calls in stages leave memory unused unless there are many applications at once, so those come faster.
    """
    rng = random.Random(seed)
    longest_s = rng.choice([3, 6, LONGEST_S])
    large, size = rng.randint(2, count // 6), rng.randint(8, 12 if staged else 30)
    sizes = [size if number < large else rng.choice([1, 1, 1, 1, 2, 2, 4]) for number in range(count)]
    specs = [_random_application(rng, f"a{n}", calls, longest_s, staged) for n, calls in enumerate(sizes)]
    pressures = [4.0, 8.0, 16.0] if staged else [0.8, 1.0, 1.5, 4.0]
    drain_s = sum(map(cost_by_addition, specs)) / (replicas * POOL_TOKENS) / rng.choice(pressures)
    arrivals = [(rng.randint(0, 2 if n < large else int(drain_s)), spec) for n, spec in enumerate(specs)]
    return sorted(arrivals, key=lambda arrival: arrival[0])


def _random_application(rng: random.Random, name: str, size: int, longest_s: int, staged: bool) -> ApplicationSpec:
    calls = [
        call(
            str(number),
            rng.randint(1, 40),
            rng.randint(1, longest_s),
            n=rng.choice([1, 1, 2]),
            after={str(rng.randrange(number)) for _ in range(rng.randint(0, 2))} if staged and number else (),
        )
        for number in range(size)
    ]
    return application(name, *calls, weight=1.0 if size > 4 else rng.choice([0.5, 1.0, 1.0, 2.0]))


@dataclass(frozen=True)
class Outcome:
    """What became of one application; seconds. `path` and `stages` are of its longest chain of calls."""

    arrival: int
    finish: int
    gps_finish: float
    path: int
    stages: int
    longest_call: int
    record: ApplicationRecord

    @property
    def late(self) -> float:
        """Seconds past f_GPS + 2·D_max."""
        return self.finish - (self.gps_finish + 2 * self.longest_call)

    @property
    def late_in_stages(self) -> float:
        """Seconds past max(f_GPS, arrival + critical path) + (stages + 1)·D_max."""
        fair = max(self.gps_finish, self.arrival + self.path)
        return self.finish - (fair + (self.stages + 1) * self.longest_call)


def serve(
    workload: Workload, true_tokens: Lengths | None = None, *, replicas: int = 1, tenant_level: bool = False
) -> ClosedLoop:
    """The closed loop after the last application has ended."""
    names = [f"r{number}" for number in range(replicas)]
    bench = Bench(check_each=False, tenant_level=tenant_level)
    for name in names:
        bench.join(name, blocks=BLOCKS, block_tokens=BLOCK_TOKENS)
    loop = ClosedLoop(bench, workload, true_tokens or {}, names, check_each=False)
    loop.run()
    clean_state(bench.core)
    return loop


def outcomes(loop: ClosedLoop, *, exact: bool = False) -> list[Outcome]:
    """In order of arrival. The fluid system is fed with the service that the loop recorded."""
    jobs = [Job(second, cost_by_addition(spec, loop.true_tokens), spec.weight) for second, spec in loop.arrivals]
    gps = exact_finishes(jobs, loop.served) if exact else float_finishes(jobs, loop.served)
    records = {action.record.application_id: action.record for action in loop.bench.all(PublishAudit)}
    spans = sorted(loop.ran.values())
    return [
        _outcome(loop, second, spec, gps_finish, spans, records[spec.application_id])
        for (second, spec), gps_finish in zip(loop.arrivals, gps, strict=True)
    ]


def _outcome(
    loop: ClosedLoop,
    arrival: int,
    spec: ApplicationSpec,
    gps_finish: float,
    spans: Sequence[tuple[int, int]],
    record: ApplicationRecord,
) -> Outcome:
    path: dict[str, int] = {}
    stages: dict[str, int] = {}
    for c in spec.calls:  # a call comes after those before it in the list only
        start, end = loop.ran[spec.application_id, c.call_id]
        path[c.call_id] = end - start + max((path[name] for name in c.after), default=0)
        stages[c.call_id] = 1 + max((stages[name] for name in c.after), default=0)
    finish = max(loop.ran[spec.application_id, c.call_id][1] for c in spec.calls)
    longest = max(min(end, finish) - start for start, end in spans if end >= arrival and start < finish)
    return Outcome(arrival, finish, gps_finish, max(path.values()), max(stages.values()), longest, record)


def share_that_waited(loop: ClosedLoop) -> float:
    """The part of all calls that did not start in the second in which they became ready."""
    waited = []
    for arrival, spec in loop.arrivals:
        for c in spec.calls:
            ready = max((loop.ran[spec.application_id, name][1] for name in c.after), default=arrival)
            waited.append(loop.ran[spec.application_id, c.call_id][0] > ready)
    return mean(waited)


def cost_by_addition(spec: ApplicationSpec, true_tokens: Lengths | None = None) -> int:
    """KV token-time: what each sequence holds, iteration by iteration."""
    total = 0
    for c in spec.calls:
        tokens = (true_tokens or {}).get((spec.application_id, c.call_id), c.predicted_output_tokens)
        total += c.sequences * sum(c.prompt_tokens + step for step in range(1, tokens + 1))
    return total


def exact_finishes(jobs: Sequence[Job], stretches: Sequence[Stretch]) -> list[float]:
    """`fluid_finishes` of a loop that has served everyone, so that fair sharing has too."""
    finishes = fluid_finishes(jobs, stretches)
    assert None not in finishes
    return [float(finish) for finish in finishes if finish is not None]


def float_finishes(jobs: Sequence[Job], stretches: Sequence[Stretch]) -> list[float]:
    """The same from the same definition in floating point, for large crowds; stretches of one second each.

    Within a second all active jobs are served, by weight, until one ends or the second's service is used up.
    """
    left = [float(job.cost) for job in jobs]
    weights = [float(job.weight) for job in jobs]
    finishes = [0.0] * len(jobs)
    active: list[int] = []
    coming = 0
    for stretch in stretches:
        while coming < len(jobs) and jobs[coming].arrival < stretch.until:
            active.append(coming)
            coming += 1
        service = float(stretch.rate)
        while active and service > ROUNDING:
            weight = sum(weights[index] for index in active)
            level = min(service / weight, min(left[index] / weights[index] for index in active))
            for index in active:
                left[index] -= level * weights[index]
            service = max(service - level * weight, 0.0)
            for index in [index for index in active if left[index] <= ROUNDING]:
                active.remove(index)
                finishes[index] = float(stretch.until) - service / float(stretch.rate)
    assert not active
    return finishes
