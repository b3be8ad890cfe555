"""The fair policies for LLM serving by their definitions alone: every question is answered by looking at everything.

Written for the tests, without heaps, and without forgetting more than the definitions do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.types import CallKey

Charge = Callable[[CallFacts, tuple[int, ...], bool], float]
"""(call, output tokens made, whether it has ended) -> what it has to be charged in all."""


@dataclass
class NaiveCounters(Policy):
    """Smallest counter first, with the lift, for any way of charging."""

    charge: Charge
    name = "naive"
    counters: dict[str, float] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    waiting: dict[CallKey, CallFacts] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    charged: dict[CallKey, float] = field(default_factory=dict)

    def head(self) -> CallKey | None:
        if not self.waiting:
            return None
        calls = self.waiting.values()
        return min(calls, key=lambda c: (self.counters[c.flow], self.began[c.flow], c.ready_sequence)).key

    def add(self, call: CallFacts) -> None:
        if all(other.flow != call.flow for other in self.waiting.values()):
            self.began[call.flow] = call.application.sequence
        self.waiting[call.key] = call

    def remove(self, key: CallKey) -> None:
        self.waiting.pop(key, None)

    def application_arrived(self, application: ApplicationFacts) -> None:
        if not self.members.get(application.flow):
            floor = min((self.counters[flow] for flow, apps in self.members.items() if apps), default=0.0)
            self.counters[application.flow] = max(self.counters.get(application.flow, -inf), floor)
        self.members.setdefault(application.flow, set()).add(application.application_id)

    def application_left(self, application: ApplicationFacts) -> None:
        self.members[application.flow].discard(application.application_id)
        self.forget()

    def forget(self) -> None:
        active = [flow for flow, apps in self.members.items() if apps]
        floor = min((self.counters[flow] for flow in active), default=inf)
        for flow in [flow for flow in self.counters if flow not in active and self.counters[flow] <= floor]:
            del self.counters[flow]

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self.charged[call.key] = 0.0
        self.bring(call, self.charge(call, (0,) * call.sequences, False))

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self.bring(call, self.charge(call, output_tokens, False))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self.bring(call, self.charge(call, output_tokens, True))

    def unit(self, call: CallFacts) -> float:
        return call.flow_weight

    def bring(self, call: CallFacts, total: float) -> None:
        self.counters[call.flow] += (total - self.charged[call.key]) / self.unit(call)
        self.charged[call.key] = total
        self.forget()


@dataclass
class ListCache:
    """Least recently used blocks first, in a list; the last blocks of a prompt are the least recent ones."""

    most: int
    blocks: list[int] = field(default_factory=list)

    def hits(self, prefix: tuple[int, ...]) -> int:
        return next((n for n, block in enumerate(prefix) if block not in self.blocks), len(prefix))

    def touch(self, prefix: tuple[int, ...]) -> None:
        self.blocks = [block for block in self.blocks if block not in prefix] + list(reversed(prefix))
        self.blocks = self.blocks[max(len(self.blocks) - self.most, 0) :]


@dataclass
class NaiveLocality(Policy):
    """Longest prefix match among flows whose deficit lasts, with refills that are really carried out.

    One cache for everything, or with `by_replica` one each.
    """

    quantum: float
    block_tokens: int
    cache_blocks: int
    by_replica: bool = False
    name = "naive"
    deficits: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    waiting: dict[CallKey, CallFacts] = field(default_factory=dict)
    made: dict[CallKey, int] = field(default_factory=dict)
    caches: dict[str, ListCache] = field(default_factory=dict)

    def head(self) -> CallKey | None:
        if not self.waiting:
            return None
        deficits = self.refilled()
        able = [call for call in self.waiting.values() if deficits[call.flow] > 0]
        return min(able, key=lambda call: (-self.match(call), call.ready_sequence)).key

    def match(self, call: CallFacts) -> int:
        return max((cache.hits(call.prefix) for cache in self.caches.values()), default=0)

    def refilled(self) -> dict[str, float]:
        deficits = dict(self.deficits)
        while self.waiting and all(deficits[call.flow] <= 0 for call in self.waiting.values()):
            for flow, deficit in deficits.items():
                most = self.quantum * self.weights[flow] if self.members[flow] else 0.0
                deficits[flow] = min(deficit + self.quantum * self.weights[flow], most)
        return deficits

    def add(self, call: CallFacts) -> None:
        self.waiting[call.key] = call

    def remove(self, key: CallKey) -> None:
        self.waiting.pop(key, None)

    def application_arrived(self, application: ApplicationFacts) -> None:
        if not self.members.get(application.flow):
            self.deficits[application.flow] = min(self.deficits.get(application.flow, 0.0), 0.0)
        self.weights[application.flow] = application.flow_weight
        self.members.setdefault(application.flow, set()).add(application.application_id)

    def application_left(self, application: ApplicationFacts) -> None:
        self.members[application.flow].discard(application.application_id)
        if not any(self.members.values()):
            self.deficits.clear()

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self.deficits = self.refilled()
        cache = self.caches.setdefault(replica_id if self.by_replica else "", ListCache(self.cache_blocks))
        fresh = call.prompt_tokens - cache.hits(call.prefix) * self.block_tokens
        self.deficits[call.flow] -= max(fresh, 0)
        cache.touch(call.prefix)
        self.made[call.key] = 0

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self.deficits[call.flow] -= 2 * (sum(output_tokens) - self.made[call.key])
        self.made[call.key] = sum(output_tokens)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self.progressed(call, output_tokens)
