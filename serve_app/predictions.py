"""What this ingress expects calls and applications to cost, learnt from those it has seen end.

Every ingress learns from its own traffic; a prediction made at arrival is what the scheduler orders by, and is
corrected there as work is revealed and ends. There are two sources:

    running means by type and stage    always there, from the first call that ends (`predictors.cold_start`)
    a trained model, where there is one: costs from type and prompt, lengths from type, stage and prompt length

Under a trained model lengths are a high quantile, and a submitted graph is expected to cost the larger of the model's
word and the sum over its calls (`serve_app.trained_predictor` says why). Without one a graph is expected to cost that
sum, and an open application what its type's means say, or nothing while nothing is known: then the scheduler orders
it by the service it has had.

A type that a model has not seen begins with its answer over all types, and the type's own first applications outweigh
that as they end (shrinkage).

Laws: a cost that leaves here is finite and within the limits of `predictors.targets`; what a model said instead is
counted (`replaced`), and where it failed, the running means answer (`failed`); lengths lie in [1, max_tokens].
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from predictors.cold_start import ApplicationCostHistory, OutputLengthHistory, stage_of
from predictors.targets import within_limits
from scheduler.actions import Action, PublishCallEnd, PublishCompletion, PublishTag, Refusal, Reject
from scheduler.types import ApplicationRecord, CallKey
from serve_app.ended_applications import ApplicationsUnderway, EndedApplication, EndedCall, Expectation

if TYPE_CHECKING:
    from predictors.models import PerTypeCostModel
    from predictors.store import TrainedPredictor

MAX_PENDING = 100_000
LENGTH_QUANTILE = 0.9
USUAL_DEVIATION = 0.7
"""Of log costs within a type, where no model says better; as in `predictors.text_regressors`."""
ALL_TYPES = "all types"
"""A model's word for its answer about a type that it has not seen (`predictors.models.Source`)."""
MIN_DEVIATION, MAX_DEVIATION = 0.05, 2.0
DEVIATIONS_IN_INTERVAL = 2.5631
"""Between the ends of an 80 % interval of a normal distribution."""


