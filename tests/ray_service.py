"""The whole service on a Ray of this test session, and what tests ask of it.

One Ray and one deployment serve all tests of `tests/http` and `tests/cluster` (`tests/conftest.py` has the fixture),
since each start costs many seconds. A replica has four slots and more memory than they use, so a few calls make a
queue; an iteration takes about 5 ms. A test that changes the service puts it back.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

from cluster.deploy.local import deploy, free_port, load_config, local_ray
from scheduler.actions import Action, Grant, PublishCallEnd, PublishTag, Reject
from scheduler.event_log import LogHeader, event_from_json, replay
from scheduler.events import (
    ApplicationArrived,
    CallAdopted,
    CallFinished,
    CallLost,
    CallReady,
    CallRevealed,
    Event,
    SettingsChanged,
)
from scheduler.types import CallKey

CONFIG = Path(__file__).parent.parent / "serve_config.yaml"
SLOTS = 4
MAX_MODEL_LEN = 16_000
MAX_BODY_BYTES = 12 * 2**20
ENGINE = {
    "kind": "simulated",
    "time_scale": 0.2,
    "block_tokens": 16,
    "usable_blocks": 1024,
    "max_model_len": MAX_MODEL_LEN,
    "max_sequences": SLOTS,
}
MODEL = "simulated"
OPEN_IDLE_S = 2.0
LAST_IN_ORDER = 0.01  # a weight so small that an application comes after every other, whatever was learnt before
METRICS_EVERY_MS = "2000"  # Ray's own default of ten seconds would make tests wait
POLL_S = 0.05
GONE_WITHIN_S = 10.0
LOG_TAIL_LINES = 40

Config = dict[str, Any]


@dataclass(frozen=True)
class Service:
    """A running service: where it listens, what it was deployed with, where it writes."""

    url: str
    config: Config
    state_dir: Path
    ray_dir: Path

    # ---- asking it

    def http(self, timeout_s: float = 60.0) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout_s)

    def async_http(self, timeout_s: float = 60.0) -> httpx.AsyncClient:
        """Up to 200 connections; none is kept, so that each request may meet another ingress."""
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=timeout_s, limits=limits)

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=60)

    async def overview(self) -> dict[str, Any]:
        """`GET /v1/scheduler`; asked again while the scheduler is away."""
        async with self.async_http() as client:
            answer = await client.get("/v1/scheduler")
            answer.raise_for_status()
            return dict(answer.json())

    async def until(self, question: Callable[[dict[str, Any]], bool], within_s: float = 10.0) -> dict[str, Any]:
        """Wait until the overview answers the question with yes; gives that overview."""
        deadline_s = time.monotonic() + within_s
        while True:
            with suppress(httpx.HTTPError):
                seen = await self.overview()
                if question(seen):
                    return seen
            assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {seen}"
            await asyncio.sleep(POLL_S)

    async def until_idle(self, within_s: float = 10.0) -> dict[str, Any]:
        """Wait until no call waits or runs, and no memory is held."""
        return await self.until(is_idle, within_s)

    async def until_clean(self, within_s: float = 20.0) -> dict[str, Any]:
        """Wait until nothing is left of what was done, seen from outside."""
        return await self.until(lambda seen: is_idle(seen) and not seen["applications"], within_s)

    # ---- changing it

    @asynccontextmanager
    async def changed(self, scheduler: dict[str, Any]) -> AsyncIterator[None]:
        """The scheduler's `user_config` with these values, for as long as the block runs."""
        config = copy.deepcopy(self.config)
        config["applications"][0]["deployments"][0]["user_config"].update(scheduler)
        await asyncio.to_thread(deploy, config)
        try:
            yield
        finally:
            await asyncio.to_thread(deploy, self.config)

    # ---- looking inside

    def actors(self, deployment: str) -> dict[str, int]:
        """Process ids of the living replicas of a deployment, by replica id."""
        return _actors(deployment)

    def kill(self, deployment: str, replica_id: str) -> None:
        """kill -9."""
        os.kill(self.actors(deployment)[replica_id], signal.SIGKILL)

    def virtual_time(self) -> float:
        """V as the journal has it."""
        with sqlite3.connect(f"file:{self.state_dir / 'journal.sqlite3'}?mode=ro", uri=True) as database:
            return float(database.execute("SELECT virtual_time FROM clock").fetchone()[0])

    def recording(self, epoch: int) -> Recording:
        """What the scheduler of this epoch was told so far, replayed."""
        text = (self.state_dir / f"events-{epoch}.jsonl").read_text(encoding="utf-8")
        return Recording.of(text[: text.rfind("\n") + 1].splitlines())

    def epochs(self) -> list[int]:
        """Of every scheduler that there was, in order."""
        return sorted(int(path.stem.removeprefix("events-")) for path in self.state_dir.glob("events-*.jsonl"))

    def logs(self, deployment: str) -> dict[str, list[dict[str, Any]]]:
        """JSON log records of each replica of a deployment, dead ones included, by replica id."""
        return {
            path.stem.rpartition("_")[2]: [
                json.loads(line) for line in path.read_text().splitlines() if line[:1] == "{"
            ]
            for path in self._log_files()
            if f"_{deployment}_" in path.name
        }

    def log_events(self, deployment: str, event: str) -> list[dict[str, Any]]:
        """Structured records of one event from every replica of a deployment."""
        return [record for log in self.logs(deployment).values() for record in log if record.get("event") == event]

    def log_tail(self) -> str:
        """The last lines of every log of Serve, for a test that has failed."""
        parts = [f"{path.name}\n" + "\n".join(_tail(path)) for path in self._log_files()]
        return "\n\n".join(parts)

    def _log_files(self) -> list[Path]:
        return sorted(self.ray_dir.glob("session_2*/logs/serve/*.log"))


