"""What tenants were given while a run went on: the service gap over time, and Jain's index over a stated interval.

Definitions:

- Service of a tenant is the KV token-time of all that its calls have made so far, (p·d + d·(d + 1)/2) for each
  sequence, over the tenant's weight; token-iterations. What a preemption lets an engine compute again is not counted
  twice, so service never falls.
- A tenant is backlogged while a call of it waits that could run: it has its prompt, and what it depends on has ended.
- The gap at a moment is the largest less the smallest account of backlogged tenants, None where fewer than two are.
  An account grows with service. A tenant that was not backlogged all the while since the last sample is lifted to the
  smallest account of those that were: nothing is saved up by asking for nothing (as VTC's counters are lifted).
- Jain's index of n tenants is (Σx)²/(n·Σx²) with x the service over an interval, only of tenants backlogged throughout
  it. Without a tenant, or when all had nothing, it is not defined: None. The interval that is reported is, among those
  between two samples, the one with the largest (n − 1)·length; the first of equal ones.

`ServiceMeter` hears what the core is told and orders, and looks at the batches at the first moment of every interval:
one second, doubled whenever MAX_SAMPLES are kept, of which every other one is then dropped. Memory: MAX_SAMPLES times
the tenants, and the applications in the system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.actions import Action, Grant
from scheduler.cost import memory_cost
from scheduler.events import ApplicationArrived, CallFinished, CallPreempted, CallReady, Event
from scheduler.sim.simulation import Simulation
from scheduler.types import ApplicationSpec, CallKey

MAX_SAMPLES = 512
FIRST_INTERVAL_S = 1.0
QUANTITY = "KV token-time made for a tenant's calls over its weight (token-iterations)"


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment: each tenant's service, since when each backlogged tenant is so, and the gap."""

    at_s: float
    service: Mapping[str, float]
    backlogged_since_s: Mapping[str, float]
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JainIndex:
    """Jain's index of these tenants over this interval."""

    index: float | None
    begin_s: float
    end_s: float
    tenants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """The samples of a run that were kept; `worst_gap` is the largest of all that were taken."""

    samples: tuple[Sample, ...]
    worst_gap: float | None

    @property
    def gaps(self) -> tuple[tuple[float, float | None], ...]:
        """(second, gap) at each sample."""
        return tuple((sample.at_s, sample.gap) for sample in self.samples)

    def jain(self) -> JainIndex | None:
        """The index over the interval of this module's docstring; None where no two tenants were ever backlogged."""
        intervals = [interval for place in range(len(self.samples)) for interval in self._intervals_to(place)]
        if not intervals:
            return None
        _, begin, end = max(intervals, key=lambda interval: (interval[0], -interval[2], -interval[1]))
        return self._jain_between(begin, end)

    def _intervals_to(self, end: int) -> Iterator[tuple[float, int, int]]:
        """(worth, begin, end) of the intervals that end at a sample and in which two tenants are backlogged."""
        last = self.samples[end]
        since = sorted(last.backlogged_since_s.values())
        for number, since_s in enumerate(since[1:], start=1):
            begin = self._first_from(since_s)
            if begin < end:
                yield number * (last.at_s - self.samples[begin].at_s), begin, end

    def _first_from(self, moment_s: float) -> int:
        low, high = 0, len(self.samples)
        while low < high:
            middle = (low + high) // 2
            if self.samples[middle].at_s < moment_s:
                low = middle + 1
            else:
                high = middle
        return low

    def _jain_between(self, begin: int, end: int) -> JainIndex:
        first, last = self.samples[begin], self.samples[end]
        tenants = sorted(name for name, since_s in last.backlogged_since_s.items() if since_s <= first.at_s)
        given = [last.service.get(name, 0.0) - first.service.get(name, 0.0) for name in tenants]
        return JainIndex(index=jain_index(given), begin_s=first.at_s, end_s=last.at_s, tenants=tuple(tenants))


def jain_index(values: Sequence[float]) -> float | None:
    """(Σx)²/(n·Σx²), in [1/n, 1] for values that are not negative; None for no value or all zero."""
    largest = max(values, default=0.0)
    if largest <= 0:
        return None
    scaled = [value / largest for value in values]
    return sum(scaled) ** 2 / (len(scaled) * sum(value * value for value in scaled))


@dataclass(slots=True)
class _Application:
    """An application in the system: its calls' prompts, how many facts each waits for, and which calls wait for it."""

    tenant: str
    unfinished: int
    prompt_tokens: dict[str, int]
    waits_for: dict[str, int]
    releases: dict[str, list[str]] = field(default_factory=dict)


