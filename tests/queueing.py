"""Servers under a policy, without the core: what the tests of the policies' theory share.

A call of p prompt and d output tokens takes p + 2·d units of service (`scheduler.cost.linear_cost`) on one of
`servers` servers that each deliver `rate` units a second, one call at a time, to its end. Token i of d is there once
p + 2·i units are done. Time is exact: give integers or fractions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from math import inf

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.types import CallKey

Number = int | float | Fraction


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call to be served, and what is said of the application that it belongs to.

    The first request of an application says its fields; `at` is when it comes, if the calls `after` which it comes
    have ended by then. `predicted` is d unless told.
    """

    app: str
    call: str = "c"
    p: int = 1
    d: int = 1
    at: Number = 0
    after: tuple[str, ...] = ()
    predicted: int | None = None
    flow: str | None = None
    weight: float = 1.0
    tenant: str = "default"
    deadline_s: float = inf
    period_s: float = inf
    sequences: int = 1
    prefix: tuple[int, ...] = ()
    application_type: str = "unknown"

    @property
    def key(self) -> CallKey:
        return CallKey(self.app, self.call)

    @property
    def length(self) -> int:
        """Units of service that it takes on a server."""
        return int(linear_cost(self.p, (self.d,) * self.sequences))


def of_length(app: str, length: int, **fields: object) -> Request:
    """A request that takes `length` units, at least 3."""
    return Request(app=app, p=length - 2, d=1, **fields)  # type: ignore[arg-type]


@dataclass
class Start:
    """A call was given to a server."""

    at: Fraction
    call: CallFacts
    server: str


@dataclass
class _Known:
    """An application in the system."""

    facts: ApplicationFacts
    left: set[str]
    served: float = 0.0


