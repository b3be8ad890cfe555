"""The running batch of one engine, moved on by many iterations at a time.

It is the engine model of `scheduler.sim.engine`, iteration for iteration: admission takes the blocks of p + done + 1
tokens; an iteration lasts `base + per_sequence·n + per_prefill_token·prefilled` and serves the sum of p + done + 1;
then each sequence takes the block that its next token needs and makes one token. Between two moments at which a
sequence enters, ends or finds no block, all of this is arithmetic: a sequence needs a block in every B-th iteration, so
that the engine counts sequences by the residue of the iteration in which they do.

Time is in whole nanoseconds, so that many iterations at once last exactly as long as one by one. Laws: used and free
blocks add up to the pool; `jump` never passes an end, a shortage or the end of a prefill.

Engines with `chunked_prefill` take at most `prefill_tokens_per_iteration` tokens an iteration, decoding sequences
included; a sequence makes its first token in the iteration that ends its prefill. Others prefill a whole call in the
iteration that admits it. `prefix_cache_blocks` hashes of prompt blocks are remembered, least recently used first out:
what they cover need not be computed again, but is held in memory all the same.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.sim.engine import EngineProfile

NS = 1_000_000_000


@dataclass(slots=True)
class Member:
    """A call in the batch. `done_tokens` were made before iteration `entered`, the first in which it makes one."""

    lease_id: str
    prompt_tokens: int
    output_tokens: int
    sequences: int
    done_tokens: int
    entered: int
    prefill_left: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Moved:
    """What some iterations did: leases that ended, and those that were preempted with the tokens they had made."""

    duration_ns: int
    iterations: int
    service: int
    ended: tuple[str, ...]
    preempted: tuple[tuple[str, int], ...] = ()


class Batch:
    """The batch between two iterations; `iterations` counts those that are over."""

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.iterations = 0
        self.free_blocks = profile.usable_blocks
        self.sequences = 0
        self.prefilled_tokens = 0
        self._base_ns = round(profile.base_s * NS)
        self._per_sequence_ns = round(profile.per_sequence_s * NS)
        self._per_prefill_token_ns = round(profile.per_prefill_token_s * NS)
        self._members: dict[str, Member] = {}
        self._prefilling: list[Member] = []
        self._fresh: list[Member] = []
        self._growing = [0] * profile.block_tokens
        self._ends: list[tuple[int, str, int]] = []
        self._held_tokens = 0
        self._decoding = 0
        self._admitted = 0
        self._admitted_tokens = 0
        self._cache: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._members

    @property
    def used_blocks(self) -> int:
        return self.profile.usable_blocks - self.free_blocks

    @property
    def leases(self) -> list[str]:
        """The calls in the batch, in order of admission."""
        return list(self._members)

    def made_tokens(self, lease_id: str) -> int:
        """Tokens that each sequence of a call has made, those before it entered included."""
        return self._made(self._members[lease_id])

    # ---- admission

    def fits(self, prompt_tokens: int, done_tokens: int, sequences: int) -> bool:
        """May a call of p prompt tokens that has made `done_tokens` enter the coming iteration?"""
        profile = self.profile
        tokens = prompt_tokens + done_tokens
        if sequences * profile.blocks_of(tokens + 1) > self.free_blocks:
            return False
        if self.sequences + sequences > profile.max_sequences:
            return False
        budget = profile.prefill_tokens_per_iteration
        if profile.chunked_prefill:
            return self._decoding + sum(member.prefill_left for member in self._prefilling) < budget
        return self._admitted == 0 or self._admitted_tokens + sequences * tokens <= budget

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
        """Put a call that fits into the coming iteration."""
        tokens = prompt_tokens + done_tokens
        blocks = sequences * self.profile.blocks_of(tokens + 1)
        prefill = max(sequences * tokens - self._cached_tokens(prefix, prompt_tokens), 0)
        member = Member(lease_id, prompt_tokens, output_tokens, sequences, done_tokens, -1, prefill, blocks)
        self._members[lease_id] = member
        self.free_blocks -= blocks
        self.sequences += sequences
        self._admitted += 1
        self._admitted_tokens += sequences * tokens
        self._prefilling.append(member)

    def _cached_tokens(self, prefix: tuple[int, ...], prompt_tokens: int) -> int:
        """Prompt tokens of which the cache holds the computation; the prompt is in the cache from here on."""
        if not self.profile.prefix_cache_blocks:
            return 0
        matched = next((place for place, block in enumerate(prefix) if block not in self._cache), len(prefix))
        for block in prefix:
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > self.profile.prefix_cache_blocks:
            self._cache.popitem(last=False)
        return min(matched * self.profile.prefix_block_tokens, max(prompt_tokens - 1, 0))

    # ---- iterations

    def longest_jump(self) -> int:
        """Iterations up to the next end, shortage or end of a prefill, at least 1; of an idle batch 0."""
        if not self._members:
            return 0
        if self._prefilling or self._fresh or not self._decoding:
            return 1
        most = self._next_end() - self.iterations
        return max(min(most, self._until_shortage(most)), 1)

    def duration_ns(self, iterations: int) -> int:
        """How long the coming iterations last; several only where `longest_jump` allows them."""
        return iterations * self._usual_ns() + self._chunk() * self._per_prefill_token_ns

    def iterations_within(self, span_ns: int) -> int:
        """The fewest coming iterations that last at least `span_ns`."""
        first_ns = self.duration_ns(1)
        if span_ns <= first_ns:
            return 1
        return 1 - (-(span_ns - first_ns) // self._usual_ns())

    def iterations_before(self, service: float) -> int:
        """Whole coming iterations that together serve less than this, in a batch that stays as it is."""
        fixed, growth = self._held_now() + self.sequences, self.sequences - sum(m.sequences for m in self._prefilling)
        low, high = 0, int(service // fixed) + 1
        while low < high:
            middle = (low + high + 1) // 2
            if middle * fixed + growth * middle * (middle - 1) // 2 < service:
                low = middle
            else:
                high = middle - 1
        return low

    def falls_short(self, iterations: int) -> bool:
        """Are there fewer free blocks than so many iterations need? Then the order says who loses its own."""
        return self._blocks_wanted(iterations) > self.free_blocks

    def run(self, iterations: int, in_order: Callable[[list[str]], list[str]]) -> Moved:
        """Do so many iterations, at most `longest_jump`. `in_order` puts leases into the policy's order."""
        duration_ns = self.duration_ns(iterations)
        self._prefill()
        ready = self.sequences - sum(member.sequences for member in self._prefilling)
        growth = ready * iterations * (iterations - 1) // 2
        service = iterations * (self._held_now() + self.sequences) + growth
        preempted = self._grow(iterations, in_order)
        self._make_tokens(iterations)
        return Moved(duration_ns, iterations, service, tuple(self._take_ended()), preempted)

    def _usual_ns(self) -> int:
        return self._base_ns + self._per_sequence_ns * self.sequences

    def _chunk(self) -> int:
        """Tokens that the coming iteration prefills."""
        left = sum(member.prefill_left for member in self._prefilling)
        if not self.profile.chunked_prefill:
            return left
        return min(left, max(self.profile.prefill_tokens_per_iteration - self._decoding, 1))

    def _prefill(self) -> None:
        """Spend the iteration's chunk; calls whose prefill ends make a token in this iteration."""
        chunk = self._chunk()
        self.prefilled_tokens += chunk
        while self._prefilling and self._prefilling[0].prefill_left <= chunk:
            member = self._prefilling.pop(0)
            chunk -= member.prefill_left
            member.prefill_left = 0
            self._begin(member)
        if self._prefilling:
            self._prefilling[0].prefill_left -= chunk

    def _begin(self, member: Member) -> None:
        member.entered = self.iterations
        self._held_tokens += member.sequences * (member.prompt_tokens + member.done_tokens)
        self._decoding += member.sequences
        self._fresh.append(member)
        ends = self.iterations + member.output_tokens - member.done_tokens
        heapq.heappush(self._ends, (ends, member.lease_id, member.entered))

    def _held_now(self) -> int:
        waiting = sum(m.sequences * (m.prompt_tokens + m.done_tokens) for m in self._prefilling)
        return self._held_tokens + waiting

    def _grow(self, iterations: int, in_order: Callable[[list[str]], list[str]]) -> tuple[tuple[str, int], ...]:
        wanted = self._blocks_wanted(iterations)
        if wanted <= self.free_blocks:
            self.free_blocks -= wanted
            return ()
        return tuple(self._grow_in_order(in_order(list(self._members))))

    def _grow_in_order(self, order: list[str]) -> list[tuple[str, int]]:
        """One iteration in which blocks are short: in order, each takes its block or the last in order goes."""
        preempted = []
        place = 0
        while place < len(order):
            member = self._members[order[place]]
            wanted = member.sequences if self._grows_now(member) else 0
            if wanted <= self.free_blocks:
                self.free_blocks -= wanted
                place += 1
                continue
            last = self._members[order.pop()]
            preempted.append((last.lease_id, self._made(last)))
            self._remove(last)
        return preempted

    def _make_tokens(self, iterations: int) -> None:
        self._held_tokens += self._decoding * iterations
        self.iterations += iterations
        for member in self._fresh:
            if self._members.get(member.lease_id) is member:
                self._growing[self._residue(member)] += member.sequences
        self._fresh.clear()
        self._admitted = self._admitted_tokens = 0

    def _take_ended(self) -> list[str]:
        ended = []
        while self._ends and self._ends[0][0] <= self.iterations:
            _, lease_id, entered = heapq.heappop(self._ends)
            member = self._members.get(lease_id)
            if member is not None and member.entered == entered:
                ended.append(lease_id)
                self._remove(member)
        return ended

    # ---- blocks

    def _residue(self, member: Member) -> int:
        """It needs a block in iterations of this number, modulo the block size: there it holds whole blocks."""
        return (member.entered - member.prompt_tokens - member.done_tokens) % self.profile.block_tokens

    def _grows_now(self, member: Member) -> bool:
        decoding_before = 0 <= member.entered < self.iterations
        return decoding_before and self.iterations % self.profile.block_tokens == self._residue(member)

    def _blocks_wanted(self, iterations: int) -> int:
        size = self.profile.block_tokens
        rounds, rest = divmod(iterations, size)
        begin = self.iterations % size
        wanted = rounds * sum(self._growing) if rounds else 0
        return wanted + sum(self._growing[(begin + step) % size] for step in range(rest))

    def _until_shortage(self, most: int) -> int:
        """Whole iterations that the free blocks last for, at most `most`."""
        size = self.profile.block_tokens
        a_round = sum(self._growing)
        rounds = min(self.free_blocks // a_round, most // size)
        left = self.free_blocks - rounds * a_round
        steps = rounds * size
        while steps < most:
            left -= self._growing[(self.iterations + steps) % size]
            if left < 0:
                break
            steps += 1
        return steps

    def _next_end(self) -> int:
        while True:
            ends, lease_id, entered = self._ends[0]
            member = self._members.get(lease_id)
            if member is not None and member.entered == entered:
                return ends
            heapq.heappop(self._ends)

    def _made(self, member: Member) -> int:
        return member.done_tokens + (self.iterations - member.entered if member.entered >= 0 else 0)

    def _remove(self, member: Member) -> None:
        """Take a call out and free its blocks."""
        del self._members[member.lease_id]
        self.sequences -= member.sequences
        if member.entered < 0:
            self.free_blocks += member.blocks
            self._prefilling.remove(member)
            return
        held = member.prompt_tokens + self._made(member)
        self._held_tokens -= member.sequences * held
        self._decoding -= member.sequences
        if member.entered < self.iterations:
            self._growing[self._residue(member)] -= member.sequences
            self.free_blocks += member.sequences * self.profile.blocks_of(held)
        else:
            self.free_blocks += member.blocks
