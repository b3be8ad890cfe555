"""PLAS and ATLAS: levels by the service behind a call, and promotion at its moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from scheduler.policies.atlas import MAX_PATHS, CriticalPathAttainedService
from scheduler.policies.contract import CallFacts
from scheduler.policies.plas import ProgramLevelAttainedService
from scheduler.policies.program_levels import ProgramLevels
from scheduler.types import CallKey
from tests.queueing import Request, Start, Station, of_length
from tests.theory.classics import a_call, an_application, emptied, grant, serve

Program = type[ProgramLevelAttainedService] | type[CriticalPathAttainedService]
both = pytest.mark.parametrize("kind", [ProgramLevelAttainedService, CriticalPathAttainedService])

THRESHOLDS = (10, 30, 90)
NEVER = 1e12


def small(kind: Program, beta: float = NEVER) -> ProgramLevels:
    """Levels from 0, 10, 30 and 90 units."""
    return kind(first_threshold=10.0, factor=3.0, levels=4, beta=beta)


def level_of(value: int) -> int:
    return sum(value >= threshold for threshold in THRESHOLDS)


def chains(seed: int, apps: int = 10) -> list[Request]:
    """Programs that make one call after another."""
    rng = random.Random(seed)
    return [
        of_length(f"a{app}", rng.randint(3, 25), call=str(n), at=at, after=(str(n - 1),) if n else ())
        for app in range(apps)
        for at in [rng.randint(0, 120)]
        for n in range(rng.randint(1, 8))
    ]


def graphs(seed: int, apps: int = 8) -> list[Request]:
    """Programs whose calls run side by side."""
    rng = random.Random(seed)
    requests = []
    for app in range(apps):
        at = rng.randint(0, 60)
        for n in range(rng.randint(1, 8)):
            after = tuple(sorted({str(rng.randrange(n)) for _ in range(rng.randint(0, 3))})) if n else ()
            requests.append(of_length(f"a{app}", rng.randint(3, 25), call=str(n), at=at, after=after))
    return requests


def longest_path(station: Station, key: CallKey) -> int:
    """By trying every path that leads to the call."""
    before = [CallKey(key.application_id, name) for name in station.request(key).after]
    return max((longest_path(station, other) + station.request(other).length for other in before), default=0)


def ended_before(station: Station, key: CallKey) -> int:
    """The service of the program's calls that had ended when this one became ready."""
    ends = [other for other, end in station.ends.items() if end <= station.arrivals[key]]
    return sum(station.request(other).length for other in ends if other.application_id == key.application_id)


def level_order(behind: Callable[[Station, CallKey], int]) -> Callable[[Station, Start], None]:
    def check(station: Station, start: Start) -> None:
        def place(call: CallFacts) -> tuple[int, int]:
            return level_of(behind(station, call.key)), call.ready_sequence

        assert all(place(start.call) < place(call) for call in station.waiting.values())

    return check


@pytest.mark.parametrize("seed", range(20))
def test_plas_orders_by_the_level_of_attained_service(seed: int) -> None:
    requests = chains(seed)
    policy = small(ProgramLevelAttainedService)
    station = Station(policy, requests, servers=1 + seed % 2, watch=level_order(ended_before)).run()
    assert len(station.ends) == len(requests)


@pytest.mark.parametrize("seed", range(20))
def test_atlas_orders_by_the_level_of_the_critical_path(seed: int) -> None:
    requests = graphs(seed)
    policy = small(CriticalPathAttainedService)
    station = Station(policy, requests, servers=1 + seed % 3, watch=level_order(longest_path)).run()
    assert len(station.ends) == len(requests)


