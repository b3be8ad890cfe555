"""What a call costs: functions of its prompt and of what each of its sequences produced.

A cost function is a value, given to the core and to the policies that count service. Costs add up: an application's
cost is the sum over its calls. Every function grows with each token of each sequence, and is 0 for a call that has
made nothing unless it charges for prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

CostModel = Callable[[int, Iterable[int]], float]
"""(prompt tokens, output tokens of each sequence) -> cost in the function's own unit."""


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
    """KV token-time of a call: the sum of `kv_token_time` over its sequences. Token-iterations."""
    return float(sum(kv_token_time(prompt_tokens, tokens) for tokens in output_tokens))


def linear_cost(prompt_tokens: int, output_tokens: Iterable[int]) -> float:
    """p + 2·Σd: input tokens once, output tokens twice, as prices have it (VTC, OSDI 2024, w_p = 1 and w_q = 2)."""
    return float(prompt_tokens + 2 * sum(output_tokens))


def profile_cost(prompt_tokens: int, output_tokens: Iterable[int]) -> float:
    """What VTC's authors fitted to the measured times of an engine (OSDI 2024, appendix B), in its unit.

    Per sequence 2.1·p + d + 0.04·p·d + 0.032·d² + 11.46.
    """
    return sum(2.1 * prompt_tokens + d + 0.04 * prompt_tokens * d + 0.032 * d * d + 11.46 for d in output_tokens)


COSTS: Mapping[str, CostModel] = {"kv_time": memory_cost, "linear": linear_cost, "profile": profile_cost}
"""The cost functions by the names that settings use."""
