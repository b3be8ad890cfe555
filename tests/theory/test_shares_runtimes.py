"""CFS: in the end a flow has paid for what its calls have made, whatever was predicted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies.cfs import Cfs
from scheduler.policies.sfq import Sfq
from tests.queueing import Request, Start, Station
from tests.theory.shares import Desk

WEIGHTS = {"a": 0.5, "b": 1.0, "c": 1.0, "d": 2.0, "e": 4.0}


@settings(deadline=None, max_examples=20)
@given(st.randoms(use_true_random=False))
def test_cfs_pays_for_what_was_made_whatever_was_predicted(rng: random.Random) -> None:
    """One call at a time, predictions wrong by up to a factor of ten: true services stay within one quantum."""
    desk = Desk(Cfs())
    got = dict.fromkeys(WEIGHTS, 0.0)
    quantum = max((100 + 2 * 20) / weight for weight in WEIGHTS.values())

    def ask(flow: str) -> None:
        predicted = rng.randint(1, 10)
        desk.add(flow, rng.randint(1, 100) + 2 * predicted, weight=WEIGHTS[flow], predicted=predicted)

    for flow in [*WEIGHTS, *WEIGHTS]:
        ask(flow)
    for _ in range(150):
        call = desk.grant()
        ask(call.flow)
        tokens = rng.randint(1, 20)
        if rng.random() < 0.5:
            desk.policy.progressed(call, (tokens - 1,))
        desk.end(call, tokens)
        got[call.flow] += (call.prompt_tokens + 2 * tokens) / call.flow_weight
        assert max(got.values()) - min(got.values()) <= quantum


def test_one_who_predicts_too_little_gains_under_sfq_but_not_under_cfs() -> None:
    """a's calls make ten times what it says."""
    served = {}
    for policy in (Sfq(), Cfs()):
        desk = Desk(policy)
        for _ in range(200):
            desk.add("a", 3)
            desk.add("b", 3)
        got = {"a": 0, "b": 0}
        for _ in range(100):
            call = desk.grant()
            tokens = 10 if call.flow == "a" else 1
            desk.end(call, tokens)
            got[call.flow] += 1 + 2 * tokens
        served[policy.name] = got["a"] / got["b"]
    assert served["sfq"] == 7.0
    assert 0.8 < served["cfs"] < 1.25


@pytest.mark.parametrize("seed", range(4))
def test_cfs_on_three_servers_is_off_by_what_runs(seed: int) -> None:
    """At each decision, what was charged differs by one quantum and the mistakes of the calls on the servers."""
    rng = random.Random(seed)
    requests = [
        Request(app=f"a{n}", p=rng.randint(1, 9), d=rng.randint(1, 9), predicted=rng.randint(1, 9), flow="abc"[n % 3])
        for n in range(150)
    ]
    spreads = []

    def watch(station: Station, start: Start) -> None:
        if len({call.flow for call in station.waiting.values()}) < 3:
            return
        got = dict.fromkeys("abc", 0)
        running = {call.key for call in station.running.values()}
        for earlier in station.starts:
            tokens = earlier.call.predicted_output_tokens
            if earlier.call.key not in running:
                tokens = earlier.call.true_output_tokens or 0
            got[earlier.call.flow] += earlier.call.prompt_tokens + 2 * tokens
        spreads.append(max(got.values()) - min(got.values()))

    Station(Cfs(), requests, servers=3, watch=watch).run()
    assert len(spreads) > 50
    assert max(spreads) <= 27 + 3 * 16


def test_cfs_charges_an_overrun_as_it_appears() -> None:
    desk = Desk(Cfs())
    call = desk.add("a", 3)
    for _ in range(5):
        desk.add("a", 3)
        desk.add("b", 3)
    assert desk.grant() is call
    desk.policy.progressed(call, (7,))
    assert desk.flows(5) == "bbbbb"
    desk.policy.progressed(call, (2,))  # fewer than before take nothing back
    assert desk.head().flow == "a"
