"""What this ingress expects calls and applications to cost, learnt from those it has seen end.

Every ingress learns from its own traffic; a prediction made at arrival is what the scheduler orders by, and is
corrected there as work is revealed and ends.
"""

from __future__ import annotations

from collections import OrderedDict

from predictors.cold_start import ApplicationCostHistory, OutputLengthHistory, stage_of
from scheduler.actions import Action, PublishCallEnd, PublishCompletion, Reject
from scheduler.types import CallKey

MAX_PENDING = 100_000


class Predictions:
    """Predicts by application type and stage; `note` learns from the scheduler's actions."""

    def __init__(self) -> None:
        self._lengths = OutputLengthHistory()
        self._costs = ApplicationCostHistory()
        self._pending: OrderedDict[CallKey, tuple[str, str]] = OrderedDict()

    def output_tokens(self, key: CallKey, application_type: str, stage: str, max_tokens: int) -> int:
        """Output tokens of a sequence of this call, in [1, max_tokens]; the call's end will be learnt from."""
        self._pending[key] = (application_type, stage_of(stage))
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        return self._lengths.predict(application_type, stage_of(stage), max_tokens)

    def application_cost(self, application_type: str) -> float | None:
        """Token-iterations of an open application of this type, None while nothing is known."""
        return self._costs.predict(application_type)

    def note(self, action: Action) -> None:
        """Learn from what ended well; forget what did not."""
        match action:
            case PublishCallEnd():
                place = self._pending.pop(CallKey(action.application_id, action.call_id), None)
                if place is not None and action.outcome == "finished" and action.output_tokens:
                    self._lengths.observe(*place, max(action.output_tokens))
            case Reject(application_id, call_id) if call_id is not None:
                self._pending.pop(CallKey(application_id, call_id), None)
            case PublishCompletion(record) if record.outcome == "finished" and record.true_cost > 0:
                self._costs.observe(record.application_type, record.true_cost)
            case _:
                pass
