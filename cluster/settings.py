"""Settings of the Serve deployments, as they stand in serve_config.yaml: checked when they are read, frozen after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scheduler.settings import Admission, ClockMode, CoreSettings, Flows
from scheduler.tenants import choose_policy

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

FIXED = frozenset({"state_dir", "event_log"})
"""What is read once, when a scheduler starts."""

_CORE = CoreSettings()


class SchedulerSettings(BaseModel):
    """The scheduler application's `args`; the defaults of what concerns the core are the core's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = "justitia"
    policy_options: dict[str, int | float | str] = Field(default_factory=dict)
    flows: Flows = _CORE.flows
    tenant_level: bool = _CORE.tenant_level
    tenant_weights: dict[str, Positive] = Field(default_factory=dict)
    clock: ClockMode = _CORE.clock
    clock_rate: float = Field(_CORE.clock_rate, gt=0, le=100)
    nominal_iterations_per_s: float = Field(_CORE.nominal_iterations_per_s, gt=0, le=1e6)
    admission: Admission = _CORE.admission
    watermark: float = Field(_CORE.watermark, ge=0, lt=1)
    max_applications: int = Field(_CORE.max_applications, ge=1)
    max_calls: int = Field(_CORE.max_calls, ge=1)
    max_attempts: int = Field(_CORE.max_attempts, ge=1, le=100)
    reservation_timeout_s: Positive = _CORE.reservation_timeout_s
    open_idle_s: Positive = _CORE.open_idle_s
    engine_wait_s: float = Field(_CORE.engine_wait_s, ge=0, allow_inf_nan=False)
    replica_timeout_s: Positive = 15.0
    ingress_timeout_s: Positive = 15.0
    state_dir: Path | None = None
    event_log: bool = False
    check_invariants: bool = False

    @model_validator(mode="after")
    def _a_policy_can_be_made(self) -> SchedulerSettings:
        choose_policy(self.policy, self.core())
        return self

    def core(self) -> CoreSettings:
        """The part that concerns the core."""
        values = {name: getattr(self, name) for name in CoreSettings.__dataclass_fields__}
        pairs = {name: tuple(value.items()) for name, value in values.items() if isinstance(value, dict)}
        return CoreSettings(**{**values, **pairs})


def load_settings(args: dict[str, Any]) -> SchedulerSettings:
    """Read the scheduler's `args`; pydantic's ValidationError names what is wrong."""
    return SchedulerSettings.model_validate(args)


def load_changed_settings(args: dict[str, Any], user_config: dict[str, Any]) -> SchedulerSettings:
    """Read `args` with what `user_config` changes of them. Raises ValueError, of which pydantic's is one."""
    fixed = sorted(FIXED & user_config.keys())
    if fixed:
        raise ValueError(f"{', '.join(fixed)} cannot change while a scheduler runs and must stand in `args`")
    return load_settings({**args, **user_config})
