"""An ingress's side of the talk with the scheduler.

Events are gathered and submitted in batches, one batch under way at a time, so they arrive in order whatever the
transport does; actions are collected by one parked request and handed to whoever waits. When the scheduler was
started anew, what this ingress holds is introduced again before anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from cluster.clock import monotonic_s
from cluster.endless import keep_trying
from cluster.held_calls import HeldCalls
from cluster.messages import Collection, CollectionReply, Submission, SubmissionReply
from cluster.telemetry import log_event
from scheduler.actions import Action, Grant, PublishCallEnd, Refusal, Reject
from scheduler.events import ApplicationCancelled, ApplicationClosed, CallCancelled, CallFailed, CallFinished, Event
from scheduler.types import CallKey

logger = logging.getLogger("ray.serve")

COLLECT_WAIT_S = 1.0
VIEW_S = 0.5
RETRY_S = 0.2
LEAVE_S = 1.0

_ENDINGS = (ApplicationCancelled, ApplicationClosed, CallCancelled, CallFailed, CallFinished)

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


class PendingGrants:
    """Where the grants of one call arrive. A later one replaces an earlier one that was not taken, since it is void."""

    def __init__(self) -> None:
        self._grant: Grant | None = None
        self._refused: CallRefused | None = None
        self._arrived = asyncio.Event()

    async def next(self) -> Grant:
        """The latest grant, each once. Raises CallRefused when the scheduler has refused or ended the call."""
        while self._grant is None and self._refused is None:
            self._arrived.clear()
            await self._arrived.wait()
        if self._refused is not None:
            raise self._refused
        grant, self._grant = self._grant, None
        assert grant is not None
        return grant

    def put(self, grant: Grant) -> None:
        self._grant = grant
        self._arrived.set()

    def refuse(self, refused: CallRefused) -> None:
        self._refused = self._refused or refused  # the first says why, a later one that it has ended
        self._arrived.set()


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
        self._under_way: int | None = None
        self._news = asyncio.Event()
        self._expected: dict[CallKey, PendingGrants] = {}
        self._listeners: dict[str, Listener] = {}
        self._general_listener: Listener | None = None
        self._succession_listeners: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to submit and to collect."""
        self._tasks = [
            asyncio.create_task(keep_trying(self._submit_once, RETRY_S, ingress_id=self.ingress_id), name="submit"),
            asyncio.create_task(keep_trying(self._collect_once, RETRY_S, ingress_id=self.ingress_id), name="collect"),
        ]

    async def stop(self) -> None:
        """Stop; what has not been submitted is lost with the ingress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Give up all that is held, let the scheduler hear of it for `LEAVE_S` at most, then stop; idempotent."""
        if self.alive:
            self.tell(*self.held.cancellations("its ingress stops"))
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    while self._outbox:  # noqa: ASYNC110 - ends with the outbox or the time limit
                        await asyncio.sleep(LEAVE_S / 100)
        await self.stop()

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

    def listen_to_succession(self, listener: Callable[[], None]) -> None:
        """Have `listener` called when a later scheduler takes over: what the earlier one still owed will not come."""
        self._succession_listeners.append(listener)

    def unlisten(self, application_id: str) -> None:
        """Stop listening; idempotent."""
        self._listeners.pop(application_id, None)

    @contextmanager
    def expecting(self, key: CallKey) -> Iterator[PendingGrants]:
        """The grants of a call; to be entered before telling that the call is ready, and left when it is answered.

        Leaving gives up waiting, not the call: tell `CallCancelled` for that.
        """
        grants = self._expected[key] = PendingGrants()
        try:
            yield grants
        finally:
            if self._expected.get(key) is grants:
                del self._expected[key]

    def cancel(self, key: CallKey, reason: str) -> None:
        """Nobody waits for this call any more."""
        self.tell(CallCancelled(key.application_id, key.call_id, reason))

    async def _submit_once(self) -> None:
        if self._epoch and not self._outbox:
            with suppress(TimeoutError):
                async with asyncio.timeout(VIEW_S):
                    await self._news.wait()
        self._news.clear()
        batch = self._next_batch()
        submission = Submission(self.ingress_id, self._epoch, self._sequence + 1, batch, self._live_replicas())
        reply = await self._scheduler.submit(submission)
        if reply.accepted:
            self._sequence += 1
            self._under_way = None
            del self._outbox[: len(batch)]
        elif reply.epoch > self._epoch:
            self._introduce(reply.epoch)
        else:
            await asyncio.sleep(RETRY_S)  # an older scheduler answered; the one of our epoch will

    def _next_batch(self) -> tuple[Event, ...]:
        """What goes out next. A batch whose fate is unknown goes out again unchanged: it may have been applied."""
        if self._under_way is None:
            self._under_way = len(self._outbox)
        return tuple(self._outbox[: self._under_way])

    def _introduce(self, epoch: int) -> None:
        """A later scheduler has taken over: it hears of all that is held, which the outbox is part of."""
        log_event(logger, "scheduler_met", ingress_id=self.ingress_id, epoch=epoch)
        endings = [event for event in self._outbox if isinstance(event, _ENDINGS)]
        self._epoch, self._sequence, self._collected, self._under_way = epoch, 0, 0, None
        self._outbox = [*self.held.reintroduction(monotonic_s()), *endings]
        for listener in self._succession_listeners:
            listener()

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
                self._collected = number  # taken once, whatever comes of it
                self._take(action)

    def _take(self, action: Action) -> None:
        self.held.note_action(action)
        match action:
            case Grant():
                self._take_grant(action)
            case Reject(application_id, call_id, refusal, message) if call_id is not None:
                self._refuse(CallKey(application_id, call_id), CallRefused(refusal, message))
            case PublishCallEnd(application_id, call_id, outcome, reason):
                self._refuse(CallKey(application_id, call_id), _ended(outcome, reason))
            case _:
                pass
        for listener in (self._general_listener, self._listeners.get(_application_of(action))):
            if listener is not None:
                self._tell_listener(listener, action)

    def _tell_listener(self, listener: Listener, action: Action) -> None:
        """A listener that fails is its own loss: the mail of all others goes on."""
        try:
            listener(action)
        except Exception as error:  # whatever a listener raises
            log_event(
                logger,
                "listener_failed",
                ingress_id=self.ingress_id,
                application_id=_application_of(action),
                action=type(action).__name__,
                error=repr(error),
            )

    def _take_grant(self, grant: Grant) -> None:
        """Hand a grant to whoever waits. Where nobody does, the call has its answer, or was given up before.

        Its replica was lost after the answer and before the report of it; the true numbers went with it, and the
        expected ones stand in for them.
        """
        key = CallKey(grant.application_id, grant.call_id)
        if key in self._expected:
            self._expected[key].put(grant)
            return
        held = self.held.applications.get(key.application_id)
        call = None if held is None else held.calls.get(key.call_id)
        if call is not None:
            spec = call.latest_spec
            self.tell(
                CallFinished(grant.lease_id, spec.prompt_tokens, (spec.predicted_output_tokens,) * spec.sequences)
            )

    def _refuse(self, key: CallKey, refused: CallRefused) -> None:
        if key in self._expected:
            self._expected[key].refuse(refused)


def _ended(outcome: str, reason: str) -> CallRefused:
    """Why nobody need wait for a call any more; one that reads its answer already does not notice."""
    if outcome == "finished":
        return CallRefused(Refusal.LOST, "the engine finished, but its answer was lost on the way")
    refusal = Refusal.CANCELLED if outcome == "cancelled" else Refusal.LOST
    return CallRefused(refusal, f"{outcome}: {reason}")


def _application_of(action: Action) -> str:
    record = getattr(action, "record", None)
    application_id: str = record.application_id if record is not None else getattr(action, "application_id", "")
    return application_id
