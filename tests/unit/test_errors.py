"""Every refusal has a status that is no server error, and survives pickling, odd text and HTTP."""

from __future__ import annotations

import pickle

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from scheduler.actions import Refusal
from serve_app.errors import (
    REFUSAL_STATUS,
    ApiError,
    field_path,
    from_refusal,
    from_validation,
    install_handlers,
    respond,
)

EXPECTED_STATUS = {
    Refusal.DUPLICATE_ID: 409,
    Refusal.UNKNOWN_APPLICATION: 404,
    Refusal.APPLICATION_CLOSED: 409,
    Refusal.CANNOT_FIT: 400,
    Refusal.BUSY: 429,
    Refusal.NO_ENGINE: 503,
    Refusal.INVALID: 400,
    Refusal.LOST: 503,
    Refusal.CANCELLED: 499,
}


class Numbered(BaseModel):
    n: int


def test_every_refusal_of_the_scheduler_has_a_row() -> None:
    assert set(REFUSAL_STATUS) == set(Refusal)


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refusal_keeps_its_status_code_and_reason(refusal: Refusal) -> None:
    error = from_refusal(refusal, "the reason", param="calls[0]")
    assert error.status == EXPECTED_STATUS[refusal]
    body = error.body()["error"]
    assert body["message"] == "the reason"
    assert body["param"] == "calls[0]"
    assert body["code"] == refusal.value
    assert set(body) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("refusal", list(Refusal))
def test_only_what_waiting_mends_asks_to_be_sent_again(refusal: Refusal) -> None:
    headers = from_refusal(refusal, "why").headers()
    if EXPECTED_STATUS[refusal] in (429, 503):
        assert int(headers["Retry-After"]) >= 1
    else:
        assert headers == {"x-should-retry": "false"}


def test_busy_and_unavailable_always_say_when_to_come_back() -> None:
    assert ApiError(429, "busy").headers()["Retry-After"]
    assert ApiError(503, "none").headers()["Retry-After"]
    assert ApiError(503, "none", retry_after_s=42).headers() == {"Retry-After": "42"}


def test_an_error_survives_a_trip_between_processes() -> None:
    error = ApiError(429, "full", param="n", retry_after_s=7)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, ApiError)
    assert (copy.status, copy.body(), copy.headers()) == (error.status, error.body(), error.headers())


def test_text_that_is_no_unicode_can_be_answered() -> None:
    answer = respond(ApiError(400, "name '\ud800'" + "x" * 10_000, param="calls[0].\udfff"))
    assert answer.status_code == 400
    assert len(answer.body) < 3_000


def test_paths_are_written_as_the_client_would() -> None:
    assert field_path(("body", "calls", 1, "prompt")) == "calls[1].prompt"
    assert field_path(("calls", 0, "after", 2)) == "calls[0].after[2]"
    assert field_path(("body",)) is None


def test_a_validation_error_names_the_field() -> None:
    class Inner(BaseModel):
        n: int

    class Outer(BaseModel):
        calls: list[Inner]

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"calls": [{"n": 1}, {"n": "x"}, {}]})
    error = from_validation(caught.value)
    assert (error.status, error.param) == (400, "calls[1].n")
    assert "1 more" in error.message


def test_fastapi_answers_every_refusal_in_openai_shape() -> None:
    app = FastAPI()
    install_handlers(app)

    @app.post("/n")
    def post(body: Numbered) -> None:
        raise from_refusal(Refusal.NO_ENGINE, "no engine is alive")

    client = TestClient(app, raise_server_exceptions=False)
    assert client.post("/n", json={"n": "x"}).status_code == 400
    assert client.post("/n", json={"n": "x"}).json()["error"]["param"] == "n"
    assert client.post("/n", content=b"{").json()["error"]["type"] == "invalid_request_error"
    answer = client.post("/n", json={"n": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
    assert answer.headers["Retry-After"]
    assert client.get("/missing").json()["error"]["code"] == "not_found"
    assert client.get("/n").json()["error"]["code"] == "method_not_allowed"
