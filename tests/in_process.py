"""The whole path in one process and without Ray: scheduler, replicas, ingresses.

What Serve does between them is played by `Wire` (messages are pickled on their way, a scheduler can be away or be
replaced) and `InProcessReplicas` (a replica can be killed in the middle of anything).
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorDiedError

from cluster.call_server import CallServer
from cluster.clock import monotonic_s
from cluster.engine import CURRENT_LEASE, ActiveLease, EngineCounters, Receive, Scope, Send
from cluster.engines import SimulatedSettings
from cluster.live_replicas import ReplicaGone
from cluster.messages import CallRequest
from cluster.replica_agent import ReplicaAgent
from cluster.scheduler_link import SchedulerLink
from cluster.scheduler_service import SchedulerService
from cluster.settings import SchedulerSettings
from cluster.simulated_engine import SimulatedEngine
from scheduler.core import SchedulerCore
from scheduler.types import CallKey, EngineLimits
from serve_app.inference import Inference
from serve_app.predictions import Predictions
from serve_app.runner import ApplicationRunner
from serve_app.settings import IngressSettings
from serve_app.token_counting import ApproximateTokenCounter
from tests.scheduling import clean_state

TICK_S = 0.02


async def eventually(question: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait until the question is answered yes."""
    async with asyncio.timeout(within_s):
        while not question():  # noqa: ASYNC110 - what is asked about sends no event
            await asyncio.sleep(0.002)


class Wire:
    """A scheduler handle: what it leads to can go away and be replaced, and everything on it is pickled."""

    def __init__(self, service: SchedulerService) -> None:
        self.service: SchedulerService | None = service

    def __getattr__(self, name: str) -> Any:
        async def call(message: Any) -> Any:
            service = self.service
            if service is None:
                raise ConnectionError("the scheduler is away")
            reply = await getattr(service, name)(pickle.loads(pickle.dumps(message)))
            if self.service is not service:
                raise ConnectionError("the scheduler died before its reply")
            return pickle.loads(pickle.dumps(reply))

        return call


