"""DLPM, deficit longest prefix match: prompts whose beginning is cached first, as long as that stays fair.

Running calls with a common prefix one after another saves computing it again; doing only that starves whoever shares
nothing. So each flow has a deficit (Cao et al., "Locality-aware Fair Scheduling in LLM Serving", arXiv:2501.14312,
DLPM):
- among the waiting calls of flows that have something left of their deficit, the one with the longest cached prefix is
  next; equal matches in order of readiness;
- a flow is charged prompt_weight (1) for each prompt token that has to be computed when a call is admitted, again at a
  re-admission, and output_weight (2) for each output token when it is made;
- when no backlogged flow has anything left, all get a quantum times their weight, as often as it takes for one of them.
  No refill takes anybody above one quantum, so that nobody saves up.

Leaving and returning: a flow that becomes active (has an application in the system; the paper: a request) begins at 0,
and so with the next round; a debt from before is remembered until the rounds have paid for it, or nobody is active.

Where prefixes are cached is this policy's own model: one cache for all replicas, which keeps the `cache_blocks` most
recently used blocks (65,536) of `block_tokens` tokens each (16); it learns from grants, and of prompts only. The paper
reads the engine's radix tree. The quantum, which the paper leaves open, is 4,096 here: larger ones keep more locality,
smaller ones are fairer. Calls without prefixes match nothing and go in order of readiness.

A flow is an application or a tenant, as the operator set it, and w its weight.

Defining property: for flows that are backlogged throughout an interval, |W_f/w_f − W_g/w_g| ≤
2·(quantum + U/min(w)), U = max(prompt_weight·L_input, output_weight·M), with W as it is charged, L_input the longest
prompt and M the tokens of calls that run at once. Each operation is O(log n + blocks of the prompt); a grant also moves
the waiting calls whose match it changes, each in O(log n), because the order is by what is cached.
"""

from __future__ import annotations

from scheduler.policies.locality import LocalityPolicy, require_positive
from scheduler.policies.prefix_cache import PrefixCache


class Dlpm(LocalityPolicy):
    """Longest cached prefix first among flows whose deficit lasts; one cache."""

    name = "dlpm"
    summary = "the longest cached prefix, of flows that have not used up their quantum"
    paper = "DLPM (Cao et al., arXiv:2501.14312)"

    def __init__(
        self,
        *,
        quantum: float = 4096,
        prompt_weight: float = 1,
        output_weight: float = 2,
        block_tokens: int = 16,
        cache_blocks: int = 65536,
    ) -> None:
        super().__init__(quantum, prompt_weight, output_weight, block_tokens)
        require_positive(cache_blocks=cache_blocks)
        self._cache = PrefixCache(int(cache_blocks))

    def matched(self, prefix: tuple[int, ...]) -> int:
        return self._cache.match(prefix)

    def compute(self, prefix: tuple[int, ...], replica_id: str) -> tuple[int, list[int]]:
        return self._cache.match(prefix), self._cache.touch(prefix)
