"""sjf, srtf and hrrn: short work first, by the call, by the application, and against its own waiting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cost import linear_cost
from scheduler.policies import create_policy
from scheduler.policies.hrrn import HighestResponseRatioNext
from scheduler.policies.sjf import ShortestJobFirst
from scheduler.policies.srtf import ShortestRemainingTimeFirst
from tests.queueing import Start, Station, of_length
from tests.theory.classics import a_call, an_application, emptied

# ---- sjf and srtf


def mean_of_order(lengths: Sequence[int]) -> float:
    """Mean completion time of jobs served one after another."""
    now, total = 0, 0
    for length in lengths:
        now += length
        total += now
    return total / len(lengths)


@given(lengths=st.lists(st.integers(3, 30), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_sjf_has_the_smallest_mean_flow_time_of_all_orders(lengths: list[int]) -> None:
    crowd = [of_length(f"a{number}", length) for number, length in enumerate(lengths)]
    station = Station(ShortestJobFirst(cost=linear_cost), crowd).run()
    assert float(sum(station.ends.values())) / len(crowd) == min(map(mean_of_order, permutations(lengths)))


@given(apps=st.lists(st.lists(st.integers(3, 12), min_size=1, max_size=4), min_size=1, max_size=5))
@settings(deadline=None, max_examples=60)
def test_srtf_has_the_smallest_mean_flow_time_of_applications(apps: list[list[int]]) -> None:
    crowd = [
        of_length(f"a{app}", length, call=str(number))
        for app, lengths in enumerate(apps)
        for number, length in enumerate(lengths)
    ]
    station = Station(ShortestRemainingTimeFirst(), crowd, tokens=True).run()
    total = sum(station.completion(f"a{app}") for app in range(len(apps)))
    assert float(total) / len(apps) == min(map(mean_of_order, permutations([sum(lengths) for lengths in apps])))


def test_sjf_looks_at_the_call_and_srtf_at_the_application() -> None:
    crowd = [
        *(of_length("wide", 4, call=str(number)) for number in range(5)),
        of_length("slim", 6),
    ]
    by_call = Station(ShortestJobFirst(), crowd).run().order()
    by_application = Station(ShortestRemainingTimeFirst(), crowd).run().order()
    assert by_call[-1].application_id == "slim"
    assert by_application[0].application_id == "slim"


def test_sjf_orders_by_the_cost_function_that_it_was_given() -> None:
    prompt = a_call(an_application(1), 1, prompt_tokens=100, predicted_output_tokens=1)
    answer = a_call(an_application(2), 2, prompt_tokens=1, predicted_output_tokens=20)
    orders = []
    for cost in ("kv_time", "linear"):
        policy = create_policy("sjf", {"cost": cost})
        policy.add(prompt)
        policy.add(answer)
        assert policy.priority(prompt) != policy.priority(answer)
        orders.append(emptied(policy))
    assert orders == [["a1/c1", "a2/c2"], ["a2/c2", "a1/c1"]]


def test_srtf_follows_corrections_and_ignores_those_of_strangers() -> None:
    policy = ShortestRemainingTimeFirst()
    small, large = an_application(1, remaining_cost=5.0), an_application(2, remaining_cost=9.0)
    policy.add(a_call(small, 1))
    policy.add(a_call(large, 2))
    policy.application_changed(an_application(3, remaining_cost=0.0))
    assert policy.head() == ("a1", "c1")
    policy.application_changed(replace(large, remaining_cost=4.0))
    assert policy.head() == ("a2", "c2")
    assert (policy.priority(a_call(large, 2)), policy.priority(a_call(small, 1))) == (4, 5)
    assert policy.priority(a_call(an_application(3, remaining_cost=7.0), 3)) == 7


# ---- hrrn


def test_hrrn_the_ratio_decides_and_grows_with_waiting() -> None:
    """A long call (8 units) from 0 s against a short one (4) from 6 s: the long one leads until t/8 < (t − 6)/4."""
    for now_s in range(6, 25):
        policy = HighestResponseRatioNext(cost=linear_cost)
        policy.add(a_call(an_application(1), 1, prompt_tokens=6, predicted_output_tokens=1))
        policy.add(a_call(an_application(2), 2, prompt_tokens=2, predicted_output_tokens=1, ready_s=6.0))
        policy.advance(float(now_s))
        long, short = (now_s + 8) / 8, (now_s - 6 + 4) / 4
        assert policy.head() == (("a1", "c1") if long >= short else ("a2", "c2"))


@pytest.mark.parametrize("seed", range(20))
def test_hrrn_grants_the_highest_ratio_and_only_shorter_calls_pass(seed: int) -> None:
    def highest(station: Station, start: Start) -> None:
        def ratio(call_key: tuple[str, str]) -> float:
            length = station.request(call_key).length  # type: ignore[arg-type]
            return (float(station.now - station.arrivals[call_key]) + length) / length  # type: ignore[index]

        for key, call in station.waiting.items():
            assert ratio(start.call.key) >= ratio(key) - 1e-9
            if call.ready_sequence < start.call.ready_sequence:
                assert station.request(start.call.key).length <= station.request(key).length

    rng = random.Random(seed)
    crowd = [of_length(f"a{n}", rng.randint(3, 40), at=rng.randint(0, 300)) for n in range(30)]
    station = Station(HighestResponseRatioNext(cost=linear_cost), crowd, servers=1 + seed % 2, watch=highest).run()
    assert len(station.ends) == len(crowd)


@pytest.mark.parametrize("seed", range(15))
def test_hrrn_waits_no_longer_than_its_bound_below_saturation(seed: int) -> None:
    """Short calls of s_min units, each `gap` after the last: b = s_min and rho = s_min/gap."""
    rng = random.Random(seed)
    shortest, long, gap = 3, rng.randint(20, 200), rng.choice([4, 5, 7])
    found = [of_length(f"f{n}", rng.randint(3, 30)) for n in range(rng.randint(1, 5))]
    stream = [of_length(f"s{n}", shortest, at=1 + gap * n) for n in range(300)]
    crowd = [*found, of_length("long", long), *stream]
    station = Station(HighestResponseRatioNext(cost=linear_cost), crowd).run(until=800)
    waited = next(start.at for start in station.starts if start.call.key.application_id == "long")
    backlog = sum(request.length for request in found)
    assert waited <= (backlog + shortest) / (1 - shortest / gap * (1 - shortest / long))
    impatient = Station(ShortestJobFirst(cost=linear_cost), crowd).run(until=800)
    assert waited <= next(start.at for start in impatient.starts if start.call.key.application_id == "long")


def test_hrrn_takes_a_cost_of_nothing() -> None:
    policy = HighestResponseRatioNext(cost=lambda prompt_tokens, output_tokens: 0.0)
    for ready in (2, 1):
        policy.add(a_call(an_application(ready), ready))
    policy.advance(5.0)
    assert emptied(policy) == ["a1/c1", "a2/c2"]
