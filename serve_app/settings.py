"""Settings of the serving application, as they stand in serve_config.yaml: checked when read, frozen after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cluster.engines import EngineSettings
from serve_app.tenants import digested_keys

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class IngressSettings(BaseModel):
    """Limits of an ingress.

    `default_max_tokens` bounds the prediction of a call that names no maximum. Of a prompt's beginning the scheduler is
    told the hashes of at most `prefix_blocks` blocks, for policies of prefix locality; 0 tells nothing.

    `api_keys` are the tenants by API key, `api_keys_file` is a JSON file of the same form (an absolute path, on every
    node). Without either, everybody is one tenant and no key is asked for. Keys are digests from here on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    max_body_bytes: Count = 16 * 2**20
    max_applications_kept: Count = 1000
    max_calls_in_flight: Count = 20_000
    default_max_tokens: Count = 4096
    prefix_blocks: Annotated[int, Field(ge=0, le=256)] = 32
    api_keys: dict[str, str] = {}
    api_keys_file: Path | None = None

    @field_validator("api_keys", mode="before")
    @classmethod
    def _digest_keys(cls, keys: Any) -> dict[str, str]:
        return digested_keys(keys, "api_keys")

    @field_validator("api_keys_file")
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
