"""The ingress: HTTP in OpenAI's shape and the Ray handle, over the same operations.

Any number of ingresses may run. Each holds the applications that were submitted to it; one that is asked for an
application it does not hold asks its peers. Bodies are bounded, and nothing a client sends is answered with 500.

Every operation is a tenant's: over HTTP that of the API key (`serve_app.authentication`), on the handle, which is
trusted, whichever its caller names. An application of another tenant is as unknown as one that never was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, NoReturn

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from starlette.responses import Response

from cluster import replica
from cluster.call_path import ServeReplicas, drain
from cluster.clock import wall_s
from cluster.live_replicas import live_replicas
from cluster.replica_router import router_config, watch
from cluster.scheduler_client import SchedulerClient
from cluster.scheduler_link import SchedulerLink
from scheduler.actions import Refusal
from scheduler.events import ApplicationCancelled, ApplicationClosed
from serve_app.application_status import (
    bare_explanation,
    status_from_explanation,
    status_from_record,
    statuses_beside,
)
from serve_app.authentication import KeyCheck, Tenant
from serve_app.cluster_errors import install_cluster_handlers, within_answer_time
from serve_app.documents import ID_PATTERN, ApplicationDocument, parse_application
from serve_app.errors import ApiError, engine_error, from_refusal, install_handlers
from serve_app.http_requests import bounded_body, forwarded_get, last_event_id, server_sent
from serve_app.inference import ANONYMOUS_PATTERN, CountedCall, Inference, forwarded_headers
from serve_app.inference_request import InferenceRequest, parse_inference
from serve_app.live_predictor import LivePredictor
from serve_app.open_applications import OpenApplications, new_id
from serve_app.peers import Peers
from serve_app.relay import relay
from serve_app.runner import ApplicationRunner
from serve_app.settings import ServingSettings
from serve_app.sub_agents import Families
from serve_app.tenants import DEFAULT_TENANT, ApiKeys, bare_id, scoped_id
from serve_app.token_counting import TokenCounter, create_counter

logger = logging.getLogger("ray.serve")

DEPLOYMENT = "Ingress"
APPLICATIONS_PATH = "/v1/applications"
http = FastAPI(title="Justitia on Ray Serve", docs_url="/docs", openapi_url="/openapi.json")
install_handlers(http)
install_cluster_handlers(http)


# These stand above the class: Serve copies it where it is decorated, with such globals as there are by then.


def _keys() -> ApiKeys:
    """The keys of the ingress in this process."""
    keys: ApiKeys = serve.get_replica_context().servable_object._keys
    return keys


http.add_middleware(KeyCheck, keys=_keys)


def _named(application_id: str, tenant: str) -> str:
    """What the service calls a tenant's application.

    Raises ApiError 404 for what is no id that a client can give: it belongs to nobody, or to the service itself.
    """
    if re.fullmatch(ID_PATTERN, application_id) is None:
        _raise_unknown(application_id)
    return scoped_id(tenant, application_id)


def _seen(application_id: str, tenant: str) -> str:
    """As `_named`, for questions alone: also the names that answers give to traffic which names no application."""
    if re.fullmatch(ANONYMOUS_PATTERN, application_id) is not None:
        return scoped_id(tenant, application_id)
    return _named(application_id, tenant)


def _raise_unknown(application_id: str) -> NoReturn:
    raise from_refusal(Refusal.UNKNOWN_APPLICATION, f"no application {application_id!r}")


async def _peer_events(peer: Any, application_id: str, after: int, tenant: str) -> AsyncGenerator[dict[str, Any]]:
    stream = peer.options(stream=True).application_events.remote(application_id, after, tenant)
    try:
        async for event in stream:
            yield event
    finally:
        stream.cancel()


@serve.deployment(
    name=DEPLOYMENT,
    max_ongoing_requests=20_000,
    health_check_period_s=2,
    graceful_shutdown_timeout_s=10,
    ray_actor_options={"num_cpus": 0},
    request_router_config=router_config(),
)
@serve.ingress(http)
class Ingress:
    """One ingress. Methods without a leading underscore are the Ray handle's operations."""

    async def __init__(self, settings: dict[str, Any], engine_handle: Any) -> None:  # type: ignore[misc]
        self._settings = ServingSettings.model_validate(settings)
        self._keys = ApiKeys(self._settings.ingress.api_keys, self._settings.ingress.api_keys_file)
        context = serve.get_replica_context()
        self._application = context.app_name
        self._scheduler = SchedulerClient.connect()
        self._replicas = ServeReplicas(engine_handle)
        watch(engine_handle)
        self._link = SchedulerLink(context.replica_id.unique_id, self._scheduler, self._live_replicas)
        self._predictor = LivePredictor(self._settings.ingress, context.replica_id.unique_id)
        await self._predictor.start()
        self._link.listen_to_all(self._predictor.predictions.note)
        self._counter = await create_counter(self._settings.engine)
        self._inference = Inference(
            self._link,
            self._replicas,
            self._counter,
            self._predictor.predictions,
            self._settings.ingress,
            self._settings.engine.max_model_len,
        )
        self._runner = ApplicationRunner(self._inference, self._settings.ingress.max_applications_kept)
        self._open = OpenApplications(self._link, self._settings.ingress.max_applications_kept)
        self._peers = Peers(DEPLOYMENT, self._application, context.replica_id.unique_id)
        self._families = Families(self._peers, self._open.type_of)
        self._link.start()

    def _live_replicas(self) -> frozenset[str]:
        return live_replicas(replica.DEPLOYMENT, self._application)

    # ---- operations, over HTTP and the Ray handle alike

    async def submit_application(
        self, document: dict[str, Any] | bytes, tenant: str = DEFAULT_TENANT
    ) -> dict[str, Any]:
        """Start a DAG of calls, or an open application (see `serve_app.documents`); its status. Raises ApiError."""
        parsed = parse_application(document)
        if parsed.open:
            return await self._begin(parsed, tenant)
        await self._require_free(parsed.application_id, tenant)
        return (await self._runner.submit(parsed, tenant)).model_dump()

    async def get_application(self, application_id: str, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Status and results of an application; its calls are None if it came call by call. Raises ApiError 404."""
        named = _seen(application_id, tenant)
        if self._runner.holds(named):
            return self._runner.get(named).status().model_dump()
        if self._open.holds(named):
            return await self._open_application(named)
        peer = await self._peers.holder(application_id, tenant)
        if peer is not None:
            status: dict[str, Any] = await within_answer_time(peer.get_application.remote(application_id, tenant))
            return status
        return await self._open_application(named)

    async def list_applications(self, tenant: str = DEFAULT_TENANT) -> list[dict[str, Any]]:
        """A tenant's applications, without their calls: those that ingresses hold, then those that came call by call.

        Of the latter, and of those that ingresses have forgotten, the newest that the scheduler knows.
        """
        held = [*await self.local_applications(tenant), *await self._peers.applications(tenant)]
        known = await within_answer_time(self._scheduler.applications_of(tenant))
        return [*held, *statuses_beside(known, {one["application_id"] for one in held}, wall_s())]

    async def local_applications(self, tenant: str = DEFAULT_TENANT) -> list[dict[str, Any]]:
        """A tenant's applications that this ingress holds, without their calls."""
        held = [*self._runner.summaries(tenant), *self._open.summaries(tenant)]
        return [status.model_dump(exclude={"calls"}) for status in held]

    async def holds_application(self, application_id: str, tenant: str = DEFAULT_TENANT) -> bool:
        """Does this ingress hold the application?"""
        named = _seen(application_id, tenant)
        return self._runner.holds(named) or self._open.holds(named)

    async def note_sub_agent(self, application_id: str, parent_id: str, tenant: str = DEFAULT_TENANT) -> None:
        """Another ingress has met a sub-agent."""
        self._families.known.learn(_named(application_id, tenant), _named(parent_id, tenant))

    async def application_events(
        self, application_id: str, after: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[dict[str, Any]]:
        """Events of an application from number `after` + 1 on, until all is known. Raises ApiError 404."""
        async with aclosing(await self._events_of(application_id, after, tenant)) as events:
            async for event in events:
                yield event

    async def explain_application(self, application_id: str, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Why it waits, who is ahead of it, its tag and costs; its record once it has ended. Raises ApiError 404."""
        named = _seen(application_id, tenant)
        explanation = await within_answer_time(self._scheduler.explain(named))
        if explanation is not None:
            return bare_explanation(explanation)
        record = await within_answer_time(self._scheduler.record(named))
        if record is None:
            _raise_unknown(application_id)
        return {**status_from_record(record).model_dump(), "why": f"it has {record.outcome}"}

    async def cancel_application(self, application_id: str, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Stop an application; its place and memory are free within a second. Raises ApiError 404."""
        named = _named(application_id, tenant)
        if self._runner.holds(named):
            return self._runner.cancel(named).model_dump()
        peer = None if self._open.holds(named) else await self._peers.holder(application_id, tenant)
        if peer is not None:
            status: dict[str, Any] = await within_answer_time(peer.cancel_application.remote(application_id, tenant))
            return status
        status = await self._open_application(named)
        self._link.tell(ApplicationCancelled(named, "cancelled by its client"))
        return status

    async def close_application(self, application_id: str, tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """Say that an open application will send no more calls. Raises ApiError 404."""
        named = _named(application_id, tenant)
        status = await self.get_application(application_id, tenant)
        self._link.tell(ApplicationClosed(named))
        return status

    async def scheduler_overview(self) -> dict[str, Any]:
        """The scheduler's state in a few numbers."""
        return await within_answer_time(self._scheduler.overview())

    async def predictor_status(self) -> list[dict[str, Any]]:
        """What predicts in each ingress, how it came to it, and what went wrong."""
        return [await self.local_predictor_status(), *await self._peers.predictors()]

    async def local_predictor_status(self) -> dict[str, Any]:
        """As `predictor_status`, of this ingress."""
        return {"ingress": self._link.ingress_id, **self._predictor.status()}

    async def rollback_predictor(self) -> list[dict[str, Any]]:
        """Have each ingress predict with the version before its present one; their status. Raises ApiError 409."""
        done = [await self.local_rollback(), *await self._peers.rollbacks()]
        if not any(done):
            raise ApiError(409, "no ingress has a version before the present one")
        return await self.predictor_status()

    async def local_rollback(self) -> bool:
        """As `rollback_predictor`, of this ingress; False where it has no version before."""
        with suppress(LookupError):
            await self._predictor.rollback()
            return True
        return False

    async def infer(self, path: str, body: dict[str, Any], tenant: str = DEFAULT_TENANT) -> dict[str, Any]:
        """One OpenAI request (`/v1/chat/completions` or `/v1/completions`), answered whole. Raises ApiError."""
        messages = self._inference_messages(path, json.dumps({**body, "stream": False}).encode(), tenant)
        status, answer = await drain(messages)
        if status != 200:
            raise engine_error(status, answer)
        document: dict[str, Any] = json.loads(answer)
        return document

    async def infer_stream(
        self, path: str, body: dict[str, Any], tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[bytes]:
        """One OpenAI request, answered as the bytes of its server-sent events. Raises ApiError."""
        stream = self._inference_messages(path, json.dumps({**body, "stream": True}).encode(), tenant)
        async with aclosing(stream):
            start = await anext(stream)
            if start["status"] != 200:
                _, answer = await drain(stream)
                raise engine_error(start["status"], answer)
            async for message in stream:
                if message.get("body"):
                    yield message["body"]

    async def _inference_messages(self, path: str, body: bytes, tenant: str) -> AsyncGenerator[dict[str, Any]]:
        counted = await self._counted(parse_inference(path, {}, body), tenant)
        _, messages = self._inference.answer_open(counted, ((b"content-type", b"application/json"),), tenant)
        async with aclosing(messages):
            async for message in messages:
                yield message

    async def _begin(self, document: ApplicationDocument, tenant: str) -> dict[str, Any]:
        """Begin an open application, or find the one that a sub-agent belongs to; its status. Raises ApiError."""
        bare, parent = document.application_id, document.parent_application_id
        if parent is not None:
            bare = await self._families.root_of(bare or parent, parent, tenant)
            with suppress(ApiError):
                return await self._open_application(_named(bare, tenant))
        await self._require_free(bare, tenant)
        named = _named(bare or new_id(), tenant)
        stated = document.model_dump(include={"weight", "deadline_s", "period_s"})
        await self._open.begin(await self._inference.opening(named, document.application_type, tenant, **stated))
        return await self._open_application(named)

    async def _require_free(self, application_id: str | None, tenant: str) -> None:
        """Raises ApiError 409 for an id that an application has already, here or at another ingress."""
        if application_id is None:
            return
        held = await self.holds_application(application_id, tenant)
        if held or await self._peers.holder(application_id, tenant) is not None:
            message = f"application {application_id!r} exists already"
            raise from_refusal(Refusal.DUPLICATE_ID, message, "application_id")

    async def _counted(self, inference: InferenceRequest, tenant: str) -> CountedCall:
        """The request, counted, in its root application; what cannot be answered teaches nobody whose it is."""
        counted = await self._inference.count(inference)
        return replace(counted, request=await self._families.in_its_root(inference, tenant))

    async def _open_application(self, named: str) -> dict[str, Any]:
        """The status of an application that came call by call, as the scheduler knows it."""
        explanation = await within_answer_time(self._scheduler.explain(named))
        if explanation is not None:
            return status_from_explanation(explanation, wall_s()).model_dump()
        record = await within_answer_time(self._scheduler.record(named))
        if record is None:
            _raise_unknown(bare_id(named))
        return status_from_record(record).model_dump()

    async def _events_of(self, application_id: str, after: int, tenant: str) -> AsyncGenerator[dict[str, Any]]:
        """The stream of an application's events, once it is known who holds it. Raises ApiError 404."""
        named = _named(application_id, tenant)
        if self._runner.holds(named):
            return self._runner.events(named, after)
        if self._open.holds(named):
            return self._open.events(named, after)
        peer = await self._peers.holder(application_id, tenant)
        if peer is None:
            message = (
                f"no events of {application_id!r}: they exist for applications that POST {APPLICATIONS_PATH} began"
            )
            raise from_refusal(Refusal.UNKNOWN_APPLICATION, message)
        return _peer_events(peer, application_id, after, tenant)

    async def check_health(self) -> None:
        """Fail when the talk with the scheduler has ended. Every few seconds, so that changed keys count soon."""
        self._keys.refresh()
        if not self._link.alive:
            raise RuntimeError("the ingress no longer talks to the scheduler")

    async def __del__(self) -> None:
        """Give up what this ingress holds. A constructor that failed left only what it had made until then."""
        link: SchedulerLink | None = getattr(self, "_link", None)
        if link is not None:
            await asyncio.shield(link.leave())
        counter: TokenCounter | None = getattr(self, "_counter", None)
        if counter is not None:
            counter.close()
        predictor: LivePredictor | None = getattr(self, "_predictor", None)
        if predictor is not None:
            await predictor.close()

    # ---- HTTP

    @http.post("/v1/chat/completions")
    @http.post("/v1/completions")
    async def _http_infer(self, request: Request, tenant: Tenant) -> Response:
        body = await bounded_body(request, self._settings.ingress.max_body_bytes)
        inference = parse_inference(request.url.path, request.headers, body)
        counted = await self._counted(inference, tenant)
        key, messages = self._inference.answer_open(counted, forwarded_headers(request.headers.raw), tenant)
        names = {"x-application-id": bare_id(key.application_id), "x-call-id": key.call_id}
        return await relay(request, messages, names)

    @http.get("/v1/models")
    async def _http_models(self, request: Request) -> Response:
        return await self._answer_of_any_replica(request)

    @http.get("/health")
    async def _http_health(self, request: Request) -> Response:
        await within_answer_time(self._scheduler.epoch())
        return await self._answer_of_any_replica(request)

    async def _answer_of_any_replica(self, request: Request) -> Response:
        """The answer to a request that generates nothing; its beginning must come in time."""
        if not self._live_replicas():
            raise from_refusal(Refusal.NO_ENGINE, "no engine replica is up")
        return await within_answer_time(relay(request, self._replicas.pass_through(forwarded_get(request)), {}))

    @http.post("/v1/applications")
    async def _http_submit(self, request: Request, tenant: Tenant) -> Response:
        body = await bounded_body(request, self._settings.ingress.max_body_bytes)
        return JSONResponse(await self.submit_application(body, tenant), status_code=201)

    @http.get("/v1/applications")
    async def _http_list(self, tenant: Tenant) -> Response:
        return JSONResponse({"data": await self.list_applications(tenant)})

    @http.get("/v1/applications/{application_id}")
    async def _http_get(self, application_id: str, tenant: Tenant) -> Response:
        return JSONResponse(await self.get_application(application_id, tenant))

    @http.get("/v1/applications/{application_id}/events")
    async def _http_events(self, application_id: str, request: Request, tenant: Tenant) -> Response:
        events = server_sent(await self._events_of(application_id, last_event_id(request), tenant))
        return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})

    @http.get("/v1/applications/{application_id}/explain")
    async def _http_explain(self, application_id: str, tenant: Tenant) -> Response:
        return JSONResponse(await self.explain_application(application_id, tenant))

    @http.post("/v1/applications/{application_id}/close")
    async def _http_close(self, application_id: str, tenant: Tenant) -> Response:
        return JSONResponse(await self.close_application(application_id, tenant))

    @http.delete("/v1/applications/{application_id}")
    async def _http_cancel(self, application_id: str, tenant: Tenant) -> Response:
        return JSONResponse(await self.cancel_application(application_id, tenant))

    @http.get("/v1/scheduler")
    async def _http_overview(self) -> Response:
        return JSONResponse(await self.scheduler_overview())

    @http.get("/v1/predictor")
    async def _http_predictor(self) -> Response:
        return JSONResponse({"data": await self.predictor_status()})

    @http.post("/v1/predictor/rollback")
    async def _http_rollback(self, tenant: Tenant) -> Response:
        if self._keys.required and tenant not in self._settings.ingress.operators:
            raise ApiError(403, "every tenant's predictions would change: this is for those in `ingress.operators`")
        return JSONResponse({"data": await self.rollback_predictor()})
