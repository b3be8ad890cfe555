"""Which engine a replica runs: the settings of each kind, and the registry that makes engines of them.

Settings are checked where they are built and frozen after. An engine's module is imported only when one is
created, so a process that merely describes an engine (the ingress, the command line) loads no vLLM or torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.engine import Engine
from scheduler.sim.engine import REFERENCE, EngineProfile

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
ModelName = Annotated[str, Field(min_length=1, max_length=512)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class _EngineSettings(_Settings):
    """What engines of every kind have: a file that each iteration adds a line to (`cluster.iteration_log`), or none."""

    iteration_log: Path | None = None


class VllmSettings(_EngineSettings):
    """A vLLM engine. `model` is a checkpoint directory or a hub id; `block_size` is in tokens.

    `num_gpu_blocks` fixes the size of the KV pool (vLLM holds one block back); None leaves it to vLLM, within
    `kv_cache_gib` on a CPU. `gpu_memory_utilization` None is vLLM's own default. `extra_args` are appended to
    the command line of `vllm serve` as they stand.
    """

    kind: Literal["vllm"] = "vllm"
    model: ModelName
    served_model_name: ModelName | None = None
    block_size: Size = 32
    num_gpu_blocks: Annotated[int, Field(ge=2, le=2**31 - 1)] | None = None
    kv_cache_gib: Annotated[int, Field(ge=1, le=4096)] = 1
    max_model_len: Size | None = None
    max_num_seqs: Size = 256
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.05
    enable_auto_tool_choice: bool = False
    tool_call_parser: ModelName | None = None
    extra_args: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> VllmSettings:
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ValueError("enable_auto_tool_choice needs a tool_call_parser")
        return self

    @property
    def environment(self) -> dict[str, str]:
        """What vLLM reads from the environment when it is imported; a variable already set prevails.

        On a CPU, no in-process flag but the second variable keeps vLLM from a further process for its worker,
        and OpenMP's threads stay unbound so that two engines on one machine do not share the same cores.
        """
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gib),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TOKENIZERS_PARALLELISM": "false",
        } | ({"HF_HUB_OFFLINE": "1"} if Path(self.model).is_dir() else {})


class SimulatedSettings(_EngineSettings):
    """An engine with no model: the timing and the KV memory of an EngineProfile, and made-up words.

    `time_scale` stretches every iteration: 1 is the profile's own speed, 0 as fast as the machine allows.
    """

    kind: Literal["simulated"] = "simulated"
    served_model_name: ModelName = "simulated"
    time_scale: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 1.0
    block_tokens: Size = REFERENCE.block_tokens
    usable_blocks: Size = REFERENCE.usable_blocks
    max_sequences: Size = REFERENCE.max_sequences
    prefill_tokens_per_iteration: Size = REFERENCE.prefill_tokens_per_iteration
    max_model_len: Size = 4096
    base_s: Seconds = REFERENCE.base_s
    per_sequence_s: Seconds = REFERENCE.per_sequence_s
    per_prefill_token_s: Seconds = REFERENCE.per_prefill_token_s

    @model_validator(mode="after")
    def _check(self) -> SimulatedSettings:
        pool_tokens = self.profile.pool_tokens
        if self.max_model_len > pool_tokens:
            raise ValueError(f"max_model_len {self.max_model_len} exceeds the pool of {pool_tokens} tokens")
        return self

    @property
    def environment(self) -> dict[str, str]:
        """This engine reads nothing from the environment."""
        return {}

    @property
    def profile(self) -> EngineProfile:
        return EngineProfile(**self.model_dump(exclude={"kind", "served_model_name", "time_scale", "iteration_log"}))


EngineSettings = Annotated[VllmSettings | SimulatedSettings, Field(discriminator="kind")]
"""Settings of an engine of any kind; a field of this type in a pydantic model reads `kind` to choose."""

ENGINES: Mapping[str, str] = {
    "vllm": "cluster.vllm_engine:VllmEngine",
    "simulated": "cluster.simulated_engine:SimulatedEngine",
}


def create_engine(settings: VllmSettings | SimulatedSettings) -> Engine:
    """The engine these settings describe, not yet started. Importing vLLM takes seconds."""
    for name, value in settings.environment.items():
        os.environ.setdefault(name, value)
    module, _, name = ENGINES[settings.kind].partition(":")
    engine: Engine = getattr(import_module(module), name)(settings)
    return engine
