"""Why the scheduler will not take something: questions only, each answered with a reason or None.

The order of the checks is the order in which a caller can do something about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.actions import Refusal
from scheduler.applications import Application, find_cycle_or_stranger
from scheduler.capacity import Replica
from scheduler.events import CallRevealed
from scheduler.settings import CoreSettings
from scheduler.types import ApplicationSpec, CallSpec

Refused = tuple[Refusal, str]


class Gate:
    """Looks at the core's applications and replicas, and changes neither."""

    def __init__(
        self,
        settings: CoreSettings,
        applications: Mapping[str, Application],
        replicas: Mapping[str, Replica],
    ) -> None:
        self.settings = settings
        self._applications = applications
        self._replicas = replicas

    def can_ever_fit(self, prompt_tokens: int) -> bool:
        """Could some replica run a sequence with this prompt? True too while there is no replica to ask."""
        return not self._replicas or any(replica.can_ever_hold(prompt_tokens) for replica in self._replicas.values())

    @property
    def largest_prompt_tokens(self) -> int:
        """The longest prompt that some replica can run; 0 without replicas."""
        limits = [replica.limits for replica in self._replicas.values()]
        return max((min(limit.max_model_len, limit.pool_tokens) - 1 for limit in limits), default=0)

    def application_refused(self, spec: ApplicationSpec, unfinished_calls: int) -> Refused | None:
        """Why this application may not enter."""
        if spec.application_id in self._applications:
            return Refusal.DUPLICATE_ID, f"application {spec.application_id!r} is already running"
        if not spec.calls and not spec.open:
            return Refusal.INVALID, "an application without calls must be open"
        if len({call.call_id for call in spec.calls}) < len(spec.calls):
            return Refusal.INVALID, "two calls have the same id"
        fault = find_cycle_or_stranger(spec.calls)
        if fault is not None:
            return Refusal.INVALID, fault
        return (
            self.too_large(spec.calls)
            or self._too_many_applications()
            or self._too_many_calls(unfinished_calls, len(spec.calls))
        )

    def call_refused(self, event: CallRevealed, unfinished_calls: int) -> Refused | None:
        """Why this call of an open application may not enter."""
        call_id = event.call.call_id
        application = self._applications.get(event.application_id)
        known = {} if application is None else application.calls
        if application is None and event.opens is None:
            return Refusal.UNKNOWN_APPLICATION, f"no application {event.application_id!r}"
        if event.opens is not None and (event.opens.application_id != event.application_id or event.opens.calls):
            return Refusal.INVALID, "an application opens under its own name and without calls"
        if application is not None and not application.open:
            return Refusal.APPLICATION_CLOSED, f"application {event.application_id!r} takes no more calls"
        if call_id in known:
            return Refusal.DUPLICATE_ID, f"call {call_id!r} is already known"
        if any(name not in known for name in event.call.after):
            return Refusal.INVALID, f"call {call_id!r} comes after an unknown call"
        return (
            self.too_large((event.call,))
            or (self._too_many_applications() if application is None else None)
            or self._too_many_calls(unfinished_calls, 1)
        )

    def too_large(self, calls: Iterable[CallSpec]) -> Refused | None:
        """Why one of these calls could never run."""
        for call in calls:
            if not self.can_ever_fit(call.prompt_tokens):
                return self.cannot_fit(call.call_id, call.prompt_tokens)
        return None

    def cannot_fit(self, call_id: str, prompt_tokens: int) -> Refused:
        """The refusal of a call with too long a prompt."""
        return Refusal.CANNOT_FIT, (
            f"call {call_id!r} cannot fit: its prompt has {prompt_tokens} tokens, "
            f"and no replica can run more than {self.largest_prompt_tokens}"
        )

    def _too_many_applications(self) -> Refused | None:
        if len(self._applications) >= self.settings.max_applications:
            return Refusal.BUSY, f"{len(self._applications)} applications are running, the most allowed"
        return None

    def _too_many_calls(self, unfinished_calls: int, more: int) -> Refused | None:
        if unfinished_calls + more > self.settings.max_calls:
            return (
                Refusal.BUSY,
                f"{unfinished_calls} calls are waiting or running, at most {self.settings.max_calls}",
            )
        return None
