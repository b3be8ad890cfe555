"""Running applications: each call when those before it have answered, results kept for whoever asks.

One task a call; an application's state changes only in `Run`'s methods, on one event loop. A call that fails or
is refused fails its application: the scheduler is told, and drops the rest. Laws: an application is announced
before any of its calls; one that shows as ended shows all its outputs; it is kept until its GPS finish is known (or
lost with the scheduler that knew it) and `max_applications_kept` later ones have settled. Ids are the service's own
(`serve_app.tenants`), but for those in a document, a status or an error, which are the tenant's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from cluster.call_path import drain
from cluster.clock import wall_s
from cluster.telemetry import log_event
from scheduler.actions import (
    Action,
    Grant,
    PublishAudit,
    PublishCallEnd,
    PublishCompletion,
    PublishTag,
    Refusal,
    Reject,
)
from scheduler.events import ApplicationArrived, ApplicationCancelled
from scheduler.types import ApplicationRecord, ApplicationSpec, CallKey, CallSpec
from serve_app.application_events import EventStream
from serve_app.application_prompts import prompt_of_document
from serve_app.application_status import record_fields
from serve_app.documents import ApplicationDocument, ApplicationStatus, CallStatus
from serve_app.errors import ApiError, engine_error, from_refusal
from serve_app.inference import CountedCall, Inference
from serve_app.inference_request import COMPLETIONS_DEFAULT_TOKENS, InferenceRequest, parse_inference
from serve_app.tenants import DEFAULT_TENANT, bare_id, in_tenants_words, scoped_id

logger = logging.getLogger("ray.serve")

CHARS_PER_TOKEN = 4


class Run:
    """One application on its way: what was asked, what is known, and the tasks of its calls."""

    def __init__(self, application_id: str, document: ApplicationDocument, tenant: str = DEFAULT_TENANT) -> None:
        self.application_id = application_id
        self.tenant = tenant
        self.document = document
        self.created_s = wall_s()
        self.calls = {call.name: CallStatus(name=call.name, state="blocked") for call in document.calls}
        self.outputs: dict[str, list[str]] = {}
        self._unanswered = {call.name: set(call.after) for call in document.calls}
        self._dependents = _dependents(document)
        self.events = EventStream()
        self.tasks: set[asyncio.Task[None]] = set()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.finish_tag: float | None = None
        self.predicted_cost: float | None = None
        self.record: ApplicationRecord | None = None
        self.error: ApiError | None = None
        self.stopped = False
        self._unended = set(self.calls)
        self._verdicts: list[PublishCompletion | PublishAudit | None] = []

    @property
    def settled(self) -> bool:
        """Is everything known that ever will be?"""
        return self.events.closed

    @property
    def state(self) -> str:
        if self.record is None and not self.settled:
            return "running" if any(call.state in _STARTED for call in self.calls.values()) else "queued"
        if self.error is not None or self.record is None:
            return "failed"
        if any(call.state != "finished" for call in self.calls.values()):
            return "cancelled"  # the replica's word of a stopped call may come before that of the cancellation
        return self.record.outcome

    @property
    def unfinished_calls(self) -> int:
        """Calls that are still to be run, or run."""
        return 0 if self.record is not None or self.settled else len(self._unended)

    @property
    def roots(self) -> list[str]:
        """Calls that come after no other, in topological order."""
        return [name for name in self.document.order() if not self.document.call(name).after]

    def summary(self) -> ApplicationStatus:
        """What a client may know, without its calls."""
        known = {} if self.record is None else record_fields(self.record)
        return ApplicationStatus.model_validate(
            {
                **known,
                "application_id": bare_id(self.application_id),
                "application_type": self.document.application_type,
                "tenant": self.tenant,
                "weight": self.document.weight,
                "state": self.state,
                "finish_tag": self.finish_tag,
                "predicted_cost": self.predicted_cost,
                "created_s": self.created_s,
                "calls_total": len(self.calls),
                "calls_done": sum(call.state == "finished" for call in self.calls.values()),
                "error": None if self.error is None else self.error.message,
                "ignored_fields": self.document.unrecognised_fields() or None,
            }
        )

    def status(self) -> ApplicationStatus:
        """What a client may know."""
        return self.summary().model_copy(update={"calls": [call.model_copy() for call in self.calls.values()]})

    def take(self, action: Action) -> None:
        """Learn from one action of the scheduler.

        One about a call that is none of the document's is no business of this run: somebody sent an inference under
        this application's id, and was refused.
        """
        call_id = getattr(action, "call_id", None)
        if call_id is not None and call_id not in self.calls:
            return
        match action:
            case PublishTag():
                self._take_tag(action)
            case Reject(refusal=refusal, message=message, call_id=None):
                self._refuse(from_refusal(refusal, self._own_words(message), self._field_at_fault(refusal)))
            case Reject(refusal=refusal, message=message, call_id=str(call_id)):
                self.fail(call_id, from_refusal(refusal, self._own_words(message)))
            case Grant(call_id=call_id):
                self.calls[call_id].state = "running"
                self.events.add("call_granted", call=call_id, replica=action.replica_id)
            case PublishCallEnd(call_id=call_id):
                self._take_call_end(call_id, action)
            case PublishCompletion() | PublishAudit():
                self._verdicts.append(action)
                self.end_if_answered()
            case _:
                pass

    def end_if_answered(self) -> None:
        """Take what the scheduler said of the end, once every answer is in: it may come before the last of them."""
        while self._verdicts and not self.tasks:
            self._end(self._verdicts.pop(0))

    def lose_audit(self) -> None:
        """The scheduler that ended this application is gone, and the reference that it kept went with it."""
        if self.record is not None or self._verdicts:
            self._verdicts.append(None)
            self.end_if_answered()

    def fail(self, name: str, error: ApiError) -> None:
        """A call has failed, and its application with it; the first error is the application's, and the call's."""
        self.calls[name].error = self.calls[name].error or error.message
        self.error = self.error or error

    def answer(self, name: str, outputs: list[str]) -> list[str]:
        """A call has answered; the calls that waited for it alone, which can be rendered from here on."""
        self.calls[name].outputs = self.outputs[name] = outputs
        for other in self._dependents[name]:
            self._unanswered[other].discard(name)
        return [other for other in self._dependents[name] if not self._unanswered[other]]

    def _end(self, verdict: PublishCompletion | PublishAudit | None) -> None:
        if verdict is None:
            self.events.close()
            return
        record = verdict.record
        if isinstance(verdict, PublishCompletion):
            self.record = record
            self.events.add("application_ended", state=self.state, completion_s=record.completion_s)
        elif self.record is not None and self.record.arrival_s == record.arrival_s:  # no earlier bearer of this id
            self.record = record
            self.events.add("application_audited", lag_s=record.lag_s, bound_violated=record.bound_violated)
            self.events.close()

    def _take_tag(self, action: PublishTag) -> None:
        self.finish_tag, self.predicted_cost = action.finish_tag, action.predicted_cost
        self.events.add("tag_set", tag=action.finish_tag, reason=action.reason)
        if not self.accepted.done():
            self.accepted.set_result(None)

    def _take_call_end(self, call_id: str, action: PublishCallEnd) -> None:
        call = self.calls[call_id]
        call.state = action.outcome
        self._unended.discard(call_id)
        call.prompt_tokens, call.output_tokens = action.prompt_tokens, sum(action.output_tokens)
        if action.outcome == "failed":
            self.fail(call_id, ApiError(503, f"call {call_id!r} failed: {action.reason}"))
        elif action.outcome == "cancelled" and call.error is None:
            call.error = action.reason or None
        self.events.add("call_ended", call=call_id, outcome=action.outcome, output_tokens=call.output_tokens)

    def _refuse(self, error: ApiError) -> None:
        """At its arrival, or by a later scheduler that it was given back to."""
        self.error = error
        if not self.accepted.done():
            self.accepted.set_exception(error)
            self.accepted.exception()  # its client may have left
        self.events.add("application_ended", state="failed", completion_s=None)
        self.events.close()

    def _own_words(self, message: str) -> str:
        return in_tenants_words(message, self.application_id)

    def _field_at_fault(self, refusal: Refusal) -> str | None:
        """The field that names the longest prompt, when that is what does not fit."""
        if refusal is not Refusal.CANNOT_FIT:
            return "application_id" if refusal is Refusal.DUPLICATE_ID else None
        names = [call.name for call in self.document.calls]
        index = max(range(len(names)), key=lambda i: self.calls[names[i]].prompt_tokens or 0)
        return f"calls[{index}].{'messages' if self.document.calls[index].is_chat else 'prompt'}"


_STARTED = frozenset({"running", "finished", "failed", "cancelled"})


def _dependents(document: ApplicationDocument) -> dict[str, list[str]]:
    """Each call's name with the names of those that come directly after it, in the order of the document."""
    dependents: dict[str, list[str]] = {call.name: [] for call in document.calls}
    for call in document.calls:
        for name in call.after:
            dependents[name].append(call.name)
    return dependents


