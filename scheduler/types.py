"""The nouns of the scheduler: applications, calls, replicas.

All of them are facts that were true when they were stated; none changes. Token counts are per sequence unless
a name says otherwise. Costs are KV token-time, in token-iterations (Justitia, arXiv:2510.17015, eq. 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MAX_SEQUENCES = 1024
MAX_TOKENS = 2**31 - 1
MAX_WEIGHT = 1e6
MIN_WEIGHT = 1e-6
MAX_COST = 1e18
MAX_COST_DEVIATION = 3.0
MAX_TIME_S = 1e9


class CallKey(NamedTuple):
    """A call's name in the whole system."""

    application_id: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """One LLM inference: a prompt of p tokens answered by n sequences of d tokens each.

    `prompt_tokens` and `predicted_output_tokens` are estimates until the call is ready. `max_output_tokens` is
    the hard stop of the engine. `true_output_tokens`, which only a simulation can know, is for policies that are told
    the truth in order to show what predictions cost. Raises ValueError when a number lies outside its limits or
    `after` repeats a name.
    """

    call_id: str
    prompt_tokens: int
    predicted_output_tokens: int
    max_output_tokens: int
    sequences: int = 1
    after: tuple[str, ...] = ()
    true_output_tokens: int | None = None

    def __post_init__(self) -> None:
        _require_between("prompt_tokens", self.prompt_tokens, 0, MAX_TOKENS)
        _require_between("max_output_tokens", self.max_output_tokens, 1, MAX_TOKENS)
        _require_between("predicted_output_tokens", self.predicted_output_tokens, 1, self.max_output_tokens)
        _require_between("sequences", self.sequences, 1, MAX_SEQUENCES)
        if len(set(self.after)) != len(self.after):
            raise ValueError(f"call {self.call_id!r} names a dependency twice: {self.after}")


_MOST = {
    "predicted_cost": MAX_COST,
    "cost_deviation": MAX_COST_DEVIATION,
    "deadline_s": MAX_TIME_S,
    "period_s": MAX_TIME_S,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSpec:
    """One run of an agent, as it is known at its arrival.

    `predicted_cost` is in token-iterations; None takes the sum over `calls`. An `open` application may reveal
    further calls until it is closed; `cost_deviation`, that of the predicted cost's natural logarithm, says how its
    rest is estimated from what is known (`scheduler.revealed_work`). `deadline_s` counts from its arrival, `period_s`
    is how often such a run comes; only policies of deadlines look at them. Raises ValueError on a weight outside
    [1e-6, 1e6], or a cost, deviation, deadline or period that is not finite and positive, or too large.
    """

    application_id: str
    calls: tuple[CallSpec, ...] = ()
    application_type: str = "unknown"
    tenant: str = "default"
    weight: float = 1.0
    predicted_cost: float | None = None
    open: bool = False
    deadline_s: float | None = None
    period_s: float | None = None
    cost_deviation: float | None = None

    def __post_init__(self) -> None:
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight must lie in [{MIN_WEIGHT}, {MAX_WEIGHT}], got {self.weight}")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise ValueError(f"{name} must lie in (0, {most}], got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one replica can hold.

    `usable_blocks` blocks of `block_tokens` KV tokens each (vLLM holds one block back: usable = num_gpu_blocks − 1);
    a sequence, prompt and output together, is at most `max_model_len` tokens; at most `max_sequences` run at once.
    """

    usable_blocks: int
    block_tokens: int
    max_model_len: int
    max_sequences: int

    def __post_init__(self) -> None:
        for name in ("usable_blocks", "block_tokens", "max_model_len", "max_sequences"):
            _require_between(name, getattr(self, name), 1, MAX_TOKENS)

    @property
    def pool_tokens(self) -> int:
        """M, this replica's part of the pool, in tokens."""
        return self.usable_blocks * self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRecord:
    """What became of one application. Times are seconds on the scheduler's clock; costs are token-iterations.

    `gps_finish_s` is None while the reference still serves the application. `bound_s`, the latest finish that
    the delay bound allows (`scheduler.audit`), is None until then, and always for an application that was open
    or did not run undisturbed to its end.
    """

    application_id: str
    application_type: str
    tenant: str
    weight: float
    outcome: str
    arrival_s: float
    finish_s: float
    predicted_cost: float
    true_cost: float
    finish_tag: float
    calls: int
    gps_finish_s: float | None = None
    bound_s: float | None = None

    @property
    def completion_s(self) -> float:
        return self.finish_s - self.arrival_s

    @property
    def lag_s(self) -> float | None:
        """Seconds after (positive) or before (negative) the finish under fair sharing."""
        return None if self.gps_finish_s is None else self.finish_s - self.gps_finish_s

    @property
    def bound_violated(self) -> bool:
        return self.bound_s is not None and self.finish_s > self.bound_s


def _require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low}, {high}], got {value}")
