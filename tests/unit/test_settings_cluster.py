"""Settings are checked where they are read, and frozen after."""

from typing import Any

import pytest
from pydantic import ValidationError

from cluster.settings import SchedulerSettings, load_changed_settings, load_settings
from scheduler.settings import Admission, ClockMode, CoreSettings, Flows
from serve_app.settings import IngressSettings, ServingSettings


def test_nothing_said_is_the_default_of_the_core() -> None:
    assert load_settings({}).core() == CoreSettings()


def test_what_is_read_once_cannot_stand_in_what_changes_in_place() -> None:
    args = load_settings({"state_dir": "/tmp/x", "policy": "fcfs"}).model_dump(mode="json")
    changed = load_changed_settings(args, {"clock_rate": 2.0})
    assert (changed.policy, changed.clock_rate, str(changed.state_dir)) == ("fcfs", 2.0, "/tmp/x")
    for name, value in (("state_dir", "/tmp/y"), ("event_log", True)):
        with pytest.raises(ValueError, match=name):
            load_changed_settings(args, {name: value})


def test_every_setting_of_the_core_can_be_set() -> None:
    changed: dict[str, Any] = {
        "policy_options": {},
        "flows": "tenants",
        "tenant_level": False,
        "tenant_weights": {"gold": 4.0},
        "clock": "iteration",
        "clock_rate": 1.5,
        "nominal_iterations_per_s": 20.0,
        "admission": "engine",
        "watermark": 0.1,
        "max_applications": 5,
        "max_calls": 6,
        "max_attempts": 7,
        "reservation_timeout_s": 8.0,
        "open_idle_s": 9.0,
        "engine_wait_s": 10.0,
    }
    assert set(changed) == set(CoreSettings.__dataclass_fields__)
    read = {
        "policy_options": (),
        "flows": Flows.TENANTS,
        "tenant_weights": (("gold", 4.0),),
        "clock": ClockMode.ITERATION,
        "admission": Admission.ENGINE,
    }
    assert load_settings(changed).core() == CoreSettings(**{**changed, **read})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", "no-such-policy"),
        ("clock", "sundial"),
        ("clock_rate", 0),
        ("clock_rate", float("nan")),
        ("clock_rate", float("inf")),
        ("watermark", 1.0),
        ("watermark", float("nan")),
        ("max_calls", 0),
        ("max_attempts", 101),
        ("reservation_timeout_s", 0),
        ("reservation_timeout_s", float("inf")),
        ("reservation_timeout_s", float("nan")),
        ("open_idle_s", float("inf")),
        ("engine_wait_s", float("inf")),
        ("replica_timeout_s", float("nan")),
        ("ingress_timeout_s", 0),
        ("polcy", "justitia"),
    ],
)
def test_a_wrong_setting_is_named_when_it_is_read(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        load_settings({name: value})


def test_settings_survive_the_way_through_json_and_cannot_be_changed() -> None:
    settings = load_settings({"policy": "justitia", "state_dir": "/tmp/x", "clock": "service"})
    assert load_settings(settings.model_dump(mode="json")) == settings
    with pytest.raises(ValidationError):
        settings.policy = "fcfs"  # type: ignore[misc]
    assert isinstance(settings, SchedulerSettings)


def test_serving_settings_name_what_is_wrong() -> None:
    serving = ServingSettings.model_validate({"engine": {"kind": "simulated"}})
    assert serving.ingress == IngressSettings()
    assert ServingSettings.model_validate(serving.model_dump(mode="json")) == serving
    for wrong in ({"max_body_bytes": 0}, {"max_calls_in_flight": 2**31}, {"unheard_of": 1}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            ServingSettings.model_validate({"engine": {"kind": "simulated"}, "ingress": wrong})
