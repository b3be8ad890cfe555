"""las, and what all policies of attained service share."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies import create_policy
from scheduler.policies.contract import MAX_PRIORITY
from scheduler.policies.las import LeastAttainedService
from scheduler.policies.service_meter import ServiceMeter
from tests.queueing import Request, Start, Station
from tests.theory.classics import a_call, an_application, emptied, grant, kept, serve

ATTAINED = ("las", "mlfq", "plas", "atlas")


def crowd(seed: int, apps: int = 8) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(app=f"a{app}", call=str(number), p=rng.randint(1, 10), d=rng.randint(1, 15), at=at)
        for app in range(apps)
        for at in [rng.randint(0, 100)]
        for number in range(rng.randint(1, 5))
    ]


# ---- las


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("seed", range(15))
def test_las_grants_whoever_has_attained_least(seed: int, tokens: bool) -> None:
    """Attained service from the station's own times: p + 2·i once token i is there, or all of it at the end."""

    def attained(station: Station, app: str) -> int:
        total = 0
        for start in station.starts:
            request = station.request(start.call.key)
            done = station.now - start.at
            heard = done >= request.p + 2 if tokens else start.call.key in station.ends
            if start.call.key.application_id == app and heard:
                total += request.p + 2 * min((int(done) - request.p) // 2, request.d)
        return total

    def least_goes(station: Station, start: Start) -> None:
        mine = start.call.application
        for other in {call.application.application_id: call.application for call in station.waiting.values()}.values():
            theirs = attained(station, other.application_id)
            assert (attained(station, mine.application_id), mine.sequence) <= (theirs, other.sequence)

    requests = crowd(seed)
    station = Station(LeastAttainedService(), requests, servers=1 + seed % 3, tokens=tokens, watch=least_goes).run()
    assert len(station.ends) == len(requests)


def test_las_counts_running_calls_as_far_as_they_came() -> None:
    policy = LeastAttainedService()
    one, other = an_application(1), an_application(2)
    running = a_call(one, 1, prompt_tokens=10)
    policy.add(running)
    grant(policy, running)
    policy.add(a_call(one, 2))
    policy.add(a_call(other, 3))
    assert policy.head() == ("a1", "c2")
    policy.progressed(running, (0,))
    assert policy.head() == ("a1", "c2")
    policy.progressed(running, (4,))
    assert policy.head() == ("a2", "c3")
    assert policy.priority(running) == 18
    policy.ended(running, (6,), True)
    assert policy.priority(running) == 22


def test_las_keeps_the_service_of_an_application_that_idles() -> None:
    policy = LeastAttainedService()
    served, fresh = an_application(1), an_application(2)
    serve(policy, a_call(served, 1), 10)
    policy.add(a_call(served, 2))
    policy.add(a_call(fresh, 3))
    assert emptied(policy) == ["a2/c3", "a1/c2"]
    policy.application_left(served)
    policy.add(a_call(served, 4))
    policy.add(a_call(fresh, 5))
    assert emptied(policy) == ["a1/c4", "a2/c5"]


# ---- all of attained service


def test_the_meter_counts_each_unit_once_and_takes_nothing_back() -> None:
    meter = ServiceMeter(lambda prompt_tokens, output_tokens: float(prompt_tokens + sum(output_tokens)))
    call = a_call(an_application(1), 1, prompt_tokens=5)
    assert [meter.more(call, tokens) for tokens in ((), (0,), (3,), (3,), (7,), (6,))] == [0.0, 0.0, 8.0, 0.0, 4.0, 0.0]
    assert meter.last(call, ()) == 0.0
    assert meter.last(call, (2,)) == 7.0
    assert kept(meter) == 0


@pytest.mark.parametrize("name", ATTAINED)
@given(order=st.permutations(range(8)))
@settings(deadline=None, max_examples=15)
def test_equals_leave_in_order(name: str, order: list[int]) -> None:
    one, many = create_policy(name), create_policy(name)
    for number in order:
        one.add(a_call(an_application(1), number))
        many.add(a_call(an_application(number), number))
    assert emptied(one) == [f"a1/c{number}" for number in range(8)]
    assert [name.partition("/")[0] for name in emptied(many)] == [f"a{number}" for number in range(8)]


@pytest.mark.parametrize("name", ATTAINED)
def test_a_call_lost_without_a_token_returns_to_its_place_one_lost_later_has_its_charge(name: str) -> None:
    policy = create_policy(name)
    one, other = an_application(1), an_application(2)
    first, second = a_call(one, 1), a_call(other, 2)
    policy.add(first)
    policy.add(second)
    serve(policy, first, finished=False)
    policy.add(first)
    assert policy.head() == first.key
    serve(policy, first, 600, finished=False)
    policy.add(first)
    assert policy.head() == second.key
    policy.remove(second.key)
    policy.remove(second.key)
    policy.remove(a_call(one, 99).key)
    assert emptied(policy) == ["a1/c1"]


@pytest.mark.parametrize("name", ATTAINED)
def test_a_policy_chosen_while_calls_run_counts_them(name: str) -> None:
    policy = create_policy(name)
    one, other = an_application(1), an_application(2)
    running = a_call(one, 1)
    policy.application_arrived(one)
    policy.granted(running, "r")
    policy.progressed(running, (500,))
    policy.ended(running, (600,), True)
    policy.add(a_call(one, 2))
    policy.add(a_call(other, 3))
    assert emptied(policy) == ["a2/c3", "a1/c2"]


@pytest.mark.parametrize("name", ATTAINED)
def test_nothing_is_kept_of_thousands_that_came_and_went(name: str) -> None:
    policy = create_policy(name)
    empty = kept(policy)
    for number in range(3000):
        application = an_application(number)
        policy.application_arrived(application)
        policy.advance(number / 10)
        calls = [a_call(application, 10 * number + place, ready_s=number / 10) for place in range(3)]
        for call in calls:
            policy.add(call)
        policy.remove(calls[2].key)
        for call in calls[:2]:
            serve(policy, call, 2000)
        policy.add(calls[2])
        policy.remove(calls[2].key)
        policy.application_left(application)
        policy.application_left(application)
        assert kept(policy) <= empty + 400
    assert policy.head() is None
    live = [value for name, value in vars(policy).items() if name != "_quanta"]
    assert all(len(value) == 0 for value in live if hasattr(value, "__len__") and not isinstance(value, tuple))


@pytest.mark.parametrize("name", ["mlfq", "plas", "atlas"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("factor", value) for value in (1.0, 0.0, float("nan"), float("inf"), 2000.0)),
        *(("levels", value) for value in (0, 65, 2.5, float("nan"))),
        *(("first", value) for value in (0.0, -1.0, float("nan"), float("inf"))),
        *(("positive", value) for value in (0.0, -1.0, float("nan"), float("inf"))),
    ],
)
def test_bad_options_are_refused_by_name(name: str, option: str, value: float) -> None:
    names = {
        "first": "quantum" if name == "mlfq" else "first_threshold",
        "positive": "boost_s" if name == "mlfq" else "beta",
    }
    with pytest.raises(ValueError, match=f"^{names.get(option, option)} must"):
        create_policy(name, {names.get(option, option): value})


@pytest.mark.parametrize("name", ["mlfq", "plas", "atlas"])
def test_priorities_of_the_last_level_and_the_latest_call_are_in_range(name: str) -> None:
    policy = create_policy(name, {"levels": 64.0, "factor": 1.5})
    last = a_call(an_application(2**60), 2**60, prompt_tokens=10)
    assert 0 < (policy.priority(last) or 0) < 2**46
    serve(policy, last, 10**18)
    assert 2**46 < (policy.priority(last) or 0) <= MAX_PRIORITY