def test_atlas_does_not_sink_a_program_for_being_wide() -> None:
    """Ten calls of 8 units side by side, then one after them; against a chain that has had 12 units."""
    for kind, first in ((CriticalPathAttainedService, "a1"), (ProgramLevelAttainedService, "a2")):
        policy = small(kind)
        wide, chain = an_application(1), an_application(2)
        for ready in range(10):
            policy.add(a_call(wide, ready))
        for ready in range(10):
            serve(policy, a_call(wide, ready), *(3,))
        previous = a_call(chain, 20)
        policy.add(previous)
        serve(policy, previous, 6)
        policy.add(a_call(chain, 21, after=("c20",)))
        policy.add(a_call(wide, 22, after=tuple(f"c{n}" for n in range(10))))
        assert policy.head() is not None
        assert emptied(policy)[0].startswith(first)


def test_atlas_a_call_after_nothing_known_counts_the_longest_path_so_far() -> None:
    policy = CriticalPathAttainedService()
    one = an_application(1)
    for ready in (1, 2):
        policy.add(a_call(one, ready))
    for ready, tokens in ((1, 50), (2, 20)):
        serve(policy, a_call(one, ready), tokens)
    values = {after: policy.value(a_call(one, 9, after=after)) for after in ((), ("c2",), ("c1", "c2"), ("gone",))}
    assert values == {(): 101.0, ("c2",): 41.0, ("c1", "c2"): 101.0, ("gone",): 101.0}
    assert policy.value(a_call(an_application(2), 10)) == 0.0


def test_atlas_the_value_is_that_of_the_moment_when_the_call_began_to_wait() -> None:
    """Two roots side by side: the second is not put behind the first because that ended sooner."""
    policy = CriticalPathAttainedService()
    roots = [a_call(an_application(1), ready) for ready in (1, 2)]
    for root in roots:
        policy.add(root)
    for root in roots:
        serve(policy, root, 10)
    assert policy.value(a_call(an_application(1), 3)) == 21.0


def test_atlas_forgets_the_oldest_ends_of_an_endless_program() -> None:
    """Each call that ended without a token ends a path of no length; what is forgotten counts as the longest."""
    policy = CriticalPathAttainedService()
    one = an_application(1)
    calls = [a_call(one, ready) for ready in range(MAX_PATHS + 2)]
    for call in calls:
        policy.add(call)
    for call in calls[:MAX_PATHS]:
        serve(policy, call)
    policy.add(calls[0])
    serve(policy, calls[0])  # it ran again, and so ended last
    serve(policy, calls[-2], 50)
    known = {name: policy.value(a_call(one, 10**6, after=(name,))) for name in ("c0", "c1", "c2")}
    assert known == {"c0": 0.0, "c1": 101.0, "c2": 0.0}
    serve(policy, calls[-1])
    assert policy.value(a_call(one, 10**6, after=("c2",))) == 101.0


# ---- levels


@both
@pytest.mark.parametrize(("value", "level"), [(9, 0), (10, 1), (11, 1), (29, 1), (30, 2), (90, 3), (10**9, 3)])
def test_a_level_begins_at_its_threshold(kind: Program, value: int, level: int) -> None:
    policy = kind(first_threshold=10.0, factor=3.0, levels=4, cost=lambda prompt_tokens, output_tokens: float(value))
    serve(policy, a_call(an_application(1), 1), 1)
    assert policy.priority(a_call(an_application(1), 7)) == level * 2**46 + 7


@both
def test_inside_a_level_the_first_ready_goes_whatever_was_served(kind: Program) -> None:
    policy = small(kind)
    more, less = an_application(1), an_application(2)
    serve(policy, a_call(more, 1), 14)
    serve(policy, a_call(less, 2), 5)
    policy.add(a_call(more, 3))
    policy.add(a_call(less, 4))
    assert emptied(policy) == ["a1/c3", "a2/c4"]


# ---- promotion


def served_program(kind: Program, beta: float) -> ProgramLevels:
    """a1 waited 1 s, ran 4 s and had 101 units; its second call is ready at 10 s, and a2 with a fresh call comes."""
    policy = small(kind, beta)
    call = a_call(an_application(1), 1)
    policy.add(call)
    policy.advance(1.0)
    grant(policy, call)
    policy.advance(5.0)
    policy.ended(call, (50,), True)
    policy.advance(10.0)
    policy.add(a_call(an_application(1), 2, ready_s=10.0))
    policy.add(a_call(an_application(2), 3, ready_s=10.0))
    return policy