def is_idle(overview: dict[str, Any]) -> bool:
    names = ("calls_unfinished", "calls_waiting", "calls_running", "kv_held_tokens")
    return not any(overview[name] for name in names)


@dataclass(frozen=True)
class Recording:
    """An event log: what came in, and what the core orders when it is told the same again."""

    policy: str
    steps: list[tuple[Event, list[Action]]]

    @classmethod
    def of(cls, lines: list[str]) -> Recording:
        events = [event_from_json(line)[1] for line in lines[1:]]
        policy = LogHeader.from_json(lines[0]).policy
        return cls(policy, list(zip(events, replay(lines), strict=True)))

    @property
    def grants(self) -> list[Grant]:
        return [action for _, actions in self.steps for action in actions if isinstance(action, Grant)]

    def grants_of(self, applications: set[str]) -> list[Grant]:
        return [grant for grant in self.grants if grant.application_id in applications]

    def finishes(self) -> list[str]:
        """Leases that finished, each as often as it was said."""
        return [event.lease_id for event, _ in self.steps if isinstance(event, CallFinished)]

    def watched(self) -> Onlooker:
        """Who has seen all of it."""
        queue = Onlooker(self.policy)
        for event, actions in self.steps:
            queue.hear(event)
            for action in actions:
                queue.see(action)
        return queue


class Onlooker:
    """Looks whether grants follow the tags, independent of the core.

    Who waits and which tags hold is read off the events and published actions alone, for calls that come after no
    others. `wrong`: grants that `justitia` gave while a call of an application with a smaller tag waited;
    `contested`: how many it gave while any call waited.
    """

    def __init__(self, policy: str) -> None:
        self.wrong: list[str] = []
        self.contested = 0
        self._policy = policy
        self._tags: dict[str, float] = {}
        self._introduced: set[CallKey] = set()
        self._waiting: set[CallKey] = set()
        self._granted: dict[str, CallKey] = {}

    def hear(self, event: Event) -> None:
        match event:
            case ApplicationArrived(application):
                free = [call.call_id for call in application.calls if not call.after]
                self._introduced |= {CallKey(application.application_id, call_id) for call_id in free}
            case CallRevealed(application_id, call):
                self._introduced.add(CallKey(application_id, call.call_id))
            case CallReady(application_id, call_id):
                self._waiting |= {CallKey(application_id, call_id)} & self._introduced
            case CallAdopted(application_id, call_id):
                self._waiting.discard(CallKey(application_id, call_id))
            case CallLost(lease_id) if lease_id in self._granted:
                self._waiting.add(self._granted[lease_id])
            case SettingsChanged(policy=policy):
                self._policy = policy
            case _:
                pass

    def see(self, action: Action) -> None:
        match action:
            case PublishTag():
                self._tags[action.application_id] = action.finish_tag
            case PublishCallEnd(application_id, call_id) | Reject(application_id, str(call_id)):
                self._introduced.discard(CallKey(application_id, call_id))
                self._waiting.discard(CallKey(application_id, call_id))
            case Reject(application_id):
                self._introduced = {key for key in self._introduced if key.application_id != application_id}
            case Grant():
                self._note_grant(action)
            case _:
                pass

    def _note_grant(self, grant: Grant) -> None:
        key = self._granted[grant.lease_id] = CallKey(grant.application_id, grant.call_id)
        self._waiting.discard(key)
        if self._policy == "justitia":
            tag = self._tags[key.application_id]
            self.contested += bool(self._waiting)
            self.wrong += [f"{key} before {other}" for other in self._waiting if self._tags[other.application_id] < tag]


