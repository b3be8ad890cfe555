"""Settings of the Serve deployments, as they stand in serve_config.yaml: checked when they are read, frozen after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from scheduler.policies import create_policy
from scheduler.settings import ClockMode, CoreSettings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SchedulerSettings(BaseModel):
    """The scheduler application's `args`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = "justitia"
    clock: ClockMode = ClockMode.SERVICE
    clock_rate: float = Field(1.0, gt=0, le=100)
    nominal_iterations_per_s: float = Field(40.0, gt=0, le=1e6)
    watermark: float = Field(0.05, ge=0, lt=1)
    max_applications: int = Field(100_000, ge=1)
    max_calls: int = Field(1_000_000, ge=1)
    max_attempts: int = Field(3, ge=1, le=100)
    reservation_timeout_s: Positive = 10.0
    open_idle_s: Positive = 60.0
    engine_wait_s: float = Field(300.0, ge=0, allow_inf_nan=False)
    replica_timeout_s: Positive = 15.0
    ingress_timeout_s: Positive = 15.0
    state_dir: Path | None = None
    event_log: bool = False
    check_invariants: bool = False

    @field_validator("policy")
    @classmethod
    def _known(cls, name: str) -> str:
        create_policy(name)
        return name

    def core(self) -> CoreSettings:
        """The part that concerns the core."""
        names = CoreSettings.__dataclass_fields__
        return CoreSettings(**{name: getattr(self, name) for name in names})


def load_settings(args: dict[str, Any]) -> SchedulerSettings:
    """Read the scheduler's `args`; pydantic's ValidationError names what is wrong."""
    return SchedulerSettings.model_validate(args)
