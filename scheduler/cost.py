"""What a call costs: the KV memory it holds, times the iterations it holds it for.

A cost model is a value, a function of a call's prompt and of what each of its sequences produced; the core is
given one. Costs add up: an application's cost is the sum over its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

CostModel = Callable[[int, Iterable[int]], float]
"""(prompt tokens, output tokens of each sequence) -> token-iterations."""


def kv_token_time(prompt_tokens: int, output_tokens: int, shared_tokens: int = 0) -> int:
    """KV memory a sequence holds over its life, in token-iterations.

    Sum over decode step i = 1..d of (p − s + i) = (p − s)·d + d·(d + 1)/2, with p prompt tokens, s of them in
    blocks shared with another sequence, and d output tokens (Justitia, arXiv:2510.17015, eq. 1; the shared term
    is ours). Raises ValueError when a count is negative or s > p.
    """
    if not 0 <= shared_tokens <= prompt_tokens or output_tokens < 0:
        raise ValueError(f"impossible counts: p={prompt_tokens}, d={output_tokens}, s={shared_tokens}")
    return (prompt_tokens - shared_tokens) * output_tokens + output_tokens * (output_tokens + 1) // 2


def memory_cost(prompt_tokens: int, output_tokens: Iterable[int]) -> float:
    """KV token-time of a call: the sum of `kv_token_time` over its sequences."""
    return float(sum(kv_token_time(prompt_tokens, tokens) for tokens in output_tokens))
