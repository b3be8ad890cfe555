"""How long an engine's iterations last and how many tokens fit, from the data sheet of a card and a model's shape.

One iteration reads all weights once, reads the keys and values of every sequence, and computes what it prefills:

    base_s              = bytes of the weights / (bandwidth · BANDWIDTH_SHARE) + seconds of all-reduce
    per_sequence_s      = KV bytes of a context / (bandwidth · BANDWIDTH_SHARE) + SEQUENCE_OVERHEAD_S
    per_prefill_token_s = 2 · parameters / (FLOP/s · the card's share of it)
    pool                = memory · MEMORY_SHARE − weights − ACTIVATIONS_BYTES, of every card, in blocks

Bandwidth and FLOP/s of cards that share a model add up; each layer then waits for two all-reduces. A sequence's KV is
layers · kv heads · head dimension · 2 (keys and values) · 2 bytes a token. What is left out: attention in prefill
(quadratic; under a tenth of the work below 4,000 tokens), and that decoding tokens compute too, which costs nothing
as long as reading the weights takes longer.

What is measured elsewhere, and what is ours: the shares of bandwidth and FLOP/s are read off published runs
(`PUBLISHED` in `scheduler.sim.engines` has them beside what this arithmetic says); the overheads, the activations and
the context at which attention is charged are our estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.sim.engine import EngineProfile

GIB = 2**30
BYTES_PER_NUMBER = 2
"""float16 or bfloat16, of weights and of KV."""

MEMORY_SHARE = 0.9
"""vLLM's default `gpu_memory_utilization`."""
ACTIVATIONS_BYTES = 1.5 * GIB
"""Of a card, for activations and CUDA graphs; an estimate."""
BANDWIDTH_SHARE = 0.75
"""Of the data sheet's memory bandwidth: vLLM reads Llama-3.1-8B on an A100-40GB at 0.77 of it, on an H100 at 0.74;
LMDeploy reads Llama-2-13B on an A100-80GB at 0.73."""
SEQUENCE_OVERHEAD_S = 20e-6
"""Sampling and bookkeeping for a sequence in an iteration; an estimate, in keeping with batches of 1 to 384."""
ALL_REDUCE_S = 30e-6
"""One all-reduce of a small tensor among the cards of a node over NVLink; an estimate."""
MEAN_CONTEXT_TOKENS = 1024
"""Tokens that a sequence holds on average, at which profiles charge attention; an estimate for agents' calls."""
BLOCK_TOKENS = 16
PREFIX_BLOCK_TOKENS = 64
"""Tokens of a hashed block of a prompt's beginning, as workloads and ingresses make them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator as its maker describes it; `compute_share` of its dense half-precision FLOP/s do prefill."""

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flop_per_s: float
    compute_share: float


A100_40GB = Card(
    name="A100-SXM4-40GB",
    memory_bytes=40 * GIB,
    bandwidth_bytes_per_s=1555e9,
    flop_per_s=312e12,
    compute_share=0.65,
)
A100_80GB = Card(
    name="A100-SXM4-80GB",
    memory_bytes=80 * GIB,
    bandwidth_bytes_per_s=2039e9,
    flop_per_s=312e12,
    compute_share=0.65,
)
"""Share of FLOP/s: TensorRT-LLM prefills 2,048 tokens of LLaMA-7B in 133 ms (0.66), LMDeploy in 139 ms (0.64)."""
H100_80GB = Card(
    name="H100-SXM5-80GB",
    memory_bytes=80 * GIB,
    bandwidth_bytes_per_s=3350e9,
    flop_per_s=989e12,
    compute_share=0.55,
)
"""Share of FLOP/s: an estimate; TensorRT-LLM in FP8, of which the peak is twice as high, prefills Llama-3.1-8B at 0.45
of it with decoding beside."""
V100_32GB = Card(
    name="V100-SXM2-32GB",
    memory_bytes=32 * GIB,
    bandwidth_bytes_per_s=900e9,
    flop_per_s=125e12,
    compute_share=0.5,
)
"""Share of FLOP/s: an estimate, below the A100's since FlashAttention-2 does not run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a model's configuration says of its size."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    max_model_len: int

    @property
    def weight_bytes(self) -> float:
        return self.parameters * BYTES_PER_NUMBER

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.layers * self.kv_heads * self.head_dim * 2 * BYTES_PER_NUMBER


LLAMA2_7B = ModelShape(name="Llama-2-7B", parameters=6.74e9, layers=32, kv_heads=32, head_dim=128, max_model_len=4096)
LLAMA2_13B = ModelShape(
    name="Llama-2-13B", parameters=13.02e9, layers=40, kv_heads=40, head_dim=128, max_model_len=4096
)
LLAMA3_8B = ModelShape(
    name="Llama-3.1-8B", parameters=8.03e9, layers=32, kv_heads=8, head_dim=128, max_model_len=131072
)


def kv_pool_blocks(card: Card, model: ModelShape, cards: int = 1) -> int:
    """Whole blocks that the memory left by weights and activations holds; ValueError where there is none."""
    left_bytes = cards * (card.memory_bytes * MEMORY_SHARE - ACTIVATIONS_BYTES) - model.weight_bytes
    blocks = int(left_bytes // (model.kv_bytes_per_token * BLOCK_TOKENS))
    if blocks < 1:
        raise ValueError(f"{model.name} leaves no memory for KV on {cards} × {card.name}")
    return blocks


def modern_profile(
    card: Card,
    model: ModelShape,
    *,
    cards: int = 1,
    prefill_tokens_per_iteration: int = 2048,
    max_sequences: int = 256,
    context_tokens: int = MEAN_CONTEXT_TOKENS,
) -> EngineProfile:
    """An engine with chunked prefill and a prefix cache of the size of its pool, which attends to `context_tokens`."""
    bytes_per_s = cards * card.bandwidth_bytes_per_s * BANDWIDTH_SHARE
    all_reduce_s = 2 * model.layers * ALL_REDUCE_S if cards > 1 else 0.0
    blocks = kv_pool_blocks(card, model, cards)
    return EngineProfile(
        block_tokens=BLOCK_TOKENS,
        usable_blocks=blocks,
        max_sequences=max_sequences,
        prefill_tokens_per_iteration=prefill_tokens_per_iteration,
        base_s=model.weight_bytes / bytes_per_s + all_reduce_s,
        per_sequence_s=context_tokens * model.kv_bytes_per_token / bytes_per_s + SEQUENCE_OVERHEAD_S,
        per_prefill_token_s=2 * model.parameters / (cards * card.flop_per_s * card.compute_share),
        max_model_len=model.max_model_len,
        chunked_prefill=True,
        prefix_cache_blocks=blocks * BLOCK_TOKENS // PREFIX_BLOCK_TOKENS,
        prefix_block_tokens=PREFIX_BLOCK_TOKENS,
    )


def steady_tokens_per_s(profile: EngineProfile, batch: int, prompt_tokens: int, output_tokens: int) -> float:
    """Output tokens a second when `batch` equal sequences are always there, their prefill spread over their life."""
    prefilled = batch * prompt_tokens / output_tokens
    iteration_s = profile.base_s + profile.per_sequence_s * batch + profile.per_prefill_token_s * prefilled
    return batch / iteration_s
