"""Settings of the serving application, as they stand in serve_config.yaml: checked when read, frozen after."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cluster.engines import EngineSettings

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class IngressSettings(BaseModel):
    """Limits of an ingress.

    `default_max_tokens` bounds the prediction of a call that names no maximum. Of a prompt's beginning the scheduler is
    told the hashes of at most `prefix_blocks` blocks, for policies of prefix locality; 0 tells nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: Count = 16 * 2**20
    max_applications_kept: Count = 1000
    max_calls_in_flight: Count = 20_000
    default_max_tokens: Count = 4096
    prefix_blocks: Annotated[int, Field(ge=0, le=256)] = 32


class ServingSettings(BaseModel):
    """The serving application's `args`: its engine, and its ingress."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineSettings
    ingress: IngressSettings = IngressSettings()
