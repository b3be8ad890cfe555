"""Settings of the serving application, as they stand in serve_config.yaml: checked when read, frozen after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cluster.engines import EngineSettings
from serve_app.tenants import digested_keys

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class LearningSettings(BaseModel):
    """When an ingress trains a predictor of its own.

    After `min_new` finished applications and a fifth of what the model knows, or at once when its errors have shifted.
    The newest fifth of each type is held out; on at least `min_held_out` of them the new model must lower the mean
    relative error by the share `margin`. A training may take `timeout_s`; one that failed is tried again after
    `retry_s`, then twice that, and so on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = False
    min_new: Count = 50
    min_held_out: Count = 10
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_rows_per_type: Annotated[int, Field(ge=5, le=10_000)] = 400
    max_versions: Annotated[int, Field(ge=1, le=100)] = 5
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    retry_s: Annotated[float, Field(gt=0, le=3600)] = 60.0


class IngressSettings(BaseModel):
    """Limits of an ingress.

    `default_max_tokens` bounds the prediction of a call that names no maximum. Of a prompt's beginning the scheduler is
    told the hashes of at most `prefix_blocks` blocks, for policies of prefix locality; 0 tells nothing.

    `api_keys` are the tenants by API key, `api_keys_file` is a JSON file of the same form (an absolute path, on every
    node). Without either, everybody is one tenant and no key is asked for. Keys are digests from here on.

    `predictor_dir` is what `justitia train` wrote; where it cannot be read, running means predict. Under a model costs
    are its point estimates, or those not exceeded with the probability `predictor_quantile`. In `state_dir` an
    ingress keeps a log of the applications that ended, `finished_log_bytes` of it at most (0: none), with their prompts
    if `log_prompts` says so, and the models that it has learnt; without a directory there is no log, and what was
    learnt ends with the ingress. `operators` are the tenants that may go back to an earlier model where keys are asked
    for; where none is, everybody may. Paths are absolute, on every node.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    max_body_bytes: Count = 16 * 2**20
    max_applications_kept: Count = 1000
    max_calls_in_flight: Count = 20_000
    default_max_tokens: Count = 4096
    prefix_blocks: Annotated[int, Field(ge=0, le=256)] = 32
    api_keys: dict[str, str] = {}
    api_keys_file: Path | None = None
    predictor_dir: Path | None = None
    predictor_quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    state_dir: Path | None = None
    finished_log_bytes: Annotated[int, Field(ge=0, le=2**50)] = 256 * 2**20
    log_prompts: bool = False
    learning: LearningSettings = LearningSettings()
    operators: frozenset[str] = frozenset()

    @field_validator("api_keys", mode="before")
    @classmethod
    def _digest_keys(cls, keys: Any) -> dict[str, str]:
        return digested_keys(keys, "api_keys")

    @field_validator("api_keys_file", "predictor_dir", "state_dir")
    @classmethod
    def _require_absolute(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError("it must be an absolute path: what builds and what serves may stand elsewhere")
        return path


class ServingSettings(BaseModel):
    """The serving application's `args`: its engine, and its ingress."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    engine: EngineSettings
    ingress: IngressSettings = IngressSettings()
