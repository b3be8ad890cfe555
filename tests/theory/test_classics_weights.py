"""Weights in the policies that are not about shares: twice the weight, half the length, or half the service had."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cost import linear_cost
from scheduler.policies import create_policy
from scheduler.policies.las import LeastAttainedService
from scheduler.policies.sjf import ShortestJobFirst
from scheduler.policies.srtf import ShortestRemainingTimeFirst
from tests.theory.classics import a_call, an_application, emptied, serve

JOBS = st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0.5, 1.0, 2.0, 3.0])), min_size=1, max_size=6)


def weighted_flow_time(order: Sequence[tuple[float, float]]) -> float:
    """Sum of weight times completion of (length, weight), served one after another."""
    now, total = 0.0, 0.0
    for length, weight in order:
        now += length
        total += weight * now
    return total


@given(jobs=JOBS)
@settings(deadline=None, max_examples=80)
def test_sjf_has_the_smallest_weighted_flow_time_of_all_orders(jobs: list[tuple[int, float]]) -> None:
    policy = ShortestJobFirst(cost=linear_cost)
    for number, (length, weight) in enumerate(jobs):
        call = a_call(an_application(number, weight=weight), number, prompt_tokens=length, predicted_output_tokens=1)
        policy.add(call)
    costs = [(length + 2.0, weight) for length, weight in jobs]
    served = [costs[int(name.split("/")[0][1:])] for name in emptied(policy)]
    assert weighted_flow_time(served) == pytest.approx(min(map(weighted_flow_time, permutations(costs))))


@given(jobs=JOBS)
@settings(deadline=None, max_examples=80)
def test_srtf_has_the_smallest_weighted_flow_time_of_all_orders(jobs: list[tuple[int, float]]) -> None:
    policy = ShortestRemainingTimeFirst()
    for number, (length, weight) in enumerate(jobs):
        policy.add(a_call(an_application(number, weight=weight, remaining_cost=float(length)), number))
    served = [jobs[int(name.split("/")[0][1:])] for name in emptied(policy)]
    assert weighted_flow_time(served) == pytest.approx(min(map(weighted_flow_time, permutations(jobs))))


@pytest.mark.parametrize(("weight", "tokens"), [(1.0, 20), (2.0, 40), (4.0, 80)])
def test_las_takes_service_over_weight_for_what_was_had(weight: float, tokens: int) -> None:
    """An application of weight w that was served w times as much as another stands beside it; a token more, behind."""
    for more, first in ((0, "heavy"), (1, "light")):
        policy = LeastAttainedService(cost=lambda prompt, outputs: float(sum(outputs)))
        heavy = an_application(1, application_id="heavy", weight=weight)
        light = an_application(2, application_id="light")
        serve(policy, a_call(heavy, 1), tokens + more)
        serve(policy, a_call(light, 2), 20)
        policy.add(a_call(light, 3))
        policy.add(a_call(heavy, 4))
        head = policy.head()
        assert head is not None
        assert head.application_id == first


@pytest.mark.parametrize("name", ["mlfq", "plas", "atlas"])
def test_levels_of_service_are_reached_by_service_over_weight(name: str) -> None:
    """Two applications had the same service; the one of four times the weight is a level less deep."""
    orders = []
    for weight in (1.0, 4.0):
        policy = create_policy(name)
        weighty = an_application(2, application_id="weighty", weight=weight)
        plain = an_application(1, application_id="plain")
        serve(policy, a_call(plain, 1, prompt_tokens=1), 900)
        serve(policy, a_call(weighty, 2, prompt_tokens=1), 900)
        policy.add(a_call(plain, 3))
        policy.add(a_call(weighty, 4))
        orders.append([entry.split("/")[0] for entry in emptied(policy)])
    assert orders == [["plain", "weighty"], ["weighty", "plain"]]


@pytest.mark.parametrize(("weight", "first"), [(1.0, "short"), (3.0, "long")])
def test_hrrn_counts_waiting_by_weight(weight: float, first: str) -> None:
    policy = create_policy("hrrn", {"cost": "linear"})
    long = an_application(1, application_id="long", weight=weight)
    policy.add(a_call(long, 1, prompt_tokens=200, predicted_output_tokens=1))
    policy.add(a_call(an_application(2, application_id="short"), 2, prompt_tokens=98, predicted_output_tokens=1))
    policy.advance(10.0)
    head = policy.head()
    assert head is not None
    assert head.application_id == first
