"""Fair queueing on several servers: the bound of one central queue, and what is lost by binding calls early.

N servers of rate r, one queue, smallest GPS finish tag first, a call bound to a server when that is free. GPS is one
fluid server of rate N·r. Then call k of length L_k ends at

    d_k ≤ d_GPS,k + L_max/r + (1 − 1/N)·L_k/r

Why: let t be the last start of a call with a larger tag before k starts at s, or the last moment with a free server.
Servers are busy from t to s, with what ran at t (at most N·L_max) and with calls that came after t and have smaller
tags. GPS has to serve all of those and k by d_GPS,k: N·r·(s − t) ≤ N·L_max + N·r·(d_GPS,k − t) − L_k. And
d_k = s + L_k/r.

For N = 1 this is Parekh and Gallager's L_max/r (ToN 1993, theorem 1); Blanquer and Özden (SIGCOMM 2001) have a
similar form for aggregated links. Calls of one flow are first in, first out. Tags are the product's: its reference
clock and the order of `justitia`. GPS finishes are exact and know no tags.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from scheduler.finish_heap import FinishHeap
from scheduler.gps import ReferenceClock
from scheduler.policies.contract import CallFacts, Policy
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.justitia import Justitia
from scheduler.types import CallKey
from tests.property.fluid_gps import Job, Stretch, fluid_finishes
from tests.queueing import Request, Station, _Known, of_length

ROUNDING_S = Fraction(1, 10**6)
"""Tags are floats; two that differ by rounding may change places."""


@dataclass
class TaggedStation(Station):
    """A station that tags each call (an application of its own) against GPS of rate N·r, first come first served
    inside a flow: S = max(V, F_prev), F = S + L/w."""

    clock: ReferenceClock = field(default_factory=ReferenceClock)
    flows: dict[str, int] = field(default_factory=dict)
    last_tags: dict[str, float] = field(default_factory=dict)

    def _advance(self, moment: Fraction) -> None:
        self.clock.advance(float(moment), float((moment - self.now) * self.servers * Fraction(self.rate)))
        super()._advance(moment)

    def _meet(self, request: Request) -> _Known:
        known = super()._meet(request)
        flow = known.facts.flow
        start = max(self.clock.virtual_time, self.last_tags.get(flow, 0.0))
        tag = self.last_tags[flow] = start + request.length / request.weight
        self.clock.place(self.flows.setdefault(flow, len(self.flows)), tag, request.weight)
        known.facts = replace(known.facts, finish_tag=tag)
        return known


class EarlyBound(Policy):
    """Binds each call to a server when it comes; there the smallest tag goes first."""

    def __init__(self, servers: int, choose: Callable[[EarlyBound], int]) -> None:
        self.queues: list[FinishHeap[CallKey]] = [FinishHeap() for _ in range(servers)]
        self.bound: dict[CallKey, int] = {}
        self.busy: set[int] = set()
        self.came = 0
        self._choose = choose

    def calls_at(self, server: int) -> int:
        """Calls that wait or run there."""
        return len(self.queues[server]) + (server in self.busy)

    def add(self, call: CallFacts) -> None:
        server = self.bound[call.key] = self._choose(self)
        self.came += 1
        self.queues[server].set(call.key, call.application.finish_tag, call.ready_sequence)

    def remove(self, key: CallKey) -> None:
        self.queues[self.bound[key]].discard(key)

    def head(self) -> CallKey | None:
        heads = [queue.peek() for server, queue in enumerate(self.queues) if server not in self.busy]
        return next((key for key in heads if key is not None), None)

    def preferred_replica(self, key: CallKey) -> str | None:
        return f"s{self.bound[key]}"

    def granted(self, call: CallFacts, replica_id: str) -> None:
        assert replica_id == f"s{self.bound[call.key]}"
        self.busy.add(self.bound[call.key])

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self.busy.discard(self.bound.pop(call.key))


def round_robin(policy: EarlyBound) -> int:
    return policy.came % len(policy.queues)


def shortest_queue(policy: EarlyBound) -> int:
    return min(range(len(policy.queues)), key=policy.calls_at)


def gps_finishes(requests: Sequence[Request], rate: Fraction) -> dict[CallKey, Fraction]:
    """When GPS has served each call, from the definition: backlogged flows share by weight, each serves its oldest."""
    coming = sorted(requests, key=lambda request: request.at)
    queues: dict[str, list[Request]] = {}
    left = {request.key: Fraction(request.length) for request in requests}
    finishes: dict[CallKey, Fraction] = {}
    now = Fraction(0)
    while coming or queues:
        while coming and coming[0].at <= now:
            request = coming.pop(0)
            queues.setdefault(request.flow or request.app, []).append(request)
        heads = [queue[0] for queue in queues.values()]
        weight = sum(Fraction(head.weight) for head in heads)
        share = {head.key: rate * Fraction(head.weight) / weight for head in heads}
        moments = [now + left[key] / share[key] for key in share]
        moments += [Fraction(coming[0].at)] if coming else []
        then = min(moments)
        for head in heads:
            left[head.key] -= share[head.key] * (then - now)
            if left[head.key] == 0:
                finishes[head.key] = then
                _take_first(queues, head)
        now = then
    return finishes


def _take_first(queues: dict[str, list[Request]], head: Request) -> None:
    flow = head.flow or head.app
    queues[flow].pop(0)
    if not queues[flow]:
        del queues[flow]


def load(rng: random.Random, servers: int, rate: Fraction, *, flows: int = 0, count: int = 70) -> list[Request]:
    """Random calls, few of them long, nearly as fast as the servers can serve them or faster; each its own flow, or
    spread over `flows` flows."""
    lengths = [rng.choice([rng.randint(3, 8), rng.randint(3, 20), rng.randint(3, 60)]) for _ in range(count)]
    horizon = int(sum(lengths) / (servers * rate) * Fraction(rng.choice([50, 90, 110]), 100))
    weights = [rng.choice([1.0, 1.0, 2.0, 0.5]) for _ in range(max(flows, 1))]
    requests = []
    for number, length in enumerate(lengths):
        flow = rng.randrange(flows) if flows else None
        weight = rng.choice([1.0, 1.0, 2.0]) if flow is None else weights[flow]
        requests.append(
            of_length(
                f"a{number}",
                length,
                at=rng.randint(0, horizon),
                flow=None if flow is None else f"f{flow}",
                weight=weight,
            )
        )
    return sorted(requests, key=lambda request: request.at)


def latenesses(station: Station) -> dict[CallKey, Fraction]:
    """How long after its bound each call ended; negative before."""
    rate, servers = Fraction(station.rate), station.servers
    gps = gps_finishes(station.requests, servers * rate)
    longest = max(request.length for request in station.requests)
    bounds = {
        request.key: gps[request.key] + longest / rate + (1 - Fraction(1, servers)) * request.length / rate
        for request in station.requests
    }
    assert station.ends.keys() == bounds.keys()
    return {key: end - bounds[key] for key, end in station.ends.items()}


def test_the_oracle_is_the_other_one_when_each_call_is_a_flow() -> None:
    rng = random.Random(0)
    for _ in range(5):
        requests = load(rng, 2, Fraction(1), count=25)
        finishes = fluid_finishes([Job(r.at, r.length, r.weight) for r in requests], [Stretch(10_000, 2)])
        assert [gps_finishes(requests, Fraction(2))[r.key] for r in requests] == finishes


@pytest.mark.parametrize("flows", [0, 5])
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_one_queue_keeps_the_bound(servers: int, flows: int) -> None:
    rng = random.Random(servers)
    calls = waited = 0
    closest = Fraction(-1000)
    for _ in range(10):
        rate = rng.choice([Fraction(1), Fraction(3, 2), Fraction(7, 3)])
        requests = load(rng, servers, rate, flows=flows)
        station = TaggedStation(Justitia(), requests, servers, rate).run()
        late = latenesses(station)
        assert max(late.values()) <= ROUNDING_S, (servers, rate, max(late, key=lambda key: late[key]))
        calls += len(late)
        waited += sum(start.at > station.arrivals[start.call.key] for start in station.starts)
        closest = max(closest, max(late.values()))
    assert calls == 700  # 5,600 over all parameters
    assert waited > calls / 2
    assert closest > -60  # less than the longest call away from it


@pytest.mark.parametrize("servers", [1, 2])
def test_order_of_arrival_breaks_it(servers: int) -> None:
    rng = random.Random(servers)
    late: list[Fraction] = []
    for _ in range(5):
        late += latenesses(TaggedStation(Fcfs(), load(rng, servers, Fraction(1)), servers).run()).values()
    assert sum(one > ROUNDING_S for one in late) > 10


@pytest.mark.parametrize("choose", [round_robin, shortest_queue])
def test_binding_calls_as_they_come_breaks_it(choose: Callable[[EarlyBound], int]) -> None:
    """Two servers; long and short calls by turns. One gets all the long ones, however they are counted."""
    requests = [of_length(f"a{number}", 60 if number % 2 == 0 else 3) for number in range(12)]
    early = TaggedStation(EarlyBound(2, choose), requests, 2).run()
    central = TaggedStation(Justitia(), requests, 2).run()
    assert {start.server for start in early.starts if start.call.prompt_tokens == 58} == {"s0"}
    assert max(latenesses(early).values()) >= 60
    assert max(latenesses(central).values()) <= 0


@pytest.mark.parametrize("choose", [round_robin, shortest_queue])
def test_binding_calls_as_they_come_breaks_it_by_chance_too(choose: Callable[[EarlyBound], int]) -> None:
    """One call in five is long; neither rule knows which."""
    rng = random.Random(7)
    early: list[Fraction] = []
    central: list[Fraction] = []
    for _ in range(12):
        requests = [of_length(f"a{n}", rng.choice([3, 3, 3, 3, 60]), at=rng.randint(0, 20)) for n in range(70)]
        early += latenesses(TaggedStation(EarlyBound(4, choose), requests, 4).run()).values()
        central += latenesses(TaggedStation(Justitia(), requests, 4).run()).values()
    assert max(central) <= ROUNDING_S
    assert sum(late > ROUNDING_S for late in early) > 0
