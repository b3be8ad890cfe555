"""An iteration-level model of a batching engine with paged KV memory (as vLLM is one).

One iteration is, in this order:

1. Admission. The first waiting sequence is admitted while the blocks for its prompt, the tokens it has made
   and one more are free, a place in the batch is free, and the iteration stays within its prefill budget (a
   larger prefill only as the first admitted). The first that does not fit ends the round. A prefill covers
   the prompt and, after a preemption, the tokens already made (preemption is recomputation).
2. Duration and service are fixed over the whole batch:
   `base + per_sequence · sequences + per_prefill_token · prefilled` seconds, and the sum of p + done + 1
   token-iterations.
3. Growth. In order, each sequence takes the block its next token needs; while none is free the last in order
   (itself included) is preempted: its blocks are freed, it waits at its old place and makes no token.
4. Each remaining sequence makes one token. Those that end free their blocks.

The order everywhere is (priority, order of arrival), smallest first. Laws: used and free blocks add up to
the pool; a sequence outside the batch holds none; the first in order is never preempted, so a step of an
engine that is not idle always makes a token. Prefixes are not shared. There is no clock here: the caller adds
up the durations.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

SequenceId = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Size and speed of an engine. Raises ValueError when a size is below 1 or a time below 0.

    `chunked_prefill` and the prefix cache (`prefix_cache_blocks` hashes, each of `prefix_block_tokens` tokens; 0 for
    none) are of `scheduler.sim.batch`.
    """

    block_tokens: int = 16
    usable_blocks: int = 459
    max_sequences: int = 256
    prefill_tokens_per_iteration: int = 2048
    base_s: float = 0.022
    per_sequence_s: float = 0.00012
    per_prefill_token_s: float = 0.0001
    max_model_len: int = 7344
    chunked_prefill: bool = False
    prefix_cache_blocks: int = 0
    prefix_block_tokens: int = 64

    def __post_init__(self) -> None:
        sizes = (
            "block_tokens",
            "usable_blocks",
            "max_sequences",
            "prefill_tokens_per_iteration",
            "max_model_len",
            "prefix_block_tokens",
        )
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.prefix_cache_blocks < 0:
            raise ValueError(f"prefix_cache_blocks must not be negative, got {self.prefix_cache_blocks}")
        for name in ("base_s", "per_sequence_s", "per_prefill_token_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")

    @property
    def pool_tokens(self) -> int:
        """M, the KV pool in tokens."""
        return self.usable_blocks * self.block_tokens

    @property
    def longest_sequence_tokens(self) -> int:
        """The longest sequence, prompt and output together, that can ever finish."""
        return min(self.max_model_len, self.pool_tokens)

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def duration_s(self, sequences: int, prefilled_tokens: int) -> float:
        """Seconds of one iteration over `sequences` sequences of which `prefilled_tokens` are prefilled."""
        return self.base_s + self.per_sequence_s * sequences + self.per_prefill_token_s * prefilled_tokens


REFERENCE = EngineProfile()
"""The reference engine: an A100 with LLaMA-7B, M = 7,344 tokens."""


@dataclass(frozen=True, slots=True)
class IterationOutcome:
    """What one iteration did. Every tuple is in the engine's order; `finished` is a part of `produced`.

    `sequences` were in the batch, of which `prefilled_tokens` were computed anew.
    """

    duration_s: float
    served_token_iterations: int
    produced: tuple[SequenceId, ...]
    finished: tuple[SequenceId, ...]
    preempted: tuple[SequenceId, ...]
    sequences: int = field(default=0, compare=False)
    prefilled_tokens: int = field(default=0, compare=False)


@dataclass(slots=True, order=True)
class _Sequence:
    """A sequence in the engine; compares by its place in the order."""

    priority: float
    number: int
    sequence_id: SequenceId = field(compare=False)
    prompt_tokens: int = field(compare=False)
    output_tokens: int = field(compare=False)
    done_tokens: int = field(default=0, compare=False)
    blocks: int = field(default=0, compare=False)

    @property
    def held_tokens(self) -> int:
        """p + done: what a prefill computes."""
        return self.prompt_tokens + self.done_tokens


