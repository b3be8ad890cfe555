"""Events as JSON lines, so that a live run can be kept, read and replayed.

The first line holds what the core was made with; each further line a moment and an event. Replaying the file into
a fresh core gives the same actions as the live one gave (`replay`). Prompts and answers never reach the core, so
a log holds none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

from scheduler.actions import Action
from scheduler.core import SchedulerCore
from scheduler.events import ApplicationArrived, CallRevealed, Event, ReplicaJoined, Resumption, SettingsChanged
from scheduler.settings import Admission, ClockMode, CoreSettings, Flows
from scheduler.tenants import choose_policy
from scheduler.types import ApplicationSpec, CallSpec, EngineLimits

FORMAT = 1
_EVENTS: dict[str, type[Any]] = {event.__name__: event for event in get_args(Event)}


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What a core was made with."""

    settings: CoreSettings
    policy: str
    epoch: int
    virtual_time: float

    def to_json(self) -> str:
        """The first line of a log."""
        return json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> LogHeader:
        """Read the first line; ValueError when it is not one of this format."""
        document = json.loads(line)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"not an event log of format {FORMAT}: {line[:80]!r}")
        settings = _read_settings(document["settings"])
        return cls(settings, document["policy"], document["epoch"], document["virtual_time"])

    def create_core(self) -> SchedulerCore:
        """A core in the state in which the log begins."""
        return SchedulerCore(
            self.settings, choose_policy(self.policy, self.settings), epoch=self.epoch, virtual_time=self.virtual_time
        )


def event_to_json(now_s: float, event: Event) -> str:
    """One line of a log. Floats keep every bit, so that a replay cannot drift."""
    return json.dumps({"now_s": now_s, "event": type(event).__name__, **asdict(event)}, allow_nan=False)


def event_from_json(line: str) -> tuple[float, Event]:
    """Read one line; ValueError when it holds no event."""
    document = json.loads(line)
    if not isinstance(document, dict) or document.get("event") not in _EVENTS:
        raise ValueError(f"no event: {line[:80]!r}")
    now_s, name = document.pop("now_s"), document.pop("event")
    return now_s, _READERS.get(name, _read_plain)(_EVENTS[name], document)


def replay(lines: Iterable[str]) -> Iterator[list[Action]]:
    """The actions of each event of a log, in order."""
    rest = iter(lines)
    core = LogHeader.from_json(next(rest)).create_core()
    for line in rest:
        now_s, event = event_from_json(line)
        yield core.handle(now_s, event)


def _read_plain(event: type[Any], document: dict[str, Any]) -> Any:
    return event(**{name: _frozen(value) for name, value in document.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _read_call(document: dict[str, Any]) -> CallSpec:
    return CallSpec(**{**document, "after": tuple(document["after"])})


def _read_application(document: dict[str, Any]) -> ApplicationSpec:
    return ApplicationSpec(**{**document, "calls": tuple(_read_call(call) for call in document["calls"])})


def _read_arrival(event: type[ApplicationArrived], document: dict[str, Any]) -> ApplicationArrived:
    resumes = document["resumes"]
    return event(_read_application(document["application"]), None if resumes is None else Resumption(**resumes))


def _read_reveal(event: type[CallRevealed], document: dict[str, Any]) -> CallRevealed:
    opens = document["opens"]
    return event(
        document["application_id"],
        _read_call(document["call"]),
        None if opens is None else _read_application(opens),
    )


def _read_settings(document: dict[str, Any]) -> CoreSettings:
    plain = {name: _frozen(value) for name, value in document.items()}
    return CoreSettings(
        **{
            **plain,
            "clock": ClockMode(plain["clock"]),
            "flows": Flows(plain["flows"]),
            "admission": Admission(plain["admission"]),
        }
    )


def _read_settings_change(event: type[SettingsChanged], document: dict[str, Any]) -> SettingsChanged:
    return event(_read_settings(document["settings"]), document["policy"])


def _read_join(event: type[ReplicaJoined], document: dict[str, Any]) -> ReplicaJoined:
    return event(document["replica_id"], EngineLimits(**document["limits"]))


_READERS: dict[str, Any] = {
    ApplicationArrived.__name__: _read_arrival,
    CallRevealed.__name__: _read_reveal,
    ReplicaJoined.__name__: _read_join,
    SettingsChanged.__name__: _read_settings_change,
}