class ApplicationRunner:
    """All applications of one ingress."""

    def __init__(self, inference: Inference, max_kept: int) -> None:
        self._inference = inference
        self._link = inference.link
        self._max_kept = max_kept
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._link.listen_to_succession(self._lose_audits)

    def holds(self, application_id: str) -> bool:
        """Is this application here, running or kept?"""
        return application_id in self._runs

    async def submit(self, document: ApplicationDocument, tenant: str = DEFAULT_TENANT) -> ApplicationStatus:
        """Start an application; returns once the scheduler has taken it. Raises ApiError when it is refused.

        Its calls are counted here, all of them at once: one that has begun is not refused a call in its middle.
        """
        application_id = scoped_id(tenant, document.application_id or f"app-{uuid.uuid4().hex[:20]}")
        if application_id in self._runs:
            message = f"application {document.application_id!r} exists already"
            raise from_refusal(Refusal.DUPLICATE_ID, message, "application_id")
        for index, asked in enumerate(document.calls):
            self._inference.check_length(f"calls[{index}].max_tokens", asked.max_tokens)
        self._inference.check_room(sum(run.unfinished_calls for run in self._runs.values()), len(document.calls))
        run = self._runs[application_id] = Run(application_id, document, tenant)
        try:
            counted = {name: await self._count(run, name) for name in run.roots}
            spec = await self._spec(run, counted)
        except BaseException:  # the scheduler has not heard of it
            del self._runs[application_id]
            raise
        await self._announce(run, spec)
        for name, call in counted.items():
            self._spawn(run, self._run_call(run, name, call))
        log_event(logger, "application_accepted", application_id=application_id, tenant=tenant, calls=len(run.calls))
        return run.status()

    async def _announce(self, run: Run, spec: ApplicationSpec) -> None:
        """Have the scheduler take an application. One whose client leaves meanwhile keeps its id until it has ended."""
        self._link.listen(run.application_id, lambda action: self._take(run, action))
        self._link.tell(ApplicationArrived(spec))
        try:
            await asyncio.shield(run.accepted)
        except asyncio.CancelledError:
            self._stop(run, "its client left")
            raise

    def get(self, application_id: str) -> Run:
        """An application by id. Raises ApiError 404."""
        if application_id not in self._runs:
            raise from_refusal(Refusal.UNKNOWN_APPLICATION, f"no application {bare_id(application_id)!r}")
        return self._runs[application_id]

    def summaries(self, tenant: str = DEFAULT_TENANT) -> list[ApplicationStatus]:
        """A tenant's applications kept here, oldest first, without their calls."""
        of_tenant = [run for run in self._runs.values() if run.tenant == tenant]
        return [run.summary() for run in sorted(of_tenant, key=lambda run: run.created_s)]

    def events(self, application_id: str, after: int = 0) -> AsyncGenerator[dict[str, Any]]:
        """Events of an application from number `after` + 1 on, until it has settled. Raises ApiError 404 at once."""
        return self.get(application_id).events.follow(after)

    def cancel(self, application_id: str) -> ApplicationStatus:
        """Stop an application; one that has ended stays as it is."""
        run = self.get(application_id)
        if run.record is None and not run.settled:
            self._stop(run, "cancelled by its client")
        return run.status()

    # ---- calls

    def _take(self, run: Run, action: Action) -> None:
        arriving = not run.accepted.done()
        run.take(action)
        if isinstance(action, PublishCompletion) and action.record.outcome != "finished":
            _stop_tasks(run)
        if isinstance(action, Reject) and action.call_id is None:
            _stop_tasks(run)
            if arriving:
                self._forget_refused(run)
        self._let_go_if_settled(run)

    def _forget_refused(self, run: Run) -> None:
        self._runs.pop(run.application_id, None)
        for name in run.calls:
            self._inference.predictions.forget_call(CallKey(run.application_id, name))

    def _lose_audits(self) -> None:
        for run in [run for run in self._runs.values() if not run.settled]:
            run.lose_audit()
            self._let_go_if_settled(run)

    def _let_go_if_settled(self, run: Run) -> None:
        if not run.settled:
            return
        self._link.unlisten(run.application_id)
        if run.application_id in self._runs:  # it was not refused
            self._runs.move_to_end(run.application_id)  # one that ran for long has settled last
        self._forget_oldest()

    def _stop(self, run: Run, reason: str) -> None:
        """The scheduler hears of it once it has taken the application: one that it refuses may have a namesake."""
        _stop_tasks(run)
        if not run.accepted.done():
            run.accepted.add_done_callback(lambda _: self._stop(run, reason))
        elif run.accepted.exception() is None:
            self._link.tell(ApplicationCancelled(run.application_id, reason))

    def _forget_oldest(self) -> None:
        settled = [application_id for application_id, run in self._runs.items() if run.settled]
        for application_id in settled[: max(0, len(settled) - self._max_kept)]:
            del self._runs[application_id]

    def _spawn(self, run: Run, call: Coroutine[Any, Any, None]) -> None:
        if run.stopped:
            call.close()
            return
        task = asyncio.create_task(call)
        run.tasks.add(task)
        task.add_done_callback(lambda done: self._end_task(run, done))

    def _end_task(self, run: Run, task: asyncio.Task[None]) -> None:
        run.tasks.discard(task)
        if not run.settled:
            run.end_if_answered()
            self._let_go_if_settled(run)

    async def _run_call(self, run: Run, name: str, counted: CountedCall | None = None) -> None:
        """One call from the moment it can be rendered to its answer, then those that waited for it."""
        try:
            counted = counted or await self._count(run, name)
            run.calls[name].state = "waiting"
            outputs = await self._outputs(run, name, counted)
        except ApiError as error:
            self._fail(run, name, error)
        except Exception as error:  # an engine's failure must end the application, not only this task
            self._fail(run, name, ApiError(503, f"call {name!r} failed: {error!r}"))
        else:
            for other in run.answer(name, outputs):
                self._spawn(run, self._run_call(run, other))

    def _fail(self, run: Run, name: str, error: ApiError) -> None:
        """The scheduler hears the error's code only: its message may quote the prompt, or the model."""
        first = run.error is None
        run.fail(name, error)
        if first:
            self._link.tell(ApplicationCancelled(run.application_id, f"call {name} failed: {error.code}"))

    async def _outputs(self, run: Run, name: str, counted: CountedCall) -> list[str]:
        key = CallKey(run.application_id, name)
        predicted = self._inference.predict(key, run.document.application_type, counted, name, run.tenant)
        status, body = await drain(self._inference.answer_member(key, counted, predicted))
        if status != 200:
            raise engine_error(status, body)
        choices = sorted(json.loads(body)["choices"], key=lambda choice: choice["index"])
        return [_chat_text(choice) if counted.request.is_chat else choice["text"] for choice in choices]

    async def _count(self, run: Run, name: str) -> CountedCall:
        outputs = {before: run.outputs[before] for before in run.document.call(name).after}
        body = run.document.render(name, outputs)
        return await self._inference.count(_parse(run.document.path(name), body))

    # ---- what the scheduler is told at arrival

    async def _spec(self, run: Run, counted: dict[str, CountedCall]) -> ApplicationSpec:
        """The application in numbers; prompts that hold answers to come are estimated from predictions."""
        predictions = self._inference.predictions
        prompt, kind = prompt_of_document(run.document), run.document.application_type
        cost = await self._inference.expected(predictions.of_graph, kind, prompt)
        predictions.underway.begin(run.application_id, prompt)
        predicted: dict[str, int] = {}
        specs: dict[str, CallSpec] = {}
        for name in run.document.order():
            specs[name] = self._call_spec(run, name, counted.get(name), predicted)
            predicted[name] = specs[name].predicted_output_tokens * specs[name].sequences
            run.calls[name].prompt_tokens = specs[name].prompt_tokens
        return ApplicationSpec(
            application_id=run.application_id,
            application_type=kind,
            tenant=run.tenant,
            predicted_cost=cost,
            weight=run.document.weight,
            deadline_s=run.document.deadline_s,
            period_s=run.document.period_s,
            calls=tuple(specs[call.name] for call in run.document.calls),
        )

    def _call_spec(self, run: Run, name: str, counted: CountedCall | None, predicted: dict[str, int]) -> CallSpec:
        call = run.document.call(name)
        own_tokens = -(-run.document.longest_template_chars(name) // CHARS_PER_TOKEN)
        inserted_tokens = sum(predicted[before] for before in call.references())
        max_tokens = call.max_tokens or (
            self._inference.default_max_tokens if call.is_chat else COMPLETIONS_DEFAULT_TOKENS
        )
        prompt_tokens = counted.prompt_tokens if counted is not None else max(1, own_tokens + inserted_tokens)
        key, kind = CallKey(run.application_id, name), run.document.application_type
        return CallSpec(
            call_id=name,
            prompt_tokens=prompt_tokens,
            predicted_output_tokens=self._inference.predictions.output_tokens(
                key, kind, name, max_tokens, prompt_tokens, run.tenant
            ),
            max_output_tokens=max_tokens,
            sequences=call.n,
            after=tuple(call.after),
        )


def _stop_tasks(run: Run) -> None:
    run.stopped = True
    for task in run.tasks:
        task.cancel()


def _parse(path: str, body: dict[str, Any]) -> InferenceRequest:
    return parse_inference(path, {}, json.dumps(body).encode())


def _chat_text(choice: dict[str, Any]) -> str:
    text: str | None = choice["message"].get("content")
    return text or ""