class CountingEngine:
    """A simulated engine that remembers which calls it began."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self.simulated = SimulatedEngine(settings)
        self.begun: Counter[CallKey] = Counter()

    async def start(self) -> EngineLimits:
        return await self.simulated.start()

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = CURRENT_LEASE.get()
        if lease is not None:
            self.begun[CallKey(lease.application_id, lease.call_id)] += 1
        await self.simulated.asgi(scope, receive, send)

    def refresh(self, leases: Mapping[str, ActiveLease]) -> EngineCounters:
        return self.simulated.refresh(leases)

    async def check_health(self) -> None:
        await self.simulated.check_health()

    async def stop(self) -> None:
        await self.simulated.stop()


@dataclass
class InProcessReplica:
    replica_id: str
    engine: CountingEngine
    agent: ReplicaAgent
    calls: CallServer
    dead: asyncio.Event = field(default_factory=asyncio.Event)

    async def kill(self) -> None:
        """As kill -9 does: nobody is told, and every stream breaks."""
        self.dead.set()
        for task in self.agent._tasks:
            task.cancel()
        await asyncio.gather(*self.agent._tasks, return_exceptions=True)
        await self.engine.stop()

    @property
    def idle(self) -> bool:
        counters = self.engine.refresh({})
        return not self.agent.leases.active and not self.agent.leases.facts and counters.kv_used_tokens == 0


class InProcessReplicas:
    """Calls a replica directly, as `ServeReplicas` does over a handle."""

    def __init__(self) -> None:
        self.by_id: dict[str, InProcessReplica] = {}

    def live(self) -> frozenset[str]:
        return frozenset(name for name, replica in self.by_id.items() if not replica.dead.is_set())

    async def serve_call(self, replica_id: str, request: CallRequest) -> AsyncGenerator[dict[str, Any]]:
        replica = self.by_id.get(replica_id)
        if replica is None or replica.dead.is_set():
            raise ReplicaGone(replica_id)
        async with aclosing(replica.calls.serve(pickle.loads(pickle.dumps(request)))) as messages:
            while True:
                message = await _next_unless_dead(messages, replica.dead)
                if message is None:
                    return
                yield message


async def _next_unless_dead(messages: AsyncGenerator[dict[str, Any]], dead: asyncio.Event) -> dict[str, Any] | None:
    coming = asyncio.ensure_future(anext(messages, None))
    dying = asyncio.create_task(dead.wait())
    try:
        await asyncio.wait({coming, dying}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        dying.cancel()
        if not coming.done():
            coming.cancel()
        await asyncio.gather(coming, dying, return_exceptions=True)
    if dead.is_set():
        raise ActorDiedError()
    message: dict[str, Any] | None = coming.result()
    return message


@dataclass
class InProcessIngress:
    link: SchedulerLink
    inference: Inference
    runner: ApplicationRunner


class InProcessSystem:
    """A cluster of one process; see `started`."""

    def __init__(self, settings: SchedulerSettings, engine: SimulatedSettings) -> None:
        self.settings = settings
        self.engine_settings = engine
        self.service = SchedulerService(settings, monotonic_s)
        self.wire = Wire(self.service)
        self.replicas = InProcessReplicas()
        self.ingresses: list[InProcessIngress] = []
        self._ticking = asyncio.create_task(self._tick_forever())

    @property
    def core(self) -> SchedulerCore:
        return self.service.core

    @property
    def begun(self) -> Counter[CallKey]:
        """How often each call was begun, on any replica."""
        return sum((replica.engine.begun for replica in self.replicas.by_id.values()), Counter())

    async def add_replica(self, name: str) -> InProcessReplica:
        engine = CountingEngine(self.engine_settings)
        agent = ReplicaAgent(name, engine, await engine.start(), self.wire)
        replica = InProcessReplica(name, engine, agent, CallServer(engine, agent.leases))
        self.replicas.by_id[name] = replica
        agent.start()
        return replica

    def add_ingress(self, name: str, settings: IngressSettings | None = None) -> InProcessIngress:
        settings = settings or IngressSettings()
        link = SchedulerLink(name, self.wire, self.replicas.live)
        predictions = Predictions()
        link.listen_to_all(predictions.note)
        inference = Inference(link, self.replicas, ApproximateTokenCounter(), predictions, settings)
        ingress = InProcessIngress(link, inference, ApplicationRunner(inference, settings.max_applications_kept))
        self.ingresses.append(ingress)
        link.start()
        return ingress

    def replace_scheduler(self) -> None:
        """Kill the scheduler, without a word, and start a fresh one on the same journal."""
        old, self.wire.service = self.service, None
        old._journal.close()
        self.service = self.wire.service = SchedulerService(self.settings, monotonic_s)

    async def ready(self) -> None:
        """Every replica has joined and every ingress is known."""
        await eventually(
            lambda: (
                len(self.core.replicas) == len(self.replicas.live())
                and len(self.service._register.present) == len(self.ingresses)
                and all(view.live_replicas == self.replicas.live() for view in self.service._register.present.values())
            )
        )

    @property
    def quiet(self) -> bool:
        """Nothing waits, runs or is on its way."""
        return (
            not self.core.applications
            and not self.core.leases
            and all(not ingress.link.held.applications and not ingress.link._outbox for ingress in self.ingresses)
            and all(replica.idle for replica in self.replicas.by_id.values() if not replica.dead.is_set())
        )

    async def clean(self, within_s: float = 30.0) -> None:
        """Wait until nothing is left of what was done, and look that it is so."""
        await eventually(lambda: self.quiet, within_s)
        clean_state(self.core)
        assert self.service._register.call_owners == {}
        assert all(
            not ingress.calls and not ingress.applications for ingress in self.service._register.present.values()
        )
        for ingress in self.ingresses:
            assert ingress.link._expected == {}
            assert ingress.inference._in_flight == 0
        for replica in self.replicas.by_id.values():
            assert replica.engine.simulated._batch.idle
            assert replica.engine.simulated._sequences == {}

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.service.tick()

    async def stop(self) -> None:
        for ingress in self.ingresses:
            await ingress.link.stop()
        for replica in self.replicas.by_id.values():
            if not replica.dead.is_set():
                await replica.agent.stop()
                await replica.engine.stop()
        self._ticking.cancel()
        with suppress(asyncio.CancelledError):
            await self._ticking
        self.service.close()


@asynccontextmanager
async def started(
    replicas: int = 1, ingresses: int = 1, engine: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[InProcessSystem]:
    """A system that is ready; it must leave no task behind."""
    before = asyncio.all_tasks()
    checked = {"check_invariants": True, "open_idle_s": 0.2, "reservation_timeout_s": 1.0, **settings}
    system = InProcessSystem(
        SchedulerSettings(**checked),
        SimulatedSettings(
            **{"time_scale": 1, "base_s": 0.0005, "per_sequence_s": 0, "per_prefill_token_s": 0, **(engine or {})}
        ),
    )
    try:
        for number in range(replicas):
            await system.add_replica(f"r{number}")
        for number in range(ingresses):
            system.add_ingress(f"i{number}")
        await system.ready()
        yield system
    finally:
        await system.stop()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
