"""The engine model one iteration at a time, without arithmetic over many: what the simulator's jumps are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduler.sim.batch import NS, Batch, Moved
from scheduler.sim.engine import EngineProfile
from scheduler.sim.simulation import Simulation


@dataclass
class Sequences:
    """One call in the batch: p, the tokens made, and the blocks that it has taken."""

    prompt: int
    target: int
    count: int
    made: int
    to_prefill: int
    blocks: int
    begun: bool = False


class StepBatch:
    """Stands in for `Batch`; every iteration visits every call."""

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.iterations = 0
        self.calls: dict[str, Sequences] = {}
        self.prefilled_tokens = 0
        self.admitted = 0
        self.admitted_tokens = 0
        self.cache: list[int] = []

    def __len__(self) -> int:
        return len(self.calls)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self.calls

    @property
    def used_blocks(self) -> int:
        return sum(call.blocks for call in self.calls.values())

    @property
    def free_blocks(self) -> int:
        return self.profile.usable_blocks - self.used_blocks

    @property
    def leases(self) -> list[str]:
        return list(self.calls)

    def made_tokens(self, lease_id: str) -> int:
        return self.calls[lease_id].made

    def decoding(self) -> int:
        return sum(call.count for call in self.calls.values() if call.to_prefill == 0)

    def fits(self, prompt_tokens: int, done_tokens: int, sequences: int) -> bool:
        tokens = prompt_tokens + done_tokens
        blocks = -(-(tokens + 1) // self.profile.block_tokens)
        running = sum(call.count for call in self.calls.values())
        if sequences * blocks > self.free_blocks or running + sequences > self.profile.max_sequences:
            return False
        if self.profile.chunked_prefill:
            begun = sum(call.count for call in self.calls.values() if call.begun)
            left = sum(call.to_prefill for call in self.calls.values() if not call.begun)
            return begun + left < self.profile.prefill_tokens_per_iteration
        whole = self.admitted_tokens + sequences * tokens
        return self.admitted == 0 or whole <= self.profile.prefill_tokens_per_iteration

    def admit(
        self,
        lease_id: str,
        prompt_tokens: int,
        output_tokens: int,
        *,
        done_tokens: int = 0,
        sequences: int = 1,
        prefix: tuple[int, ...] = (),
    ) -> None:
        tokens = prompt_tokens + done_tokens
        blocks = -(-(tokens + 1) // self.profile.block_tokens)
        to_prefill = max(sequences * tokens - self.cached(prefix, prompt_tokens), 0)
        self.calls[lease_id] = Sequences(
            prompt_tokens, output_tokens, sequences, done_tokens, to_prefill, sequences * blocks
        )
        self.admitted += 1
        self.admitted_tokens += sequences * tokens

    def cached(self, prefix: tuple[int, ...], prompt_tokens: int) -> int:
        hits = 0
        while hits < len(prefix) and prefix[hits] in self.cache:
            hits += 1
        for block in prefix if self.profile.prefix_cache_blocks else ():
            if block in self.cache:
                self.cache.remove(block)
            self.cache.append(block)
        del self.cache[: max(len(self.cache) - self.profile.prefix_cache_blocks, 0)]
        return min(hits * self.profile.prefix_block_tokens, max(prompt_tokens - 1, 0))

    def longest_jump(self) -> int:
        return 1 if self.calls else 0

    def iterations_within(self, span_ns: int) -> int:
        return 1

    def iterations_before(self, service: float) -> int:
        return 0

    def chunk(self) -> int:
        left = sum(call.to_prefill for call in self.calls.values())
        if not self.profile.chunked_prefill or left == 0:
            return left
        begun = sum(call.count for call in self.calls.values() if call.begun)
        return min(left, max(self.profile.prefill_tokens_per_iteration - begun, 1))

    def duration_ns(self, iterations: int) -> int:
        assert iterations == 1
        sequences = sum(call.count for call in self.calls.values())
        profile = self.profile
        return (
            round(profile.base_s * NS)
            + round(profile.per_sequence_s * NS) * sequences
            + round(profile.per_prefill_token_s * NS) * self.chunk()
        )

    def run(self, iterations: int, in_order: Callable[[list[str]], list[str]]) -> Moved:
        duration_ns, chunk = self.duration_ns(iterations), self.chunk()
        service = sum(call.count * (call.prompt + call.made + 1) for call in self.calls.values())
        self.prefilled_tokens += chunk
        self.iterations += 1
        for call in self.calls.values():
            spent = min(call.to_prefill, chunk) if not call.begun else 0
            whole = spent == call.to_prefill and (chunk > 0 or call.to_prefill == 0)
            call.to_prefill -= spent
            chunk -= spent
            if not whole:
                break
        self.mark_begun()
        preempted = self.grow(in_order)
        ended = []
        for lease_id, call in list(self.calls.items()):
            if call.begun:
                call.made += 1
            if call.made == call.target:
                ended.append(lease_id)
                del self.calls[lease_id]
        self.admitted = self.admitted_tokens = 0
        return Moved(duration_ns, 1, service, tuple(ended), tuple(preempted))

    def mark_begun(self) -> None:
        for call in self.calls.values():
            if call.to_prefill > 0:
                return
            call.begun = True

    def grow(self, in_order: Callable[[list[str]], list[str]]) -> list[tuple[str, int]]:
        if self.wanted() <= self.free_blocks:
            for call in self.calls.values():
                call.blocks += self.wanted_by(call)
            return []
        preempted: list[tuple[str, int]] = []
        order = in_order(list(self.calls))
        place = 0
        while place < len(order):
            call = self.calls[order[place]]
            if self.wanted_by(call) <= self.free_blocks:
                call.blocks += self.wanted_by(call)
                place += 1
            else:
                last = order.pop()
                preempted.append((last, self.calls.pop(last).made))
        return preempted

    def wanted(self) -> int:
        return sum(self.wanted_by(call) for call in self.calls.values())

    def wanted_by(self, call: Sequences) -> int:
        if not call.begun:
            return 0
        return call.count * -(-(call.prompt + call.made + 1) // self.profile.block_tokens) - call.blocks


class Stepper(Simulation):
    """A simulation that steps every iteration, tells the core of every token, and looks at the queue after each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reports_all, self._reports_late = True, False

    def _create_batch(self, profile: EngineProfile) -> Batch:
        return StepBatch(profile)  # type: ignore[return-value]
