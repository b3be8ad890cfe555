"""Settings of the core: checked where they are made, frozen after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduler.types import MAX_WEIGHT, MIN_WEIGHT


class ClockMode(StrEnum):
    """What moves virtual time."""

    SERVICE = "service"
    """The service that engines report, in token-iterations. The default: it cannot run ahead of the engines."""
    ITERATION = "iteration"
    """One pool (M tokens) for every engine iteration."""
    CAPACITY = "capacity"
    """M times the nominal iterations a second, as the paper has it."""


class Admission(StrEnum):
    """Who says whether a call fits on a replica."""

    PROJECTED_PEAK = "projected_peak"
    """The scheduler, by the projected peak of the replica's memory (`scheduler.admission`). The default."""
    ENGINE = "engine"
    """The replica: each of its offers is one that the head of the order fits into."""


class Flows(StrEnum):
    """Among whom a policy that shares among flows shares."""

    APPLICATIONS = "applications"
    TENANTS = "tenants"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Limits and choices of one scheduler.

    `policy_options` are the policy's own (name, value) pairs. `flows` says among whom a policy shares that shares
    among flows. While `tenant_level` is set, every policy but one that shares among tenants by itself stands under
    the tenant level (`scheduler.tenants`).
    `tenant_weights` are (tenant, weight) pairs; a tenant that is not named weighs 1.
    `clock_rate` speeds virtual time up: above 1 a large application waits less and small ones pay for it.
    `admission` says who judges whether a call fits. `watermark` is the part of each pool that admission leaves free
    for growth. `max_calls` bounds the calls that have not ended, `max_applications` the applications. A lease that
    nobody uses returns after `reservation_timeout_s`; a call is tried `max_attempts` times; an open application
    without calls ends after `open_idle_s`; calls wait `engine_wait_s` for a first replica. Raises ValueError on
    values out of range.
    """

    policy_options: tuple[tuple[str, int | float | str], ...] = ()
    flows: Flows = Flows.APPLICATIONS
    tenant_level: bool = True
    tenant_weights: tuple[tuple[str, float], ...] = ()
    clock: ClockMode = ClockMode.SERVICE
    clock_rate: float = 1.0
    nominal_iterations_per_s: float = 40.0
    admission: Admission = Admission.PROJECTED_PEAK
    watermark: float = 0.05
    max_applications: int = 100_000
    max_calls: int = 1_000_000
    max_attempts: int = 3
    reservation_timeout_s: float = 10.0
    open_idle_s: float = 60.0
    engine_wait_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("clock_rate", "nominal_iterations_per_s", "reservation_timeout_s", "open_idle_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for tenant, weight in self.tenant_weights:
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise ValueError(f"weight of {tenant!r} must lie in [{MIN_WEIGHT}, {MAX_WEIGHT}], got {weight}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must lie in [0, 1), got {self.watermark}")
        if not 0 <= self.engine_wait_s < float("inf"):
            raise ValueError(f"engine_wait_s must be finite and not negative, got {self.engine_wait_s}")
        for name in ("max_applications", "max_calls", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
