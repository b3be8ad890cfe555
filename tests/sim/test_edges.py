"""What seldom happens in the simulator: caches that overflow, logs that lie, lines that are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.actions import PublishCallEnd, PublishCompletion
from scheduler.core import SchedulerCore
from scheduler.event_log import LogHeader, event_to_json
from scheduler.events import ApplicationArrived, CallAdopted, CallReady, CallRevealed, CallStarted, Event
from scheduler.settings import CoreSettings
from scheduler.sim.batch import Batch
from scheduler.sim.engine import EngineProfile
from scheduler.sim.experiments.two_applications import _mean_over_time
from scheduler.sim.traces import TraceError
from scheduler.sim.twin import LogError, Recording, Replay
from scheduler.sim.workload import WorkloadError, read_workload
from scheduler.types import ApplicationRecord
from tests.scheduling import application, call
from tests.sim.test_traces import rows


def log(*events: Event, epoch: int = 1) -> list[str]:
    header = LogHeader(CoreSettings(), "justitia", epoch, 0.0).to_json()
    return [header + "\n", *(event_to_json(1.0 + place, event) + "\n" for place, event in enumerate(events))]


# ---- the batch


def test_the_prefix_cache_forgets_what_was_used_longest_ago() -> None:
    profile = EngineProfile(prefix_cache_blocks=2, prefix_block_tokens=10)
    batch = Batch(profile)
    for lease_id, prefix in (("a", (1, 2)), ("b", (3,)), ("c", (1,))):
        batch.admit(lease_id, 30, 1, prefix=prefix)
    batch.run(1, sorted)
    assert batch.prefilled_tokens == 90  # 1 was forgotten for 3, so that c found nothing
    batch.admit("d", 30, 1, prefix=(3,))
    batch.run(1, sorted)
    assert batch.prefilled_tokens == 110


def test_a_cache_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix_cache_blocks must not be negative, got -1"):
        EngineProfile(prefix_cache_blocks=-1)


def test_the_mean_of_a_single_moment_is_its_value() -> None:
    assert _mean_over_time([(3.0, 7.0)]) == 7.0
    assert _mean_over_time([(0.0, 0.0), (2.0, 4.0)]) == 2.0


# ---- logs


def test_a_core_that_breaks_is_said_with_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(core: SchedulerCore, now_s: float, event: Event) -> None:
        raise RuntimeError("no")

    replay = Replay(log(CallStarted("1-1")))
    monkeypatch.setattr(SchedulerCore, "handle", broken)
    with pytest.raises(LogError, match="line 2: the core breaks on CallStarted"):
        list(replay.steps())


def test_leases_are_compared_within_their_epoch() -> None:
    replay = Replay(log(CallStarted("1-1"), CallStarted("7-1"), CallStarted("1-x"), epoch=1))
    assert len(list(replay.steps())) == 3
    assert [what.split(":")[0] for what in replay.disagreements] == ["line 2", "line 4"]


def test_what_nobody_heard_of_is_no_traffic() -> None:
    recording = Recording()
    record = ApplicationRecord(
        application_id="ghost",
        application_type="unknown",
        tenant="default",
        weight=1.0,
        outcome="finished",
        arrival_s=0.0,
        finish_s=1.0,
        predicted_cost=1.0,
        true_cost=1.0,
        finish_tag=1.0,
        calls=1,
    )
    ready = CallReady("ghost", "c", 1, 1)
    recording.hear(1.0, ready, [PublishCallEnd("ghost", "c", "finished", "", 1, (1,)), PublishCompletion(record)])
    recording.hear(2.0, CallRevealed("ghost", call("d")), [])
    assert list(recording.take()) == []


def test_an_adopted_call_was_ready() -> None:
    recording = Recording()
    arrived = ApplicationArrived(application("a", call("c")))
    recording.hear(1.0, arrived, [])
    recording.hear(2.0, CallAdopted("a", "c", "r", "0-1"), [])
    recording.hear(3.0, CallReady("a", "c", 10, 10, (5,)), [])
    assert recording._present["a"].calls["c"].ready_s == 2.0


# ---- lines


def line(**fields: Any) -> str:
    one = {"name": "c", "prompt_tokens": 5, "output_tokens": 5}
    whole = {"application_id": "a", "arrival_s": 1.0, "calls": [one], **fields}
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([line(), line(application_id="b", arrival_s=0.5)], "line 2: arrives at 0.5 s, before the line above it"),
        ([line(calls=[])], "line 1: an application has 1 to 1000000 calls, not 0"),
        ([line(weight=True)], "line 1: weight must be a number, got True"),
        ([line(calls=[{"name": "c", "prompt_tokens": True, "output_tokens": 5}])], "prompt_tokens must be an integer"),
        (
            [line(calls=[{"name": "c", "prompt_tokens": 5, "output_tokens": 5, "delay_s": -1}])],
            "line 1: delay_s must be finite and not negative",
        ),
    ],
)
def test_wrong_lines_are_named(lines: list[str], why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        list(read_workload(lines))


def test_empty_lines_are_skipped() -> None:
    assert [one.application_id for one in read_workload(["\n", line(), "  "])] == ["a"]


def test_a_field_that_is_too_long_for_csv_is_an_error_of_its_line() -> None:
    wide = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900," + "9" * 200_000 + ",1\n"
    with pytest.raises(TraceError, match="not CSV"):
        rows("azure", wide.splitlines(keepends=True))
