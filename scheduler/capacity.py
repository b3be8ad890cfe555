"""What the core knows of one replica: its limits, the calls it holds, its open offer.

The ledger is kept from grants and ends, and corrected by the replica's reports. Laws: a lease is in the ledger of
exactly one replica from its grant to its end; at each grant, sequences stay within the replica's slots and the
projected peak within the pool less the watermark, except that a call larger than that runs alone. (A call that
outlives its prediction can carry the peak beyond later; the engine then preempts in the scheduler's order.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.admission import Holding, projected_peak_tokens
from scheduler.types import EngineLimits


@dataclass(slots=True)
class Replica:
    """One replica's ledger."""

    replica_id: str
    limits: EngineLimits
    watermark: float
    holdings: dict[str, Holding] = field(default_factory=dict)
    foreign_tokens: int = 0
    offered_grants: int = 0

    @property
    def admissible_tokens(self) -> int:
        """Tokens that admission may fill: the pool less the part kept free for growth."""
        return int(self.limits.pool_tokens * (1.0 - self.watermark))

    @property
    def held_tokens(self) -> int:
        return sum(holding.sequences * holding.held_tokens for holding in self.holdings.values())

    @property
    def sequences(self) -> int:
        return sum(holding.sequences for holding in self.holdings.values())

    def can_ever_hold(self, prompt_tokens: int) -> bool:
        """Could a sequence with this prompt make at least one token on an empty replica?"""
        return prompt_tokens + 1 <= min(self.limits.max_model_len, self.limits.pool_tokens)

    def fits(self, call: Holding) -> bool:
        """May this call be admitted beside those already held?"""
        if not self.holdings:
            return True
        if self.sequences + call.sequences > self.limits.max_sequences:
            return False
        peak = projected_peak_tokens([*self.holdings.values(), call], self.limits.block_tokens)
        return peak + self.foreign_tokens <= self.admissible_tokens

    def observe(self, kv_used_tokens: int, running: set[str]) -> None:
        """Note KV in use that no running lease explains, such as aborted calls the engine has not freed."""
        block = self.limits.block_tokens
        explained = sum(
            holding.sequences * -(-holding.held_tokens // block) * block
            for lease_id, holding in self.holdings.items()
            if lease_id in running
        )
        self.foreign_tokens = max(0, kv_used_tokens - explained)
