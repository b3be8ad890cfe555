"""What the tests of policies that share among flows have in common: random flows, the exact fluid among flows, and
a policy that is told facts directly.

The fluid is GPS from its definition: each flow that has work left is served at rate·w/W; a flow's calls are served one
after another. Exact, in fractions, without virtual time or tags.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count

from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.types import CallKey
from tests.conformance.test_policies import footprint
from tests.queueing import Request, of_length

Number = int | float | Fraction


@dataclass(frozen=True)
class Work:
    """A call of so much work of a flow, in order of arrival."""

    at: Number
    flow: str
    work: Number
    weight: Number = 1


@dataclass
class Fluid:
    """GPS among flows at rate 1: when each call is done, and what each flow had been served at some moments."""

    calls: Sequence[Work]
    moments: Sequence[Number] = ()
    finishes: list[Fraction] = field(default_factory=list)
    served: list[Mapping[str, Fraction]] = field(default_factory=list)

    def __post_init__(self) -> None:
        weights = {call.flow: Fraction(call.weight) for call in self.calls}
        got = dict.fromkeys(weights, Fraction(0))
        come = dict.fromkeys(weights, Fraction(0))
        thresholds: list[tuple[Fraction, int, str]] = []
        finishes: dict[int, Fraction] = {}
        arrivals = sorted(range(len(self.calls)), key=lambda i: self.calls[i].at)
        looks = sorted(Fraction(moment) for moment in self.moments)
        now = Fraction(0)
        while arrivals or thresholds or looks:
            while arrivals and self.calls[arrivals[0]].at <= now:
                index = arrivals.pop(0)
                call = self.calls[index]
                come[call.flow] += Fraction(call.work)
                thresholds.append((come[call.flow], index, call.flow))
            while looks and looks[0] <= now:
                looks.pop(0)
                self.served.append(dict(got))
            active = [flow for flow in weights if got[flow] < come[flow]]
            total = sum(weights[flow] for flow in active)
            steps = [Fraction(self.calls[arrivals[0]].at) - now] if arrivals else []
            steps += [looks[0] - now] if looks else []
            steps += [(until - got[flow]) * total / weights[flow] for until, _, flow in thresholds]
            if not steps:
                break
            step = min(steps)
            now += step
            for flow in active:
                got[flow] += step * weights[flow] / total
            for until, index, flow in list(thresholds):
                if got[flow] >= until:
                    thresholds.remove((until, index, flow))
                    finishes[index] = now
        self.finishes = [finishes[index] for index in range(len(self.calls))]


def random_requests(
    rng: random.Random, *, flows: int = 4, calls: int = 40, within: int = 300, longest: int = 20
) -> list[Request]:
    """Calls of a few flows of different weights at random moments, one application each."""
    weights = {f"f{n}": rng.choice([0.5, 1.0, 1.0, 2.0, 3.0]) for n in range(flows)}
    names = [rng.choice(sorted(weights)) for _ in range(calls)]
    return [
        of_length(f"a{n}", rng.randint(3, longest), at=rng.randint(0, within), flow=flow, weight=weights[flow])
        for n, flow in enumerate(names)
    ]


@dataclass
class Desk:
    """A policy, told directly; costs are linear: a call of cost c has c − 2 prompt tokens and one output token."""

    policy: Policy
    calls: dict[CallKey, CallFacts] = field(default_factory=dict)
    _ready: count[int] = field(default_factory=lambda: count(1))

    def add(
        self, flow: str, cost: int = 10, *, weight: float = 1.0, predicted: int = 1, sequences: int = 1
    ) -> CallFacts:
        """A new application of one call."""
        ready = next(self._ready)
        application = ApplicationFacts(
            application_id=f"{flow}-{ready}", sequence=ready, flow=flow, flow_weight=weight, weight=weight
        )
        call = CallFacts(
            key=CallKey(application.application_id, "c"),
            application=application,
            ready_sequence=ready,
            prompt_tokens=cost - 2 * predicted * sequences,
            predicted_output_tokens=predicted,
            sequences=sequences,
        )
        self.calls[call.key] = call
        self.policy.application_arrived(application)
        self.policy.add(call)
        return call

    def head(self) -> CallFacts:
        key = self.policy.head()
        assert key is not None
        return self.calls[key]

    def grant(self, call: CallFacts | None = None) -> CallFacts:
        """Grant this call, or the head."""
        call = call or self.head()
        self.policy.granted(call, "r")
        self.policy.remove(call.key)
        return call

    def end(self, call: CallFacts, tokens: int | None = None, *, finished: bool = True) -> None:
        """A granted call ends; as predicted unless told. If it has finished, its application leaves."""
        made = call.predicted_output_tokens if tokens is None else tokens
        self.policy.ended(call, (made,) * call.sequences if made else (), finished)
        if finished:
            self.leave(call)

    def lose(self, call: CallFacts, tokens: int = 0) -> None:
        """A granted call is lost after so many tokens and waits again."""
        self.end(call, tokens, finished=False)
        self.policy.add(call)

    def cancel(self, call: CallFacts) -> None:
        """A waiting call is cancelled, and its application leaves."""
        self.policy.remove(call.key)
        self.leave(call)

    def leave(self, call: CallFacts) -> None:
        del self.calls[call.key]
        self.policy.application_left(call.application)

    def flows(self, grants: int, *, end: bool = True) -> str:
        """The flows of the next grants, each of which ends before the next; one letter each."""
        order = []
        for _ in range(grants):
            call = self.grant()
            order.append(call.flow)
            if end:
                self.end(call)
        return "".join(order)


def kept_after_crowd(policy: Policy, count: int = 3000) -> int:
    """Entries that a policy holds, beyond those of a flow that stays throughout, after flows have come and gone.

    Of three, one is cancelled at once, and two wait with the one that stays, for as many grants; those who still wait
    then give up, and the one that stays catches up with the debts of the others.
    """
    policy.pool_changed(1000, 10)
    desk = Desk(policy)
    desk.add("stays")
    desk.add("stays")
    before = footprint(policy)
    for number in range(count):
        call = desk.add(f"x{number}", 10 + number % 7, weight=1.0 + number % 3)
        if number % 3 == 2:
            desk.cancel(call)
        else:
            _serve_one(desk)
    for call in [call for call in desk.calls.values() if call.flow != "stays"]:
        desk.cancel(call)
    for _ in range(20):
        _serve_one(desk)
    return footprint(policy) - before


def _serve_one(desk: Desk) -> None:
    served = desk.grant()
    desk.end(served)
    if served.flow == "stays":
        desk.add("stays")
