import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.actions import Action, Grant, PublishCompletion
from scheduler.event_log import LogHeader, event_from_json, event_to_json, replay
from scheduler.events import (
    ApplicationArrived,
    CallFinished,
    CallReady,
    CallRevealed,
    CallStarted,
    CapacityOffered,
    Event,
    ProgressReported,
    ReplicaJoined,
    SettingsChanged,
    TimePassed,
)
from scheduler.settings import ClockMode, CoreSettings
from scheduler.types import MAX_COST, MAX_TOKENS, MAX_WEIGHT, MIN_WEIGHT, ApplicationSpec, CallSpec, EngineLimits
from tests.scheduling import Bench, application, call, limits

texts = st.text(max_size=6)
counts = st.integers(0, MAX_TOKENS)
numbers = st.floats(allow_nan=False, allow_infinity=False)
calls = st.builds(
    CallSpec,
    call_id=texts,
    prompt_tokens=counts,
    predicted_output_tokens=st.integers(1, 100),
    max_output_tokens=st.integers(100, MAX_TOKENS),
    sequences=st.integers(1, 1024),
    after=st.lists(texts, max_size=3, unique=True).map(tuple),
)
applications = st.builds(
    ApplicationSpec,
    application_id=texts,
    calls=st.lists(calls, max_size=3).map(tuple),
    application_type=texts,
    tenant=texts,
    weight=st.floats(MIN_WEIGHT, MAX_WEIGHT),
    predicted_cost=st.none() | st.floats(0, MAX_COST, exclude_min=True),
    open=st.booleans(),
)
sizes = st.integers(1, MAX_TOKENS)
engines = st.builds(EngineLimits, usable_blocks=sizes, block_tokens=sizes, max_model_len=sizes, max_sequences=sizes)
positive = st.floats(0, 1e9, exclude_min=True)
settings = st.builds(
    CoreSettings,
    clock=st.sampled_from(ClockMode),
    clock_rate=positive,
    nominal_iterations_per_s=positive,
    watermark=st.floats(0, 1, exclude_max=True),
    max_applications=sizes,
    max_calls=sizes,
    max_attempts=sizes,
    reservation_timeout_s=positive,
    open_idle_s=positive,
    engine_wait_s=positive,
)
st.register_type_strategy(CoreSettings, settings)
st.register_type_strategy(CallSpec, calls)
st.register_type_strategy(ApplicationSpec, applications)
st.register_type_strategy(EngineLimits, engines)
st.register_type_strategy(float, numbers)


@pytest.mark.parametrize("kind", get_args(Event))
@given(data=st.data())
def test_every_event_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    event, now_s = data.draw(st.from_type(kind)), data.draw(numbers)
    line = event_to_json(now_s, event)
    assert "\n" not in line
    assert event_from_json(line) == (now_s, event)


@pytest.mark.parametrize("line", ['{"now_s": 1, "event": "Nonsense"}', "{}", "[]", "3", "no json"])
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no event|Expecting value"):
        event_from_json(line)


def test_a_number_that_json_lacks_never_enters_a_log() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        event_to_json(0.0, ProgressReported("r", float("nan"), 1, 0))


def test_the_header_comes_back_as_it_was() -> None:
    made_with = CoreSettings(clock=ClockMode.ITERATION, clock_rate=1.5, watermark=0.1, max_attempts=7)
    header = LogHeader(made_with, "fcfs", 3, 0.1 + 0.2)
    assert LogHeader.from_json(header.to_json()) == header
    core = header.create_core()
    assert (core.settings, core.policy.name, core.epoch, core.virtual_time) == (made_with, "fcfs", 3, 0.1 + 0.2)


@pytest.mark.parametrize("line", ["[]", "{}", json.dumps({"format": 2, "settings": {}})])
def test_a_log_of_another_format_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not an event log of format 1"):
        LogHeader.from_json(line)


@pytest.mark.parametrize("policy", ["justitia", "fcfs"])
def test_a_replay_gives_the_actions_of_the_live_run(policy: str) -> None:
    lines = [LogHeader(CoreSettings(), policy, 1, 0.0).to_json()]
    bench = Bench(policy)
    given_: list[list[Action]] = []

    def say(event: Event, after_s: float = 0.0) -> list[Action]:
        given_.append(bench.handle(event, after_s=after_s))
        lines.append(event_to_json(bench.now_s, event))
        return given_[-1]

    say(ReplicaJoined("r", limits(max_sequences=2)))
    say(ApplicationArrived(application("a", call("x"), call("y", after=["x"]), weight=3.0)))
    say(CallRevealed("o", call("z", d=3), application("o", open=True)))
    for app, one in (("a", "x"), ("a", "y"), ("o", "z")):
        say(CallReady(app, one, 10, 10))
    grants = [action for action in say(CapacityOffered("r", 2)) if isinstance(action, Grant)]
    assert len(grants) == 2
    for grant in grants:
        say(CallStarted(grant.lease_id))
        say(ProgressReported("r", 123.456, 3, 40, ((grant.lease_id, (2,)),)), after_s=0.1)
        say(CallFinished(grant.lease_id, 10, (7,)))
    say(SettingsChanged(CoreSettings(open_idle_s=5.0), "fcfs"))
    say(TimePassed(), after_s=1000.0)
    assert sum(isinstance(action, PublishCompletion) for action in bench.actions) == 1
    assert list(replay(lines)) == given_
