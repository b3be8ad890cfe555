"""The client without a service: what is sent again and what is not, events that resume, endings, the sync shell."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import httpx
import pytest

from serve_app import client_async, client_transport
from serve_app.client import AsyncApplication, AsyncJustitia, Justitia, JustitiaError, JustitiaUnreachable

pytestmark = pytest.mark.timeout(30)

CHOICE = {"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}
ANSWER = {"choices": [CHOICE], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
BUSY = {"error": {"message": "too many", "type": "rate_limit_error", "param": None, "code": "busy"}}
DUPLICATE = {"error": {"message": "exists", "type": "invalid", "param": "application_id", "code": "duplicate_id"}}

Reply = httpx.Response | Exception


class Service:
    """Answers from a script, an entry a request; remembers what was asked. An exception breaks the connection."""

    def __init__(self, *script: Reply | Callable[[httpx.Request], Reply]) -> None:
        self.asked: list[httpx.Request] = []
        self._script = list(script)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.asked.append(request)
        assert self._script, f"nobody expected {request.method} {request.url.path}"
        entry = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        reply = entry(request) if callable(entry) else entry
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.asked]

    def body(self, number: int) -> dict[str, Any]:
        return dict(json.loads(self.asked[number].content))

    def client(self, **settings: Any) -> AsyncJustitia:
        return AsyncJustitia("http://service", model="m", http=httpx.MockTransport(self), **settings)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client would have slept."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(client_transport.asyncio, "sleep", sleep)
    return slept


def ok(document: Any, **headers: str) -> httpx.Response:
    return httpx.Response(200, json=document, headers=headers)


def lost() -> httpx.ReadError:
    return httpx.ReadError("connection reset")


def events(*numbers: int, last: str = "call_ended", broken: bool = False) -> httpx.Response:
    """A stream of events with these numbers; the last one has a name of its own."""

    async def lines() -> AsyncIterator[bytes]:
        for number in numbers:
            name = last if number == numbers[-1] else "tag_set"
            yield f"id: {number}\nevent: {name}\ndata: {json.dumps({'id': number, 'event': name})}\n\n".encode()
        if broken:
            raise lost()

    return httpx.Response(200, content=lines())


async def in_one_piece(app: AsyncApplication) -> str:
    return (await app.chat("Hi")).text


async def piece_by_piece(app: AsyncApplication) -> str:
    async with aclosing(app.stream("Hi")) as pieces:
        return "".join([piece async for piece in pieces])


Inference = Callable[[AsyncApplication], Awaitable[str]]


def said(ask: Inference) -> httpx.Response:
    """The answer `yes`, as it is asked for."""
    if ask is in_one_piece:
        return ok(ANSWER)
    chunk = {"choices": [{"index": 0, "delta": {"content": "yes"}}]}
    return httpx.Response(200, text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")


async def breaking_off() -> AsyncIterator[bytes]:
    yield b'data: {"choices": [{"index": 0, "delta": {"content": "y"}}]}\n\n'
    raise lost()


async def collected(client: AsyncJustitia, after: int = 0) -> list[int]:
    async with aclosing(client.events("a", after)) as stream:
        return [event["id"] async for event in stream]


# ---- what is sent again


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_honoured(waits: list[float], status: int) -> None:
    service = Service(httpx.Response(status, json=BUSY, headers={"Retry-After": "7"}), ok({"a": 1}))
    async with service.client() as client:
        assert await client.scheduler() == {"a": 1}
    assert waits == [7.0]


async def test_it_gives_up_after_so_many_tries(waits: list[float]) -> None:
    service = Service(httpx.Response(503, json=BUSY))
    async with service.client(max_retries=3) as client:
        with pytest.raises(JustitiaError) as refused:
            await client.scheduler()
    assert (refused.value.status, refused.value.code, refused.value.message) == (503, "busy", "too many")
    assert len(service.asked) == 4
    assert waits == [0.5, 1.0, 2.0]


async def test_it_does_not_wait_beyond_its_time(waits: list[float]) -> None:
    service = Service(httpx.Response(429, json=BUSY, headers={"Retry-After": "60"}))
    async with service.client(timeout_s=30) as client:
        with pytest.raises(JustitiaError) as refused:
            await client.scheduler()
    assert (refused.value.retry_after_s, waits) == (60.0, [])


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 499, 500])
async def test_other_refusals_are_final(status: int) -> None:
    service = Service(httpx.Response(status, text="<html>no</html>"))
    async with service.client() as client:
        with pytest.raises(JustitiaError) as refused:
            await client.get("a")
    assert (refused.value.status, refused.value.message) == (status, "<html>no</html>")
    assert len(service.asked) == 1


async def test_an_answer_that_does_not_come_ends_with_its_time() -> None:
    async def silent(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    client = AsyncJustitia("http://service", http=httpx.MockTransport(silent), timeout_s=0.05)
    with pytest.raises(JustitiaUnreachable, match=r"0\.05 s"):
        await client.scheduler()


async def test_questions_and_endings_are_asked_again() -> None:
    for ask in ("get", "cancel", "close", "explain"):
        service = Service(lost(), ok({}))
        async with service.client() as client:
            await getattr(client, ask)("a/b")
        assert len(service.asked) == 2
        assert "a%2Fb" in str(service.asked[0].url)


@pytest.mark.parametrize("ask", [in_one_piece, piece_by_piece])
async def test_an_inference_whose_answer_had_not_begun_is_asked_again(ask: Inference) -> None:
    service = Service(httpx.Response(201, json={}), lost(), said(ask), ok({}))
    async with service.client() as client, client.application("kind") as app:
        assert await ask(app) == "yes"
    assert service.paths[1:3] == ["POST /v1/chat/completions"] * 2
    assert service.body(1) == service.body(2)
    assert len(app.calls) == 1


async def test_a_stream_that_had_begun_is_not_asked_again() -> None:
    service = Service(httpx.Response(201, json={}), httpx.Response(200, content=breaking_off()), ok({}))
    async with service.client() as client, client.application("kind") as app:
        with pytest.raises(JustitiaUnreachable, match="broke off"):
            await piece_by_piece(app)
    assert service.paths[1:] == ["POST /v1/chat/completions", f"POST /v1/applications/{app.id}/close"]


async def test_an_application_with_its_owners_id_is_not_submitted_twice() -> None:
    service = Service(lost())
    async with service.client() as client:
        with pytest.raises(JustitiaUnreachable):
            await client.submit({"application_id": "mine", "calls": []})
    assert len(service.asked) == 1


async def test_an_application_whose_first_answer_was_lost_is_there() -> None:
    service = Service(lost(), httpx.Response(409, json=DUPLICATE))
    async with service.client() as client:
        submitted = await client.submit({"calls": []})
    assert service.body(0) == service.body(1)
    assert submitted.id == service.body(0)["application_id"]


async def test_what_never_arrived_is_sent_again_whatever_it_is() -> None:
    service = Service(httpx.ConnectError("refused"), httpx.Response(201, json={}))
    async with service.client() as client:
        assert (await client.submit({"application_id": "mine", "calls": []})).id == "mine"


async def test_a_duplicate_of_somebody_elses_is_refused() -> None:
    service = Service(httpx.Response(409, json=DUPLICATE))
    async with service.client() as client:
        with pytest.raises(JustitiaError, match="exists"):
            await client.submit({"application_id": "mine", "calls": []})


async def test_something_else_that_answers_is_no_service() -> None:
    async with Service(httpx.Response(200, text="hello")).client() as client:
        with pytest.raises(JustitiaUnreachable, match="hello"):
            await client.scheduler()


ELSEWHERE = (
    "{}",
    "[]",
    "7",
    '{"choices": []}',
    '{"choices": [{}]}',
    '{"choices": [3], "data": [3], "id": 1}',
    '{"choices": {"a": 1}, "data": {"a": 1}}',
    "data: x",
    "data: []",
    "data: {}",
    'data: {"choices": 3, "id": "x"}',
    'data: {"choices": [{}], "id": []}',
)


@pytest.mark.parametrize("text", ELSEWHERE)
async def test_an_answer_of_another_shape_is_no_services(text: str) -> None:
    service = Service(httpx.Response(200, text=text))
    async with service.client() as client, AsyncJustitia(http=httpx.MockTransport(service)) as asking:
        for question in (client.list(), asking.model_name(), collected(client)):
            with pytest.raises(JustitiaUnreachable, match="somebody answers, but not as this service does"):
                await question


@pytest.mark.parametrize("text", ELSEWHERE)
async def test_an_inference_of_another_shape_is_no_services(text: str) -> None:
    elsewhere = httpx.Response(200, text=text)
    service = Service(httpx.Response(201, json={}), elsewhere, elsewhere, ok({}))
    async with service.client() as client, client.application("kind") as app:
        with pytest.raises(JustitiaUnreachable, match="somebody answers, but not as this service does"):
            await app.chat("Hi")
        with pytest.raises(JustitiaError, match=r"somebody answers, but not as this service does|broke off"):
            await piece_by_piece(app)
    assert app.calls == []


@pytest.mark.parametrize("error", ["gone", {"message": "gone"}, {"code": "gone"}, ["gone"]])
async def test_an_error_in_a_stream_is_shown_whatever_its_shape(error: Any) -> None:
    stream = httpx.Response(200, text=f"data: {json.dumps({'error': error})}\n\n")
    service = Service(httpx.Response(201, json={}), stream, ok({}))
    async with service.client() as client, client.application("kind") as app:
        with pytest.raises(JustitiaError, match="gone"):
            await piece_by_piece(app)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("localhost:8000", {}),
        ("ftp://x", {}),
        ("http://", {}),
        ("http://x:port", {}),
        ("http://x", {"timeout_s": 0}),
        ("http://x", {"timeout_s": float("inf")}),
        ("http://x", {"timeout_s": float("nan")}),
        ("http://x", {"max_retries": -1}),
        ("http://x", {"api_key": "ключ"}),
    ],
)
def test_settings_that_cannot_be_used_are_said_at_once(url: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"URL|http|timeout_s|key"):
        AsyncJustitia(url, **settings)


async def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUSTITIA_URL", "http://there:1/")
    monkeypatch.setenv("JUSTITIA_API_KEY", "sk-1")
    service = Service(ok({"data": [{"id": "first"}, {"id": "second"}]}))
    async with AsyncJustitia(http=httpx.MockTransport(service)) as client:
        assert [await client.model_name(), await client.model_name()] == ["first", "first"]
    (request,) = service.asked
    assert str(request.url) == "http://there:1/v1/models"
    assert request.headers["authorization"] == "Bearer sk-1"


# ---- events


async def test_events_go_on_after_the_last_one_that_came() -> None:
    service = Service(events(1, 2, broken=True), lost(), events(3, 4, last="application_audited"))
    async with service.client() as client:
        assert await collected(client) == [1, 2, 3, 4]
    assert [request.headers["last-event-id"] for request in service.asked] == ["0", "2", "2"]


async def test_a_stream_that_ends_early_is_taken_up_while_the_application_runs() -> None:
    running, over = ok({"state": "running"}), ok({"state": "cancelled"})
    service = Service(events(1), running, events(2, last="application_ended"), over)
    async with service.client() as client:
        assert await collected(client) == [1, 2]


async def test_events_end_when_they_break_off_again_and_again() -> None:
    service = Service(lambda _: events(*(), broken=True))
    async with service.client(max_retries=2) as client:
        with pytest.raises(JustitiaUnreachable):
            await collected(client)
    assert len(service.asked) == 3


async def test_events_that_stay_away_are_asked_for_anew_and_count_as_no_failure(waits: list[float]) -> None:
    def quiet(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["read"] == client_transport.QUIET_S

        async def lines() -> AsyncIterator[bytes]:
            yield b'data: {"id": 1, "event": "tag_set"}\n\n'
            raise httpx.ReadTimeout("")

        return httpx.Response(200, content=lines())

    service = Service(quiet, quiet, quiet, events(2, last="application_audited"))
    async with service.client(max_retries=0) as client:
        assert await collected(client) == [1, 1, 1, 2]
    assert waits == []


async def test_a_stream_pauses_no_longer_than_a_request_may_take() -> None:
    service = Service(httpx.Response(201, json={}), httpx.Response(200, content=b""), ok({}))
    async with service.client(timeout_s=7.0) as client, client.application("kind") as app:
        with pytest.raises(JustitiaError):
            await anext(app.stream("Hi"))
    assert service.asked[1].extensions["timeout"]["read"] == 7.0


async def test_waiting_for_an_application_reads_its_end_and_its_status() -> None:
    service = Service(httpx.Response(201, json={}), events(1, last="application_ended"), ok({"state": "finished"}))
    async with service.client() as client:
        assert await (await client.submit({"calls": []})).wait() == {"state": "finished"}


# ---- open applications


async def test_what_an_open_application_sends() -> None:
    service = Service(httpx.Response(201, json={}), ok(ANSWER), ok(ANSWER), ok({}))
    async with service.client() as client, client.application("kind", weight=2.0, deadline_s=9.0) as app:
        first = await app.chat("Hi", stage="one", temperature=0.5)
        await app.complete("Hi", model="other", after=[first])
    assert service.body(0) == {
        "open": True,
        "application_id": app.id,
        "application_type": "kind",
        "weight": 2.0,
        "deadline_s": 9.0,
    }
    assert service.body(1) == {
        "messages": [{"role": "user", "content": "Hi"}],
        "model": "m",
        "max_tokens": 256,
        "n": 1,
        "temperature": 0.5,
        "stage": "one",
        "application_id": app.id,
        "application_type": "kind",
    }
    assert (service.body(2)["model"], "stage" in service.body(2)) == ("other", False)
    assert service.paths[3] == f"POST /v1/applications/{app.id}/close"
    assert [(call.name, call.after) for call in app.calls] == [("one-1", ()), ("call-1", ("one-1",))]
    assert (first.text, first.prompt_tokens, first.output_tokens) == ("yes", 3, 2)


async def test_an_ending_that_cannot_be_said_is_no_error() -> None:
    service = Service(httpx.Response(201, json={}), lost())
    async with service.client(max_retries=1) as client, client.application("kind"):
        pass
    assert service.paths[1:] == [service.paths[1]] * 2


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_every_exception_cancels(error: BaseException) -> None:
    service = Service(httpx.Response(201, json={}), ok({}))
    async with service.client() as client:
        with suppress(type(error)):
            async with client.application("kind") as app:
                raise error
    assert service.paths[-1] == f"DELETE /v1/applications/{app.id}"


async def test_sub_agents_neither_begin_nor_end() -> None:
    service = Service(httpx.Response(201, json={}), ok(ANSWER), ok({}))
    async with service.client() as client, client.application("root") as app:
        async with client.application("inner") as inner, inner.child("deeper") as deeper:
            await deeper.chat("Hi")
        assert (inner.id, deeper.id) == (app.id, app.id)
        own = client.application("own", application_id="mine")
        assert own.id == "mine"
    assert service.paths[1:] == ["POST /v1/chat/completions", f"POST /v1/applications/{app.id}/close"]
    assert service.body(1)["application_type"] == "deeper"
    assert app.calls == deeper.calls
    assert client.application("later").id != app.id


async def test_calls_outside_the_block_are_refused_here() -> None:
    service = Service(httpx.Response(201, json={}), ok({}))
    async with service.client() as client:
        app = client.application("kind")
        child = app.child()
        for one in (app, child):
            with pytest.raises(RuntimeError, match="inside its block"):
                await one.chat("too early")
        async with app, child:
            with pytest.raises(RuntimeError, match="entered once"):
                await app.begin()
        for one in (app, child):
            with pytest.raises(RuntimeError, match="inside its block"):
                await one.chat("too late")
            with pytest.raises(RuntimeError, match="inside its block"):
                one.openai()
    assert len(service.asked) == 2


async def test_one_whose_beginning_was_refused_has_no_calls() -> None:
    service = Service(httpx.Response(409, json=DUPLICATE))
    async with service.client() as client:
        app = client.application("kind", application_id="mine")
        with pytest.raises(JustitiaError, match="exists"):
            await app.begin()
        for one in (app, app.child()):
            with pytest.raises(RuntimeError, match="inside its block"):
                await one.chat("Hi")
        with pytest.raises(RuntimeError, match="entered once"):
            await app.begin()
    assert len(service.asked) == 1


async def test_a_call_that_outlives_its_block_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, over = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        await over.wait()

    def refuse(_: httpx.Request) -> httpx.Response:
        refused.set()
        return httpx.Response(429, json=BUSY)

    monkeypatch.setattr(client_transport.asyncio, "sleep", sleep)
    service = Service(httpx.Response(201, json={}), refuse, ok({}))
    async with service.client() as client:
        async with client.application("kind") as app:
            sibling = asyncio.create_task(app.chat("Hi"))
            await refused.wait()
        over.set()
        with pytest.raises(RuntimeError, match="inside its block"):
            await sibling
    assert service.paths[1:] == ["POST /v1/chat/completions", f"POST /v1/applications/{app.id}/close"]


async def test_a_task_that_outlives_its_block_begins_an_application_of_its_own() -> None:
    service = Service(ok({}))
    async with service.client() as client:
        over = asyncio.Event()

        async def later() -> str:
            await over.wait()
            async with client.application("later") as app:
                return app.id

        async with client.application("first") as app:
            task = asyncio.create_task(later())
            await client.scheduler()
        over.set()
        assert await task != app.id


async def test_a_beginning_that_is_cancelled_is_taken_back() -> None:
    begun = asyncio.Event()
    asked: list[str] = []

    async def slow(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if request.method == "POST":
            begun.set()
            await asyncio.Event().wait()
        return ok({})

    async with AsyncJustitia("http://service", http=httpx.MockTransport(slow)) as client:
        beginning = asyncio.create_task(client.application("kind").begin())
        await begun.wait()
        beginning.cancel()
        with suppress(asyncio.CancelledError):
            await beginning
    assert asked == ["POST", "DELETE"]


@pytest.mark.parametrize(("named", "asked"), [({}, ["POST", "DELETE"]), ({"application_id": "mine"}, ["POST"])])
async def test_a_submission_that_is_cancelled_is_taken_back(named: dict[str, str], asked: list[str]) -> None:
    begun = asyncio.Event()
    requests: list[httpx.Request] = []

    async def slow(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if request.method == "POST":
            begun.set()
            await asyncio.Event().wait()
        return ok({})

    async with AsyncJustitia("http://service", http=httpx.MockTransport(slow)) as client:
        submission = asyncio.create_task(client.submit({**named, "calls": []}))
        await begun.wait()
        submission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submission
    assert [request.method for request in requests] == asked
    application_id = json.loads(requests[0].content)["application_id"]
    assert all(request.url.path == f"/v1/applications/{application_id}" for request in requests[1:])


async def test_taking_back_waits_no_longer_than_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_async, "END_S", 0.05)
    begun = asyncio.Event()

    async def silent(_: httpx.Request) -> httpx.Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with AsyncJustitia("http://service", http=httpx.MockTransport(silent)) as client:
        submission = asyncio.create_task(client.submit({"calls": []}))
        await begun.wait()
        submission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submission


async def test_applications_of_two_programs_and_two_clients_do_not_meet() -> None:
    service, other = Service(ok({})), Service(ok({}))
    async with service.client() as client, other.client() as second:

        async def program() -> str:
            async with client.application("p") as app:
                await asyncio.sleep(0)
                return app.id

        ids = await asyncio.gather(program(), program())
        async with client.application("p") as app, second.application("q") as stranger:
            ids += [app.id, stranger.id]
    assert len(set(ids)) == 4


async def test_a_stream_that_fails_in_its_middle_says_so() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    for end in (b'data: {"error": {"message": "gone"}}\n\n', b""):
        text = b"data: " + json.dumps(chunk).encode() + b"\n\n" + end
        service = Service(httpx.Response(201, json={}), httpx.Response(200, content=text), ok({}))
        async with service.client() as client, client.application("kind") as app:
            stream = app.stream("Hi")
            assert await anext(stream) == "a"
            with pytest.raises(JustitiaError, match=r"gone|broke off"):
                await anext(stream)
            with pytest.raises(ValueError, match="n must be 1"):
                await anext(app.stream("Hi", n=2))
        assert app.calls == []


async def test_openais_client_is_bound_to_the_application() -> None:
    openai = pytest.importorskip("openai")
    service = Service(ok({}))
    async with service.client(api_key="sk-1") as client, client.application("kind") as app:
        sdk = app.openai()
        assert isinstance(sdk, openai.AsyncOpenAI)
        assert (str(sdk.base_url), sdk.api_key) == ("http://service/v1/", "sk-1")
        assert sdk.default_headers["X-Application-Id"] == app.id
        await sdk.close()


# ---- without async


def sync_client(service: Service, **settings: Any) -> Justitia:
    return Justitia("http://service", model="m", http=httpx.MockTransport(service), **settings)


def test_the_sync_client_asks_the_same() -> None:
    service = Service(httpx.Response(201, json={}), ok(ANSWER), ok({}))
    with sync_client(service) as client:
        with client.application("root") as app, client.application("inner") as inner:
            assert inner.chat("Hi").text == "yes"
            assert inner.id == app.id
        with pytest.raises(ZeroDivisionError), client.application("failing") as failing:
            raise ZeroDivisionError
        assert client.application("later").id != failing.id
    assert service.paths[-1] == f"DELETE /v1/applications/{failing.id}"
    client.close_connections()
    with pytest.raises(RuntimeError, match="closed"):
        client.get("a")


def test_the_sync_client_hands_on_refusals_and_events() -> None:
    service = Service(events(1, last="application_audited"), httpx.Response(404, json=BUSY))
    with sync_client(service) as client:
        assert [event["id"] for event in client.events("a")] == [1]
        with pytest.raises(JustitiaError):
            client.get("a")


def test_an_interrupt_cancels_what_it_interrupts() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def silent(_: httpx.Request) -> httpx.Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    with Justitia("http://service", http=httpx.MockTransport(silent)) as client:
        interrupt = threading.Timer(0.0, lambda: (begun.wait(5), _interrupt_main()))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            client.scheduler()
        assert ended.wait(5)
        interrupt.join()


def test_an_interrupted_beginning_is_taken_back_before_the_connections_close() -> None:
    begun = threading.Event()
    done: list[str] = []

    async def slow(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            begun.set()
            await asyncio.Event().wait()
        await pause()
        done.append(request.method)
        return ok({})

    interrupt = threading.Timer(0.0, lambda: (begun.wait(5), _interrupt_main()))
    interrupt.start()
    with (
        pytest.raises(KeyboardInterrupt),
        Justitia("http://service", http=httpx.MockTransport(slow)) as client,
        client.application("kind"),
    ):
        raise AssertionError
    interrupt.join()
    assert done == ["DELETE"]


def test_who_waits_while_the_client_is_closed_is_told() -> None:
    begun = threading.Event()
    told: list[str] = []

    async def silent(_: httpx.Request) -> httpx.Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    def wait(client: Justitia) -> None:
        with pytest.raises(RuntimeError) as closed:
            client.scheduler()
        told.append(str(closed.value))

    with Justitia("http://service", http=httpx.MockTransport(silent)) as client:
        worker = threading.Thread(target=wait, args=(client,), daemon=True)
        worker.start()
        assert begun.wait(5)
    worker.join(5)
    assert told == ["the client is closed"]


def test_an_interrupted_stream_is_closed_after_its_last_step() -> None:
    begun = threading.Event()

    async def lines() -> AsyncIterator[bytes]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield b""
        finally:
            await pause()

    service = Service(httpx.Response(200, content=lines()))
    with sync_client(service) as client:
        interrupt = threading.Timer(0.0, lambda: (begun.wait(5), _interrupt_main()))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            list(client.events("a"))
        interrupt.join()


async def pause() -> None:
    """Some time, whatever `sleep` is."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.1)


def _interrupt_main() -> None:
    """As Ctrl-C does, once the main thread waits: a signal just before it begins to wait would not wake it."""
    time.sleep(0.2)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