class BatchEngine:
    """The engine's state between iterations; `add` and `abort` come between two steps."""

    def __init__(self, profile: EngineProfile = REFERENCE) -> None:
        self.profile = profile
        self._free_blocks = profile.usable_blocks
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._waiting: list[_Sequence] = []
        self._running: list[_Sequence] = []
        self._arrivals = 0

    @property
    def used_blocks(self) -> int:
        return self.profile.usable_blocks - self._free_blocks

    @property
    def idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return not self._sequences

    @property
    def running(self) -> tuple[SequenceId, ...]:
        """The batch, in order."""
        return tuple(sequence.sequence_id for sequence in self._running)

    @property
    def waiting(self) -> tuple[SequenceId, ...]:
        """The queue, in order."""
        return tuple(sequence.sequence_id for sequence in self._waiting)

    def done_tokens(self, sequence_id: SequenceId) -> int:
        """Tokens made so far by a sequence still in the engine; raises KeyError for any other."""
        return self._sequences[sequence_id].done_tokens

    def add(self, sequence_id: SequenceId, prompt_tokens: int, output_tokens: int, priority: float = 0) -> None:
        """Queue a sequence of p prompt tokens that makes d output tokens.

        Raises ValueError when the engine holds the id already, when p < 0 or d < 1, or when p + d never fit.
        """
        if sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id!r} is in the engine already")
        if prompt_tokens < 0 or output_tokens < 1:
            raise ValueError(f"need p >= 0 and d >= 1, got p = {prompt_tokens}, d = {output_tokens}")
        longest = self.profile.longest_sequence_tokens
        if prompt_tokens + output_tokens > longest:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens never fit: at most {longest}")
        sequence = _Sequence(priority, self._arrivals, sequence_id, prompt_tokens, output_tokens)
        self._arrivals += 1
        self._sequences[sequence_id] = sequence
        insort(self._waiting, sequence)

    def abort(self, sequence_id: SequenceId) -> bool:
        """Drop a sequence and free its blocks; False when the engine does not hold it."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return False
        _remove(self._running if sequence.blocks else self._waiting, sequence)
        self._release(sequence)
        return True

    def step(self) -> IterationOutcome:
        """Run one iteration; raises RuntimeError on an idle engine."""
        if self.idle:
            raise RuntimeError("an idle engine has no iteration to run")
        prefilled_tokens = self._admit()
        sequences = len(self._running)
        duration_s = self.profile.duration_s(sequences, prefilled_tokens)
        served = sum(sequence.held_tokens + 1 for sequence in self._running)
        preempted = tuple(self._grow())
        produced = self.running
        finished = tuple(self._produce())
        return IterationOutcome(duration_s, served, produced, finished, preempted, sequences, prefilled_tokens)

    def _admit(self) -> int:
        """Move waiting sequences into the batch; returns the tokens prefilled."""
        prefilled_tokens = admitted = 0
        for sequence in self._waiting:
            prefill_tokens = prefilled_tokens + sequence.held_tokens
            over_budget = admitted and prefill_tokens > self.profile.prefill_tokens_per_iteration
            blocks = self.profile.blocks_of(sequence.held_tokens + 1)
            if over_budget or blocks > self._free_blocks or len(self._running) >= self.profile.max_sequences:
                break
            self._take(sequence, blocks)
            insort(self._running, sequence)
            prefilled_tokens = prefill_tokens
            admitted += 1
        del self._waiting[:admitted]
        return prefilled_tokens

    def _grow(self) -> Iterator[SequenceId]:
        """Give each sequence the block of its next token, in order; yields the preempted."""
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            wanted_blocks = self.profile.blocks_of(sequence.held_tokens + 1) - sequence.blocks
            if wanted_blocks <= self._free_blocks:
                self._take(sequence, wanted_blocks)
                position += 1
            else:
                yield self._preempt_last()

    def _preempt_last(self) -> SequenceId:
        sequence = self._running.pop()
        self._release(sequence)
        insort(self._waiting, sequence)
        return sequence.sequence_id

    def _produce(self) -> Iterator[SequenceId]:
        """Make one token a sequence of the batch; yields those that end."""
        staying = []
        for sequence in self._running:
            sequence.done_tokens += 1
            if sequence.done_tokens < sequence.output_tokens:
                staying.append(sequence)
                continue
            self._release(sequence)
            del self._sequences[sequence.sequence_id]
            yield sequence.sequence_id
        self._running = staying

    def _take(self, sequence: _Sequence, blocks: int) -> None:
        sequence.blocks += blocks
        self._free_blocks -= blocks

    def _release(self, sequence: _Sequence) -> None:
        self._free_blocks += sequence.blocks
        sequence.blocks = 0


def _remove(ordered: list[_Sequence], sequence: _Sequence) -> None:
    del ordered[bisect_left(ordered, sequence)]
