"""Longest cached prefix first while a flow's deficit lasts: the part that DLPM and D²LPM share.

Laws: a granted call was the one with the longest match of all calls whose flow had something left of its deficit
(`scheduler.policies.deficit_rounds`); a flow is charged prompt_weight for each prompt token that the model of the
cache lacks when the call is granted, and output_weight for each output token when it is made. What was charged for a
call that is lost stays charged; granted again, it is charged for the prompt tokens that are then not cached."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import isfinite

from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.policies.deficit_rounds import DeficitRounds
from scheduler.policies.prefix_queues import PrefixQueues
from scheduler.types import CallKey


@dataclass(slots=True)
class _Run:
    """A running call: where, and the output tokens it was charged for."""

    replica_id: str
    charged_tokens: int = 0


class LocalityPolicy(Policy):
    """A policy says where prefixes are cached."""

    needs: tuple[Need, ...] = (Need.WEIGHTS, Need.PREFIXES)
    shares_among_flows = True
    follows_service = True

    def __init__(self, quantum: float, prompt_weight: float, output_weight: float, block_tokens: int) -> None:
        require_positive(quantum=quantum, prompt_weight=prompt_weight, output_weight=output_weight)
        require_positive(block_tokens=block_tokens)
        self.quantum = quantum
        self.prompt_weight = prompt_weight
        self.output_weight = output_weight
        self.block_tokens = block_tokens
        self._rounds = DeficitRounds(quantum)
        self._queues = PrefixQueues()
        self._running: dict[CallKey, _Run] = {}

    @abstractmethod
    def matched(self, prefix: tuple[int, ...]) -> int:
        """Leading blocks of a prefix that are cached where they are cached best."""

    @abstractmethod
    def compute(self, prefix: tuple[int, ...], replica_id: str) -> tuple[int, list[int]]:
        """A replica computes a prompt: the blocks that it had already, and those that came to its cache or went."""

    def charge(self, flow: str, replica_id: str, service: float) -> None:
        """A flow was served at a replica."""
        self._rounds.charge(flow, service)

    def head(self) -> CallKey | None:
        flow = self._rounds.head()
        first = None if flow is None else self._queues.first(flow)
        return None if first is None else first[0].key

    def add(self, call: CallFacts) -> None:
        self._queues.place(call, self.matched(call.prefix))
        self._place(call.flow)

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._place(flow)

    def application_arrived(self, application: ApplicationFacts) -> None:
        self._rounds.arrive(application)

    def application_left(self, application: ApplicationFacts) -> None:
        self._rounds.leave(application)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        if call.key in self._queues:
            self._rounds.begin()
        self._running[call.key] = _Run(replica_id)
        cached, changed = self.compute(call.prefix, replica_id)
        computed_tokens = max(call.prompt_tokens - cached * self.block_tokens, 0)
        self.charge(call.flow, replica_id, self.prompt_weight * computed_tokens)
        self.rematch(changed)

    def rematch(self, changed: list[int]) -> None:
        """These blocks came to a cache or went: calls that wait and share them find their places again."""
        for other in self._queues.sharing(changed):
            self._queues.place(other, self.matched(other.prefix))
            self._place(other.flow)

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        run = self._running.get(call.key)
        if run is not None:
            fresh = sum(output_tokens) - run.charged_tokens
            run.charged_tokens += fresh
            self.charge(call.flow, run.replica_id, self.output_weight * fresh)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self.progressed(call, output_tokens)
        self._running.pop(call.key, None)

    def _place(self, flow: str) -> None:
        """Let a flow stand where its first call belongs."""
        first = self._queues.first(flow)
        if first is None:
            self._rounds.displace(flow)
        else:
            call, rank = first
            self._rounds.place(flow, rank, call.ready_sequence)


def require_positive(**options: float) -> None:
    """Raises ValueError for an option that is not positive and finite."""
    for name, value in options.items():
        if not (value > 0 and isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")