@both
def test_a_call_is_promoted_when_waiting_over_service_reaches_beta(kind: Program) -> None:
    """(1 + w)/4 >= 1.5 from w = 5 on."""
    policy = served_program(kind, 1.5)
    for now_s, first in ((14.9, ("a2", "c3")), (15.0, ("a1", "c2")), (40.0, ("a1", "c2"))):
        policy.advance(now_s)
        assert policy.head() == first
    assert policy.priority(a_call(an_application(1), 2)) == 2
    assert emptied(policy) == ["a1/c2", "a2/c3"]


@both
def test_what_a_program_has_waited_before_counts(kind: Program) -> None:
    """(1 + 0)/4 >= 0.25: due as soon as it waits."""
    assert served_program(kind, 0.25).head() == ("a1", "c2")
    assert served_program(kind, 0.26).head() == ("a2", "c3")


@both
def test_service_of_a_sibling_puts_the_promotion_off_and_its_waiting_brings_it_forward(kind: Program) -> None:
    policy = served_program(kind, 1.5)
    sibling = a_call(an_application(1), 4, ready_s=10.0)
    policy.add(sibling)
    grant(policy, sibling)
    policy.advance(12.0)
    policy.ended(sibling, (50,), True)  # (1 + w)/6 >= 1.5 from w = 8 on
    policy.advance(17.9)
    assert policy.head() == ("a2", "c3")
    late = a_call(an_application(1), 5, ready_s=17.0)
    policy.add(late)
    grant(policy, late)  # waited 0.9 s: (1.9 + w)/6
    assert policy.head() == ("a1", "c2")


@both
def test_without_service_there_is_no_ratio(kind: Program) -> None:
    """Answers that took no time: nobody is promoted, however long it waits."""
    policy = small(kind, 0.001)
    serve(policy, a_call(an_application(1), 1), 50)
    policy.add(a_call(an_application(1), 2))
    policy.add(a_call(an_application(2), 3))
    policy.advance(1e6)
    assert policy.head() == ("a2", "c3")


@both
def test_a_promoted_call_that_is_cancelled_or_lost_leaves_no_trace(kind: Program) -> None:
    policy = served_program(kind, 1.5)
    policy.remove(CallKey("a1", "c2"))
    policy.advance(50.0)
    assert policy.head() == ("a2", "c3")
    again = a_call(an_application(1), 2, ready_s=50.0)
    policy.add(again)
    policy.advance(55.0)
    assert policy.head() == ("a1", "c2")
    grant(policy, again)
    policy.advance(60.0)
    policy.ended(again, (), False)
    policy.add(a_call(an_application(1), 2, ready_s=60.0))
    assert policy.head() == ("a2", "c3")


@both
@pytest.mark.parametrize("seed", range(20))
def test_promotion_reckoned_from_the_times_of_the_run(kind: Program, seed: int) -> None:
    """Chains: while a call waits, its program's W and T stand still."""
    beta = Fraction(random.Random(seed).choice([1, 2, 4]), 2)
    promoted = 0

    def place(station: Station, call: CallFacts) -> tuple[int, int]:
        nonlocal promoted
        siblings = [s for s in station.starts if s.call.key.application_id == call.key.application_id]
        siblings = [start for start in siblings if start.call.key != call.key]
        waited = sum(start.at - station.arrivals[start.call.key] for start in siblings)
        ran = sum(station.ends[start.call.key] - start.at for start in siblings)
        level = level_of(ended_before(station, call.key))
        if level and waited + station.now - station.arrivals[call.key] >= beta * ran:
            promoted += 1
            level = 0
        return level, call.ready_sequence

    def check(station: Station, start: Start) -> None:
        assert all(place(station, start.call) < place(station, call) for call in station.waiting.values())

    requests = chains(seed)
    station = Station(small(kind, float(beta)), requests, watch=check).run()
    assert len(station.ends) == len(requests)
    assert promoted