class ServiceMeter:
    """Takes the samples of one run: give `hear` and `watch` to its `Simulation`. A tenant not in `weights` weighs 1."""

    def __init__(self, weights: Mapping[str, float], max_samples: int = MAX_SAMPLES) -> None:
        self._weights = weights
        self._max_samples = max_samples
        self._interval_s = FIRST_INTERVAL_S
        self._next_s = 0.0
        self._samples: list[Sample] = []
        self._worst_gap: float | None = None
        self._applications: dict[str, _Application] = {}
        self._leases: dict[str, CallKey] = {}
        self._ended: dict[str, float] = defaultdict(float)
        self._preempted: dict[CallKey, float] = {}
        self._waiting: dict[str, int] = defaultdict(int)
        self._since_s: dict[str, float] = {}
        self._accounts: dict[str, float] = {}
        self._last = Sample(0.0, {}, {}, None)

    @property
    def record(self) -> ServiceRecord:
        return ServiceRecord(samples=tuple(self._samples), worst_gap=self._worst_gap)

    def hear(self, now_s: float, event: Event, actions: Iterable[Action]) -> None:
        """What the core was told, and what it ordered."""
        match event:
            case ApplicationArrived(spec):
                self._arrived(spec)
            case CallReady(application_id, call_id):
                self._come_closer(self._applications[application_id], call_id, now_s)
            case CallPreempted(lease_id, output_tokens):
                self._lost(lease_id, output_tokens, now_s)
            case CallFinished(lease_id, prompt_tokens, output_tokens):
                self._finished(lease_id, memory_cost(prompt_tokens, output_tokens), now_s)
            case _:
                pass
        for action in actions:
            if isinstance(action, Grant):
                self._leases[action.lease_id] = CallKey(action.application_id, action.call_id)
                self._wait(self._applications[action.application_id].tenant, -1, now_s)

    def watch(self, simulation: Simulation) -> None:
        """Take a sample if it is time for one."""
        if simulation.now_s < self._next_s:
            return
        self._take(simulation)
        if len(self._samples) > self._max_samples:
            del self._samples[1::2]
            self._interval_s *= 2
        self._next_s = simulation.now_s + self._interval_s

    # ---- who waits

    def _arrived(self, spec: ApplicationSpec) -> None:
        waits_for = {call.call_id: len(call.after) + 1 for call in spec.calls}
        prompt_tokens = {call.call_id: call.prompt_tokens for call in spec.calls}
        application = _Application(spec.tenant, len(spec.calls), prompt_tokens, waits_for)
        for call in spec.calls:
            for before in call.after:
                application.releases.setdefault(before, []).append(call.call_id)
        self._applications[spec.application_id] = application

    def _come_closer(self, application: _Application, call_id: str, now_s: float) -> None:
        """A call has its prompt, or a call that it comes after has ended; the last of these makes it wait."""
        application.waits_for[call_id] -= 1
        if not application.waits_for[call_id]:
            self._wait(application.tenant, 1, now_s)

    def _lost(self, lease_id: str, output_tokens: tuple[int, ...], now_s: float) -> None:
        key = self._leases.pop(lease_id)
        application = self._applications[key.application_id]
        self._preempted[key] = memory_cost(application.prompt_tokens[key.call_id], output_tokens)
        self._wait(application.tenant, 1, now_s)

    def _finished(self, lease_id: str, cost: float, now_s: float) -> None:
        key = self._leases.pop(lease_id)
        application = self._applications[key.application_id]
        self._preempted.pop(key, None)
        self._ended[application.tenant] += cost
        for name in application.releases.pop(key.call_id, ()):
            self._come_closer(application, name, now_s)
        application.unfinished -= 1
        if not application.unfinished:
            del self._applications[key.application_id]

    def _wait(self, tenant: str, more: int, now_s: float) -> None:
        """So many more calls of a tenant wait that could run."""
        self._waiting[tenant] += more
        if self._waiting[tenant] > 0:
            self._since_s.setdefault(tenant, now_s)
        else:
            del self._waiting[tenant]
            self._since_s.pop(tenant, None)

    # ---- samples

    def _take(self, simulation: Simulation) -> None:
        service = self._service(simulation)
        self._credit(service)
        self._lift()
        accounts = [self._accounts[name] for name in self._since_s]
        gap = max(accounts) - min(accounts) if len(accounts) > 1 else None
        if gap is not None:
            self._worst_gap = max(gap, self._worst_gap or 0.0)
        self._last = Sample(simulation.now_s, service, dict(self._since_s), gap)
        self._samples.append(self._last)

    def _service(self, simulation: Simulation) -> dict[str, float]:
        """All that each tenant was given so far, over its weight."""
        given = dict.fromkeys((one.tenant for one in self._applications.values()), 0.0) | self._ended
        running = set()
        for call, made in simulation.running_calls():
            running.add(call.key)
            tenant = self._applications[call.key.application_id].tenant
            given[tenant] += memory_cost(call.prompt_tokens, (made,) * call.sequences)
        for key, cost in self._preempted.items():
            if key not in running:
                given[self._applications[key.application_id].tenant] += cost
        return {name: given[name] / self._weights.get(name, 1.0) for name in sorted(given)}

    def _credit(self, service: Mapping[str, float]) -> None:
        for name, given in service.items():
            self._accounts[name] = self._accounts.get(name, 0.0) + given - self._last.service.get(name, 0.0)

    def _lift(self) -> None:
        """Who came back since the last sample begins where those are that stayed."""
        stayed = [name for name, since_s in self._since_s.items() if since_s <= self._last.at_s]
        floor = min((self._accounts[name] for name in stayed), default=0.0)
        for name in self._since_s:
            if name not in stayed:
                self._accounts[name] = max(self._accounts[name], floor)
