"""A part of the service that is away or late is a 503 in OpenAI's shape, never a 500."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from starlette.requests import Request

from cluster.live_replicas import ReplicaGone
from serve_app import cluster_errors
from serve_app.cluster_errors import install_cluster_handlers, within_answer_time
from serve_app.errors import install_handlers

FAILURES = [
    RayActorError(),
    ActorDiedError(),
    ActorUnavailableError("host 10.0.0.7 is away", b"0" * 16),
    RayServeException("host 10.0.0.7 is away"),
    ReplicaGone("host 10.0.0.7"),
    TimeoutError("host 10.0.0.7"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_failure_of_the_cluster_is_a_503_with_a_reason(failure: Exception) -> None:
    app = FastAPI()
    install_handlers(app)
    install_cluster_handlers(app)

    @app.get("/")
    async def get(_: Request) -> None:
        raise failure

    answer = TestClient(app, raise_server_exceptions=False).get("/")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "unavailable")
    assert error["message"] in cluster_errors.REASONS.values()


def test_a_serve_deployment_that_is_down_is_one_of_serve_s_exceptions() -> None:
    assert issubclass(DeploymentUnavailableError, RayServeException)


async def test_a_question_without_an_answer_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_errors, "ANSWER_S", 0.01)
    with pytest.raises(TimeoutError):
        await within_answer_time(asyncio.Event().wait())
    assert await within_answer_time(asyncio.sleep(0, "answer")) == "answer"
