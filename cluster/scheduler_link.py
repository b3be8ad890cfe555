"""An ingress's side of the talk with the scheduler.

Events are gathered and submitted in batches, one batch under way at a time, so they arrive in order whatever the
transport does; actions are collected by one parked request and handed to whoever waits. When the scheduler was
started anew, what this ingress holds is introduced again before anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from cluster.clock import monotonic_s
from cluster.held_calls import HeldCalls
from cluster.messages import Collection, CollectionReply, Submission, SubmissionReply
from cluster.telemetry import log_event
from scheduler.actions import Action, Grant, PublishCallEnd, Refusal, Reject
from scheduler.events import ApplicationCancelled, ApplicationClosed, CallCancelled, CallFailed, Event
from scheduler.types import CallKey

logger = logging.getLogger("ray.serve")

COLLECT_WAIT_S = 1.0
VIEW_S = 0.5
RETRY_S = 0.2

_ENDINGS = (ApplicationCancelled, ApplicationClosed, CallCancelled, CallFailed)

Listener = Callable[[Action], None]


class SchedulerForIngresses(Protocol):
    """What an ingress asks of the scheduler."""

    async def submit(self, submission: Submission) -> SubmissionReply: ...

    async def collect(self, collection: Collection) -> CollectionReply: ...


class CallRefused(Exception):
    """The scheduler refused a call, or ended it."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class SchedulerLink:
    """One ingress's link, from `start` to `stop`. `live_replicas` says whom this ingress can call."""

    def __init__(
        self,
        ingress_id: str,
        scheduler: SchedulerForIngresses,
        live_replicas: Callable[[], frozenset[str]],
    ) -> None:
        self.ingress_id = ingress_id
        self.held = HeldCalls()
        self._scheduler = scheduler
        self._live_replicas = live_replicas
        self._epoch = 0
        self._sequence = 0
        self._collected = 0
        self._outbox: list[Event] = []
        self._news = asyncio.Event()
        self._waiting: dict[CallKey, asyncio.Future[Grant]] = {}
        self._listeners: dict[str, Listener] = {}
        self._general_listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to submit and to collect."""
        self._tasks = [
            asyncio.create_task(self._persist(self._submit_once), name="submit"),
            asyncio.create_task(self._persist(self._collect_once), name="collect"),
        ]

    async def stop(self) -> None:
        """Stop; what has not been submitted is lost with the ingress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def alive(self) -> bool:
        """Do both loops still run?"""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def tell(self, *events: Event) -> None:
        """Submit events, in this order, as soon as may be."""
        for event in events:
            self.held.note_event(monotonic_s(), event)
        self._outbox.extend(events)
        self._news.set()

    def listen(self, application_id: str, listener: Listener) -> None:
        """Have every action that concerns an application handed to `listener`, until `unlisten`."""
        self._listeners[application_id] = listener

    def listen_to_all(self, listener: Listener) -> None:
        """Have every action handed to `listener` too."""
        self._general_listener = listener

    def unlisten(self, application_id: str) -> None:
        """Stop listening; idempotent."""
        self._listeners.pop(application_id, None)

    def expect(self, key: CallKey) -> asyncio.Future[Grant]:
        """The grant of a call, to be awaited; register before telling that the call is ready.

        Raises CallRefused when the scheduler refuses or ends the call. Cancelling the future gives up waiting,
        not the call: tell `CallCancelled` for that.
        """
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        future.add_done_callback(lambda done: self._forget(key, done))
        return future

    def cancel(self, key: CallKey, reason: str) -> None:
        """Nobody waits for this call any more."""
        self.tell(CallCancelled(key.application_id, key.call_id, reason))

    def _forget(self, key: CallKey, future: asyncio.Future[Grant]) -> None:
        if not future.cancelled():
            future.exception()  # a refusal that nobody awaits any more is no error
        if self._waiting.get(key) is future:
            del self._waiting[key]

    async def _persist(self, once: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await once()
            except Exception as error:  # any failure of the scheduler must not end the loop
                log_event(logger, "scheduler_unreachable", ingress_id=self.ingress_id, error=repr(error))
                await asyncio.sleep(RETRY_S)

    async def _submit_once(self) -> None:
        if self._epoch and not self._outbox:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), VIEW_S)
        self._news.clear()
        batch = tuple(self._outbox)
        submission = Submission(self.ingress_id, self._epoch, self._sequence + 1, batch, self._live_replicas())
        reply = await self._scheduler.submit(submission)
        if reply.accepted:
            self._sequence += 1
            del self._outbox[: len(batch)]
        elif reply.epoch > self._epoch:
            self._introduce(reply.epoch)
        else:
            await asyncio.sleep(RETRY_S)  # an older scheduler answered; the one of our epoch will

    def _introduce(self, epoch: int) -> None:
        """A later scheduler has taken over: it hears of all that is held, which the outbox is part of."""
        log_event(logger, "scheduler_met", ingress_id=self.ingress_id, epoch=epoch)
        endings = [event for event in self._outbox if isinstance(event, _ENDINGS)]
        self._epoch, self._sequence, self._collected = epoch, 0, 0
        self._outbox = [*self.held.reintroduction(monotonic_s()), *endings]

    async def _collect_once(self) -> None:
        epoch = self._epoch
        if epoch == 0:
            await asyncio.sleep(RETRY_S / 4)
            return
        reply = await self._scheduler.collect(Collection(self.ingress_id, epoch, self._collected, COLLECT_WAIT_S))
        if reply.epoch != epoch or epoch != self._epoch:
            self._news.set()
            await asyncio.sleep(RETRY_S / 4)
            return
        first = reply.last - len(reply.actions) + 1
        for number, action in enumerate(reply.actions, first):
            if number > self._collected:
                self._take(action)
        self._collected = max(self._collected, reply.last)

    def _take(self, action: Action) -> None:
        self.held.note_action(action)
        match action:
            case Grant(application_id=application_id, call_id=call_id):
                self._resolve(CallKey(application_id, call_id), action)
            case Reject(application_id, call_id, refusal, message) if call_id is not None:
                self._refuse(CallKey(application_id, call_id), CallRefused(refusal, message))
            case PublishCallEnd(application_id, call_id, outcome, reason) if outcome != "finished":
                refused = CallRefused(Refusal.CANCELLED, f"{outcome}: {reason}")
                self._refuse(CallKey(application_id, call_id), refused)
            case _:
                pass
        for listener in (self._general_listener, self._listeners.get(_application_of(action))):
            if listener is not None:
                listener(action)

    def _resolve(self, key: CallKey, grant: Grant) -> None:
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_result(grant)

    def _refuse(self, key: CallKey, refused: CallRefused) -> None:
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_exception(refused)


def _application_of(action: Action) -> str:
    record = getattr(action, "record", None)
    application_id: str = record.application_id if record is not None else getattr(action, "application_id", "")
    return application_id
