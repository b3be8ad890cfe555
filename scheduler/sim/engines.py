"""The engines that a simulation can be asked for by name, and engines that a user describes in JSON.

`reference` is the engine of `scheduler.sim.engine`. The others are `scheduler.sim.roofline`'s arithmetic for a card and
a model; `PUBLISHED` holds what others measured on such engines, so that anyone can see how far the arithmetic is off
(`tests/sim/test_engines.py` does). No published run of four V100 with LLaMA-13B was found that states its batch; that
profile is the arithmetic alone.

A description is one object with fields of `EngineProfile`; a field that is missing has the reference engine's value:

    {"usable_blocks": 1024, "block_tokens": 16, "base_s": 0.012, "per_sequence_s": 0.0001}

A list of engines stands between commas, each a name or a file, with `xN` behind it for N of them:
`a100-llama7bx2,h100-llama8b`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.roofline import (
    A100_40GB,
    A100_80GB,
    H100_80GB,
    LLAMA2_7B,
    LLAMA2_13B,
    LLAMA3_8B,
    V100_32GB,
    Card,
    ModelShape,
    modern_profile,
)

H100_PREFILL_TOKENS = 8192
"""vLLM's default `max_num_batched_tokens` for serving on a card of 70 GiB or more that is no A100; on others 2,048."""

ENGINES: Mapping[str, EngineProfile] = {
    "reference": REFERENCE,
    "a100-llama7b": modern_profile(A100_80GB, LLAMA2_7B),
    "a100-llama8b": modern_profile(A100_80GB, LLAMA3_8B),
    "h100-llama8b": modern_profile(H100_80GB, LLAMA3_8B, prefill_tokens_per_iteration=H100_PREFILL_TOKENS),
    "v100x4-llama13b": modern_profile(V100_32GB, LLAMA2_13B, cards=4),
}
"""Profiles by the names that the command line uses."""

MAX_ENGINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Output tokens a second that someone measured with `batch` sequences of p prompt and d output tokens."""

    source: str
    card: Card
    model: ModelShape
    batch: int
    prompt_tokens: int
    output_tokens: int
    tokens_per_s: float

    @property
    def context_tokens(self) -> int:
        """What a sequence holds on average."""
        return self.prompt_tokens + self.output_tokens // 2


LMDEPLOY = "LMDeploy v0.1.0a1, docs/en/benchmark/a100_fp16.md"
TENSORRT_LLM = "TensorRT-LLM v0.6.1, docs/source/performance.md"
VLLM_A100 = "johnmusgrave.com, vLLM throughput-latency sweep on NVIDIA A100 (vLLM 0.23)"
VLLM_H100 = "InferenceBench, concurrency sweep on one H100 (vLLM 0.21): 6.48 ms a token"


def _published(
    source: str, card: Card, model: ModelShape, rows: tuple[tuple[int, int, int, float], ...]
) -> list[Published]:
    return [
        Published(
            source=source,
            card=card,
            model=model,
            batch=batch,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            tokens_per_s=tokens_per_s,
        )
        for batch, prompt_tokens, output_tokens, tokens_per_s in rows
    ]


PUBLISHED: tuple[Published, ...] = (
    *_published(
        LMDEPLOY,
        A100_80GB,
        LLAMA2_7B,
        (
            (1, 1, 128, 100.02),
            (16, 128, 2048, 1010.62),
            (32, 2048, 128, 450.43),
            (64, 128, 2048, 1852.06),
            (128, 270, 255, 3210.28),  # 3,000 ShareGPT requests, 12.6 a second
        ),
    ),
    *_published(LMDEPLOY, A100_80GB, LLAMA2_13B, ((1, 1, 128, 57.49), (32, 128, 2048, 860.14))),
    *_published(
        TENSORRT_LLM,
        A100_80GB,
        LLAMA2_7B,
        ((384, 128, 128, 5586.0), (60, 128, 2048, 1928.0), (52, 2048, 128, 591.0)),
    ),
    *_published(VLLM_A100, A100_40GB, LLAMA3_8B, ((1, 1024, 128, 75.0),)),
    *_published(VLLM_H100, H100_80GB, LLAMA3_8B, ((1, 1, 128, 154.3),)),
)


class EngineError(ValueError):
    """A description of an engine that cannot be used."""


def parse_engines(names: str, load: Callable[[str], EngineProfile]) -> tuple[EngineProfile, ...]:
    """The engines of a list between commas, with `xN` for N of one; `load` finds the profile of a name or file."""
    chosen: list[EngineProfile] = []
    for name in (part.strip() for part in names.split(",")):
        single, count = _split_count(name)
        if not 1 <= count <= MAX_ENGINES:
            raise EngineError(f"{name}: from 1 to {MAX_ENGINES} engines, not {count}")
        chosen += [load(single)] * count
    return tuple(chosen)


def _split_count(name: str) -> tuple[str, int]:
    """`NAMExN` as the name and N."""
    counted = re.fullmatch(r"(.+)x(\d{1,9})", name)
    return (counted[1], int(counted[2])) if counted and name not in ENGINES else (name, 1)


def parse_profile(text: str) -> EngineProfile:
    """The engine that a JSON object describes; EngineError names the field at fault and what is known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise EngineError("an engine is described by a JSON object")
    kinds = {field.name: type(field.default) for field in fields(EngineProfile)}
    for name, value in document.items():
        if name not in kinds:
            raise EngineError(f"no field {name!r}; known: {', '.join(kinds)}")
        _check_kind(name, value, kinds[name])
    try:
        return EngineProfile(**document)
    except ValueError as error:
        raise EngineError(str(error)) from error


def write_profile(profile: EngineProfile) -> str:
    """The JSON object that `parse_profile` reads, one field a line."""
    return json.dumps(asdict(profile), indent=2) + "\n"


def _check_kind(name: str, value: Any, kind: type) -> None:
    """An integer is a number too, but true is neither."""
    accepted = (int, float) if kind is float else (kind,)
    if type(value) not in accepted:
        what = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise EngineError(f"{name} must be {what}, got {json.dumps(value)}")