@dataclass
class Station:
    """A policy, its servers, and what happened.

    `watch` is called after each decision, before anything else happens. `tokens` lets the policy hear of every token,
    otherwise it hears of ends only. `cost` is the unit of the applications' costs.
    """

    policy: Policy
    requests: Sequence[Request]
    servers: int = 1
    rate: Number = 1
    tokens: bool = False
    cost: CostModel = linear_cost
    watch: Callable[[Station, Start], None] = lambda station, start: None
    now: Fraction = Fraction(0)
    starts: list[Start] = field(default_factory=list)
    ends: dict[CallKey, Fraction] = field(default_factory=dict)
    arrivals: dict[CallKey, Fraction] = field(default_factory=dict)
    waiting: dict[CallKey, CallFacts] = field(default_factory=dict)
    running: dict[str, CallFacts] = field(default_factory=dict)
    _known: dict[str, _Known] = field(default_factory=dict)
    _agenda: list[tuple[Fraction, int, Callable[[], None]]] = field(default_factory=list)
    _count: count[int] = field(default_factory=count)
    _ready: int = 0

    def run(self, until: Number = inf) -> Station:
        """Serve until nothing is left, or until a moment."""
        if not self.starts and not self._agenda:
            self.policy.pool_changed(1_000_000, self.servers)
            for request in self.requests:
                if not request.after:
                    self._at(Fraction(request.at), lambda request=request: self._arrive(request))  # type: ignore[misc]
        while self._agenda and self._agenda[0][0] <= until:
            self._advance(self._agenda[0][0])
            while self._agenda and self._agenda[0][0] == self.now:
                heapq.heappop(self._agenda)[2]()
            self._dispatch()
        return self

    def completion(self, app: str) -> Fraction:
        """When the last call of an application ended."""
        return max(end for key, end in self.ends.items() if key.application_id == app)

    def order(self) -> list[CallKey]:
        """Calls in the order of their starts."""
        return [start.call.key for start in self.starts]

    def request(self, key: CallKey) -> Request:
        return next(request for request in self.requests if request.key == key)

    def _at(self, moment: Fraction, do: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._count), do))

    def _advance(self, moment: Fraction) -> None:
        service = float((moment - self.now) * Fraction(self.rate) * len(self.running))
        self.now = moment
        self.policy.advance(float(moment))
        if service:
            self.policy.served(service)

    def _arrive(self, request: Request) -> None:
        known = self._known.get(request.app) or self._meet(request)
        self._ready += 1
        call = CallFacts(
            key=request.key,
            application=known.facts,
            ready_sequence=self._ready,
            ready_s=float(self.now),
            stage=self._stage(request),
            after=request.after,
            prompt_tokens=request.p,
            predicted_output_tokens=request.predicted or request.d,
            true_output_tokens=request.d,
            sequences=request.sequences,
            prefix=request.prefix,
        )
        self.arrivals[call.key] = self.now
        self.waiting[call.key] = call
        self.policy.add(call)

    def _meet(self, request: Request) -> _Known:
        calls = [other for other in self.requests if other.app == request.app]
        cost = sum(self.cost(r.p, (r.predicted or r.d,) * r.sequences) for r in calls)
        facts = ApplicationFacts(
            application_id=request.app,
            sequence=len(self.arrivals) + 1,
            flow=request.flow or request.app,
            tenant=request.tenant,
            application_type=request.application_type,
            weight=request.weight,
            flow_weight=request.weight,
            tenant_weight=request.weight,
            arrival_s=float(self.now),
            predicted_cost=cost,
            remaining_cost=cost,
            deadline_s=request.deadline_s,
            period_s=request.period_s,
        )
        known = self._known[request.app] = _Known(facts, {r.call for r in calls})
        self.policy.application_arrived(facts)
        return known

    def _stage(self, request: Request) -> int:
        before = [self.request(CallKey(request.app, name)) for name in request.after]
        return max((self._stage(other) + 1 for other in before), default=0)

    def _dispatch(self) -> None:
        while len(self.running) < self.servers and (key := self.policy.head()) is not None:
            free = [f"s{number}" for number in range(self.servers) if f"s{number}" not in self.running]
            preferred = self.policy.preferred_replica(key)
            self._start(self.waiting.pop(key), preferred if preferred in free else free[0])

    def _start(self, call: CallFacts, server: str) -> None:
        self.running[server] = call
        start = Start(self.now, call, server)
        self.starts.append(start)
        self.policy.granted(call, server)
        self.policy.remove(call.key)
        request = self.request(call.key)
        unit = 1 / Fraction(self.rate)
        if self.tokens:
            for token in range(1, request.d):
                moment = self.now + unit * int(linear_cost(request.p, (token,) * request.sequences))
                self._at(moment, lambda token=token: self._token(call, token))  # type: ignore[misc]
        self._at(self.now + unit * request.length, lambda: self._end(server, call, request))
        self.watch(self, start)

    def _token(self, call: CallFacts, token: int) -> None:
        output = (token,) * call.sequences
        self.policy.progressed(call, output)
        self._tell_cost(call, self.cost(call.prompt_tokens, output))

    def _tell_cost(self, call: CallFacts, of_this_call: float) -> None:
        known = self._known[call.key.application_id]
        remaining = max(known.facts.predicted_cost - known.served - of_this_call, 0.0)
        known.facts = replace(known.facts, remaining_cost=remaining)
        self.policy.application_changed(known.facts)

    def _end(self, server: str, call: CallFacts, request: Request) -> None:
        del self.running[server]
        self.ends[call.key] = self.now
        output = (request.d,) * request.sequences
        self.policy.ended(call, output, True)
        known = self._known[request.app]
        self._tell_cost(call, self.cost(request.p, output))
        known.served += self.cost(request.p, output)
        known.left.discard(request.call)
        for other in self._dependents(request):
            self._at(max(self.now, Fraction(other.at)), lambda other=other: self._arrive(other))  # type: ignore[misc]
        if not known.left:
            del self._known[request.app]
            self.policy.application_left(known.facts)

    def _dependents(self, request: Request) -> Iterable[Request]:
        """Requests that this one was the last to be waited for."""
        siblings = [other for other in self.requests if other.app == request.app and request.call in other.after]
        return [other for other in siblings if all(CallKey(other.app, name) in self.ends for name in other.after)]
