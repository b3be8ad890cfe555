"""What is expected of an open application's rest, as its calls become known and end."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from scheduler.actions import Action, PublishTag
from scheduler.core import SchedulerCore
from scheduler.cost import memory_cost
from scheduler.event_log import event_from_json, event_to_json
from scheduler.events import (
    ApplicationClosed,
    CallFinished,
    CallReady,
    CallRevealed,
    CapacityOffered,
    Event,
    ReplicaJoined,
)
from scheduler.revealed_work import FAR, total_cost
from scheduler.settings import CoreSettings
from scheduler.tenants import choose_policy
from scheduler.types import ApplicationSpec, CallSpec, EngineLimits


@pytest.mark.parametrize(("predicted", "deviation", "known"), [(1000, 0.5, 700), (50, 1.0, 200), (9.0, 0.2, 9.5)])
def test_the_estimate_is_the_median_of_what_is_still_possible(predicted: float, deviation: float, known: float) -> None:
    draw = random.Random(7)
    costs = (draw.lognormvariate(math.log(predicted), deviation) for _ in range(200_000))
    possible = [cost for cost in costs if cost > known]
    assert len(possible) > 1000
    assert total_cost(predicted, deviation, known) == pytest.approx(median(possible), rel=0.03)


@pytest.mark.parametrize("deviation", [0.01, 0.3, 1.0, 3.0])
def test_the_estimate_rises_with_what_is_known_and_stays_above_it(deviation: float) -> None:
    known = [0.0, *(1.5**power for power in range(-60, 90))]
    totals = [total_cost(1000.0, deviation, one) for one in known]
    assert totals[0] == 1000.0
    assert totals == sorted(totals)
    assert all(total >= max(one, 1000.0) and math.isfinite(total) for one, total in zip(known, totals, strict=True))


def test_the_limit_far_away_joins_what_is_before_it() -> None:
    at = 1000.0 * math.exp(FAR * 0.5)
    assert total_cost(1000.0, 0.5, at * 1.000001) == pytest.approx(total_cost(1000.0, 0.5, at * 0.999999), rel=1e-3)


def test_without_a_prediction_it_is_what_is_known() -> None:
    assert (total_cost(0.0, 0.5, 70.0), total_cost(0.0, 0.5, 0.0)) == (70.0, 0.0)


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 3.1])
def test_a_deviation_that_is_none_is_refused(deviation: float) -> None:
    with pytest.raises(ValueError, match="cost_deviation"):
        ApplicationSpec(application_id="a", predicted_cost=5.0, cost_deviation=deviation)


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_a_prediction_that_is_no_cost_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="predicted_cost"):
        ApplicationSpec(application_id="a", predicted_cost=cost, open=True)


class Driver:
    """A core with one replica, told of open applications; remembers the tags."""

    def __init__(self) -> None:
        self.core = SchedulerCore(CoreSettings(), choose_policy("justitia", CoreSettings()))
        self.tags: list[PublishTag] = []
        self.now_s = 0.0
        limits = EngineLimits(usable_blocks=1000, block_tokens=16, max_model_len=4096, max_sequences=4)
        self.handle(ReplicaJoined("r", limits))

    def handle(self, event: Event) -> list[Action]:
        self.now_s += 1
        actions = self.core.handle(self.now_s, event)
        self.tags += [action for action in actions if isinstance(action, PublishTag)]
        return actions

    def reveal(self, application: ApplicationSpec, name: str, prompt_tokens: int = 100) -> None:
        call = CallSpec(call_id=name, prompt_tokens=prompt_tokens, predicted_output_tokens=50, max_output_tokens=2000)
        self.handle(CallRevealed(application.application_id, call, application))
        self.handle(CallReady(application.application_id, name, prompt_tokens, 50))

    def finish(self, output_tokens: int, prompt_tokens: int = 100) -> None:
        """Run the only call that waits."""
        grants = self.handle(CapacityOffered("r", 1))
        (lease_id,) = self.core.leases
        assert grants
        self.handle(CallFinished(lease_id, prompt_tokens, (output_tokens,)))


def test_an_open_applications_prediction_follows_its_calls_and_says_why() -> None:
    driver = Driver()
    spec = ApplicationSpec(application_id="a", predicted_cost=20_000.0, cost_deviation=0.5, open=True)
    driver.reveal(spec, "one")
    assert driver.tags[0].reason == "arrival"
    assert driver.tags[0].predicted_cost == 20_000
    driver.finish(10)
    early = driver.tags[-1]
    assert early.reason == "call one ended"
    assert early.predicted_cost == total_cost(20_000, 0.5, memory_cost(100, [10]))
    driver.reveal(spec, "two")
    driver.finish(400)
    late = driver.tags[-1]
    known = memory_cost(100, [10]) + memory_cost(100, [400])
    assert (late.reason, late.predicted_cost) == ("call two ended", total_cost(20_000, 0.5, known))
    assert late.predicted_cost > 1.05 * known > 20_000
    assert late.finish_tag > early.finish_tag


def test_a_closed_applications_rest_is_what_it_showed() -> None:
    driver = Driver()
    spec = ApplicationSpec(application_id="a", predicted_cost=1000.0, cost_deviation=0.5, open=True)
    driver.reveal(spec, "one")
    driver.reveal(spec, "two")
    driver.handle(ApplicationClosed("a"))
    application = driver.core.applications["a"]
    assert (driver.tags[-1].reason, application.prediction) == ("less work is left", 2 * memory_cost(100, [50]))


def test_of_applications_that_nobody_can_predict_the_one_that_had_least_goes_first() -> None:
    driver = Driver()
    greedy, modest = (ApplicationSpec(application_id=name, open=True) for name in ("greedy", "modest"))
    driver.reveal(greedy, "g1")
    driver.finish(500)
    driver.reveal(greedy, "g2")  # waits before the other one has come
    driver.reveal(modest, "m1")
    assert driver.core.applications["greedy"].prediction == memory_cost(100, [500]) + memory_cost(100, [50])
    assert driver.core.applications["modest"].prediction == memory_cost(100, [50])
    assert driver.core.policy.head() == ("modest", "m1")


def test_the_event_log_keeps_the_deviation() -> None:
    spec = ApplicationSpec(application_id="a", predicted_cost=1000.0, cost_deviation=0.5, open=True)
    call = CallSpec(call_id="c", prompt_tokens=1, predicted_output_tokens=1, max_output_tokens=1)
    event = CallRevealed("a", call, spec)
    assert event_from_json(event_to_json(1.0, event)) == (1.0, event)