@asynccontextmanager
async def running_service() -> AsyncIterator[Service]:
    """Ray and the service, up and answering; both gone afterwards, with every process and file of theirs."""
    os.environ.setdefault("RAY_metrics_report_interval_ms", METRICS_EVERY_MS)
    before = children()
    with tempfile.TemporaryDirectory(prefix="jst-state-") as state_dir, local_ray(num_cpus=2) as ray_dir:
        config = service_config(Path(state_dir))
        url = deploy(config)
        service = Service(url, config, Path(state_dir), ray_dir)
        await service.until(lambda seen: len(seen["replicas"]) == 2, within_s=30)
        started = children() - before
        yield service
        started |= children() - before
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while left := [process for process in started if process.is_running()]:
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        await asyncio.sleep(POLL_S)
    assert not ray_dir.exists()


def children() -> set[psutil.Process]:
    """Every process that this one started, and those that they started."""
    return set(psutil.Process().children(recursive=True))


def service_config(state_dir: Path) -> Config:
    config = load_config(CONFIG)
    config["http_options"]["port"] = free_port()
    scheduler, service = config["applications"]
    scheduler["args"] = {
        "state_dir": str(state_dir),
        "event_log": True,
        "check_invariants": True,
        "open_idle_s": OPEN_IDLE_S,
        "replica_timeout_s": 5.0,
    }
    service["args"] = {"engine": ENGINE, "ingress": {"max_body_bytes": MAX_BODY_BYTES}}
    engine, ingress = service["deployments"]
    engine.update(num_replicas=2, ray_actor_options={"num_cpus": 0})
    ingress.update(num_replicas=2)
    return config


def completion(tokens: int, prompt: str = "Go on", **fields: Any) -> dict[str, Any]:
    """A completion request whose every sequence has exactly so many tokens."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}


def document_call(name: str, tokens: int, prompt: str = "Go on", **fields: Any) -> dict[str, Any]:
    """A call of an application, likewise."""
    return {"name": name, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}


@asynccontextmanager
async def occupied(service: Service, rounds: int = 3) -> AsyncIterator[str]:
    """All slots of both replicas are taken by one application, about 4 s a round; gives its id.

    What a test adds waits until a round ends, whatever its place in the order.
    """
    calls = [document_call(f"hold{index}", 800, n=SLOTS) for index in range(2 * rounds)]
    async with service.async_http() as client:
        answer = await client.post("/v1/applications", json={"application_type": "occupant", "calls": calls})
        assert answer.status_code == 201, answer.text
        application_id = answer.json()["application_id"]
        await service.until(lambda seen: seen["calls_running"] == 2)
        try:
            yield application_id
        finally:
            await client.delete(f"/v1/applications/{application_id}")
            await service.until_idle()


def _actors(deployment: str) -> dict[str, int]:
    from ray._private.state import actors  # the public state API needs a dashboard

    return {
        actor["Name"].rpartition("#")[2]: actor["Pid"]
        for actor in actors().values()
        if actor["State"] == "ALIVE" and f"#{deployment}#" in actor["Name"]
    }


def _tail(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