class Predictions:
    """Predicts for one ingress; `note` learns from the scheduler's actions, `on_ended` hears of whole applications.

    `quantile` in (0, 1): costs by a model are those not exceeded with this probability; None: its point estimates.
    """

    def __init__(
        self, on_ended: Callable[[EndedApplication], object] | None = None, quantile: float | None = None
    ) -> None:
        self.quantile = quantile
        self.model: TrainedPredictor | None = None
        self.replaced = 0
        self.failed = 0
        self.on_ended = on_ended
        self.underway = ApplicationsUnderway()
        self._lengths = OutputLengthHistory()
        self._costs = ApplicationCostHistory()
        self._pending: OrderedDict[CallKey, tuple[str, str]] = OrderedDict()
        self._pending_of: Counter[str] = Counter()

    def output_tokens(
        self,
        key: CallKey,
        application_type: str,
        stage: str,
        max_tokens: int,
        prompt_tokens: int = 0,
        tenant: str | None = None,
    ) -> int:
        """Output tokens of a sequence of this call, in [1, max_tokens]; the call's end will be learnt from."""
        place = (application_type, stage_of(stage))
        self._expect_end(key, place)
        if self.model is not None and application_type in self.model.lengths.types_:
            try:
                return self.model.lengths.predict_quantile(*place, prompt_tokens, max_tokens, LENGTH_QUANTILE, tenant)
            except Exception:  # whatever a model raises: the call must be served
                self.failed += 1
        return self._lengths.predict(*place, max_tokens)

    def application_cost(self, application_type: str) -> float | None:
        """Token-iterations of an application of this type by the running means, None while nothing is known."""
        return self._costs.predict(application_type)

    def of_open(self, application_type: str, prompt: str) -> Expectation | None:
        """An application whose calls are not known yet; None while nothing is known of any."""
        if self.model is not None:
            expected = self._by_model(application_type, prompt)
            if expected is not None:
                return expected
        cost = self.application_cost(application_type)
        return None if cost is None else Expectation(within_limits(cost), USUAL_DEVIATION)

    def of_graph(self, application_type: str, prompt: str) -> float | None:
        """Token-iterations of one whose calls are known, beside what they are expected to cost; None: their sum."""
        expected = self._by_model(application_type, prompt)
        return None if expected is None else expected.cost

    def note(self, action: Action) -> None:
        """Learn from what ended well; forget what did not."""
        match action:
            case PublishTag(application_id):
                self.underway.own(application_id)
            case PublishCallEnd():
                self._end_call(action)
                self._forget_if_elsewhere(action.application_id)
            case Reject(application_id, call_id) if call_id is not None:
                self.forget_call(CallKey(application_id, call_id))
            case Reject(refusal=Refusal.DUPLICATE_ID):
                pass  # the one that has this id runs on
            case Reject(application_id):
                self.underway.forget(application_id)
            case PublishCompletion(record):
                self._end_application(record)
            case _:
                pass

    def forget_call(self, key: CallKey) -> None:
        """A call of which predictions were asked was refused."""
        self._take_pending(key)
        self._forget_if_elsewhere(key.application_id)

    def _expect_end(self, key: CallKey, place: tuple[str, str]) -> None:
        self._pending_of[key.application_id] += key not in self._pending
        self._pending[key] = place
        while len(self._pending) > MAX_PENDING:
            self._take_pending(next(iter(self._pending)))

    def _take_pending(self, key: CallKey) -> tuple[str, str] | None:
        place = self._pending.pop(key, None)
        if place is not None:
            self._pending_of[key.application_id] -= 1
            if not self._pending_of[key.application_id]:
                del self._pending_of[key.application_id]
        return place

    def _forget_if_elsewhere(self, application_id: str) -> None:
        """An application that is not this ingress's will not be heard to end here; nor will one that was refused."""
        if application_id not in self._pending_of and not self.underway.owns(application_id):
            self.underway.forget(application_id)

    def _end_application(self, record: ApplicationRecord) -> None:
        ended = self.underway.end(record)
        cost = record.true_cost if ended is None else ended.cost
        if record.outcome == "finished" and 0 < cost < math.inf:
            self._costs.observe(record.application_type, cost)
        if ended is not None and self.on_ended is not None:
            self.on_ended(ended)

    def _end_call(self, action: PublishCallEnd) -> None:
        place = self._take_pending(CallKey(action.application_id, action.call_id))
        if place is None or action.outcome != "finished" or not action.output_tokens:
            return
        self._lengths.observe(*place, max(action.output_tokens))
        call = EndedCall(place[1], action.prompt_tokens, action.output_tokens)
        self.underway.end_call(action.application_id, call)

    def _by_model(self, application_type: str, prompt: str) -> Expectation | None:
        if self.model is None:
            return None
        try:
            return self._asked(self.model.costs, application_type, prompt)
        except Exception:  # whatever a model raises: the call must be served
            self.failed += 1
            return None

    def _asked(self, model: PerTypeCostModel, application_type: str, prompt: str) -> Expectation:
        estimate = model.predict_one(application_type, prompt)
        said = estimate.cost
        if self.quantile is not None:
            said = model.quantile_one(application_type, prompt, self.quantile)
        cost = within_limits(said)
        self.replaced += estimate.replaced or cost != said
        if estimate.source == ALL_TYPES:
            cost = within_limits(self._costs.predict(application_type, cost) or cost)
        return Expectation(cost, _deviation(estimate.low, estimate.high))


def _deviation(low: float, high: float) -> float:
    """Of the log cost, from an 80 % interval that may be anything."""
    spread = math.log(within_limits(high) / within_limits(low)) / DEVIATIONS_IN_INTERVAL
    return min(max(spread, MIN_DEVIATION), MAX_DEVIATION)
