"""What the core knows of one replica: its limits, the calls it holds, its open offer.

The ledger is kept from grants and ends, and corrected by the replica's reports. Laws: a lease is in the ledger of
exactly one replica from its grant to its end; at each grant, sequences stay within the replica's slots and the
projected peak within the pool less the watermark, except that a call larger than that runs alone. (A call that
outlives its prediction can carry the peak beyond later; the engine then preempts in the scheduler's order.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.admission import Holding, bound_tokens, projected_peak_tokens
from scheduler.settings import Admission
from scheduler.types import EngineLimits


@dataclass(slots=True)
class Replica:
    """One replica's ledger."""

    replica_id: str
    limits: EngineLimits
    watermark: float
    admission: Admission = Admission.PROJECTED_PEAK
    foreign_tokens: int = 0
    offered_grants: int = 0
    held_tokens: int = 0
    sequences: int = 0
    _holdings: dict[str, Holding] = field(default_factory=dict)
    _bound_tokens: int = 0
    _refused: tuple[Holding, int] | None = None

    @property
    def holdings(self) -> Mapping[str, Holding]:
        """What it holds by lease, to look at; `held_tokens` and `sequences` are sums over it."""
        return self._holdings

    @property
    def admissible_tokens(self) -> int:
        """Tokens that admission may fill: the pool less the part kept free for growth."""
        return int(self.limits.pool_tokens * (1.0 - self.watermark))

    def hold(self, lease_id: str, holding: Holding) -> None:
        """Enter a lease, or what is known of it by now."""
        self.strike(lease_id)
        self._holdings[lease_id] = holding
        self._count(holding, 1)

    def strike(self, lease_id: str) -> None:
        """Take a lease out, if it is there."""
        holding = self._holdings.pop(lease_id, None)
        if holding is not None:
            self._count(holding, -1)

    def _count(self, holding: Holding, times: int) -> None:
        self._refused = None
        self.sequences += times * holding.sequences
        self.held_tokens += times * holding.sequences * holding.held_tokens
        self._bound_tokens += times * bound_tokens(holding, self.limits.block_tokens)

    def has_place(self, call: Holding) -> bool:
        """Whether its slots alone would take this call: a first look, before memory is looked at."""
        unjudged = not self._holdings or self.admission is Admission.ENGINE
        return unjudged or self.sequences + call.sequences <= self.limits.max_sequences

    def can_ever_hold(self, prompt_tokens: int) -> bool:
        """Could a sequence with this prompt make at least one token on an empty replica?"""
        return prompt_tokens + 1 <= min(self.limits.max_model_len, self.limits.pool_tokens)

    def fits(self, call: Holding) -> bool:
        """May this call be admitted beside those already held?"""
        if not self._holdings or self.admission is Admission.ENGINE:
            return True
        if not self.has_place(call):
            return False
        room_tokens = self.admissible_tokens - self.foreign_tokens
        if self._bound_tokens + bound_tokens(call, self.limits.block_tokens) <= room_tokens:
            return True
        if self._refused == (call, room_tokens):
            return False  # nothing has changed since
        fits = projected_peak_tokens([*self._holdings.values(), call], self.limits.block_tokens) <= room_tokens
        self._refused = None if fits else (call, room_tokens)
        return fits

    def observe(self, kv_used_tokens: int, running: set[str]) -> None:
        """Note KV in use that no running lease explains, such as aborted calls the engine has not freed."""
        block = self.limits.block_tokens
        explained = sum(
            holding.sequences * -(-holding.held_tokens // block) * block
            for lease_id, holding in self._holdings.items()
            if lease_id in running
        )
        self.foreign_tokens = max(0, kv_used_tokens - explained)
