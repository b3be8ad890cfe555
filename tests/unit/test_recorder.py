"""What a recording makes of calls: whose they are, what they depend on, how much they made."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from starlette.types import Send
from typer.testing import CliRunner

from scheduler.sim.workload import TraceApplication, read_workload, write_application
from serve_app import recorder_calls, recorder_server
from serve_app.cli import record
from serve_app.cli.main import app
from serve_app.cli.record import save, summary
from serve_app.recorder import MAX_PROMPT_CHARS, Evidence, Recorder
from serve_app.recorder_calls import MAX_MARK_CHARS, MAX_MARKS, Answered, Asked, bits, marks_of
from serve_app.recorder_proxy import RecordingProxy
from serve_app.recorder_reading import Told

pytestmark = pytest.mark.timeout(30)


def run(recorder: Recorder, asked_s: float, ended_s: float, texts: str = "", says: str = "", **fields: Any) -> None:
    """One call from its beginning to its end; others may have been under way, as times tell."""
    call = recorder.begin(Asked(asked_s=asked_s, texts=texts, prompt=texts, **fields))
    assert call is not None
    call.answer(ended_s, Answered(prompt_tokens=10, output_tokens=5, marks=(says,) if says else ()))


def edges(application: TraceApplication) -> dict[str, tuple[str, ...]]:
    return {call.name: call.after for call in application.calls}


def only(recorder: Recorder) -> TraceApplication:
    (application,) = recorder.applications()
    return application


# ---- dependencies


def test_what_ended_before_comes_before_and_what_follows_is_left_out() -> None:
    recorder = Recorder()
    for asked_s, ended_s in ((0, 1), (0, 2), (3, 4), (3, 5), (6, 7)):
        run(recorder, asked_s, ended_s)
    assert edges(only(recorder)) == {
        "call-1": (),
        "call-2": (),
        "call-3": ("call-1", "call-2"),
        "call-4": ("call-1", "call-2"),
        "call-5": ("call-3", "call-4"),
    }


def test_a_quoted_answer_is_a_dependency_and_the_others_are_not() -> None:
    recorder = Recorder()
    run(recorder, 0, 1, says="the first answer", stage="map")
    run(recorder, 0, 1, says="the second answer", stage="map")
    run(recorder, 2, 3, texts="More on: the second answer!", says="something longer", stage="more")
    run(recorder, 4, 5, texts="the second answer, and: something longer", stage="join")
    run(recorder, 6, 7, texts="quotes nobody", stage="last")
    assert edges(only(recorder)) == {
        "map-1": (),
        "map-2": (),
        "more-1": ("map-2",),
        "join-1": ("more-1",),
        "last-1": ("map-1", "join-1"),
    }


def test_by_time_alone_quotations_do_not_count() -> None:
    recorder = Recorder(evidence=Evidence.TIME)
    run(recorder, 0, 1, says="the first answer")
    run(recorder, 0, 1, says="the second answer")
    run(recorder, 2, 3, texts="the second answer")
    assert edges(only(recorder))["call-3"] == ("call-1", "call-2")


def test_the_beginning_of_a_long_answer_is_looked_for() -> None:
    recorder = Recorder()
    long = "".join(str(number) for number in range(1_000))
    for text in (long, "0" * 1_000):
        (mark,) = marks_of({0: f"  {text}"}, [])
        assert (len(mark), text.startswith(mark)) == (MAX_MARK_CHARS, True)
        run(recorder, 0, 1, says=mark)
    run(recorder, 2, 3, texts=f"as was said: {long[:600]} and so on")
    assert edges(only(recorder))["call-3"] == ("call-1",)


def test_the_latest_answers_are_looked_for_and_no_more_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    for number in range(MAX_MARKS + 5):
        run(recorder, 0, 1, says=f"answer number {number:05d}")
    (application,) = recorder._all
    assert len(application._marks) == MAX_MARKS
    assert all(call.answered is not None and call.answered.marks == () for call in application.calls)
    prompt = f"answer number {MAX_MARKS:05d}, answer number {MAX_MARKS + 4:05d}, answer number 00003"
    quoted = application.quoted_by(Asked(asked_s=2, texts=prompt, prompt=""))
    assert list(bits(quoted)) == [MAX_MARKS, MAX_MARKS + 4]
    monkeypatch.setattr(recorder_calls, "MAX_LOOKED_THROUGH_CHARS", 3 * len(prompt))
    quoted = application.quoted_by(Asked(asked_s=2, texts=prompt, prompt=""))
    assert list(bits(quoted)) == [MAX_MARKS + 4]


def test_of_an_application_that_has_ended_no_answer_is_kept() -> None:
    recorder = Recorder(idle_s=10)
    for name in ("ended", "slow", "running"):
        run(recorder, 0, 1, says="a long enough answer", application_id=name)
    under_way = recorder.begin(asked_at(2, "running"))
    with recorder.expected(asked_at(9, "slow")):
        run(recorder, 18, 19, application_id="other")
        assert [len(application._marks) for application in recorder._all] == [1, 1, 1, 0]
    run(recorder, 20, 21, application_id="other")
    assert [len(application._marks) for application in recorder._all] == [0, 0, 1, 0]
    assert under_way is not None
    under_way.answer(30, Answered(prompt_tokens=1, output_tokens=1))
    run(recorder, 50, 51, application_id="other")
    assert not any(application._marks for application in recorder._all)
    assert len(recorder._resting) == 1


TIMES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=12)


@given(TIMES)
def test_the_reduction_keeps_exactly_what_was_before(spans: list[tuple[int, int]]) -> None:
    """Reachability is "ended before the other was asked"; no edge follows from others."""
    recorder = Recorder(idle_s=100)
    spans = sorted(spans)
    for asked_s, lasted_s in spans:
        run(recorder, asked_s, asked_s + lasted_s + 0.5)
    after = edges(only(recorder))

    def reached(name: str) -> set[str]:
        return set(after[name]).union(*(reached(other) for other in after[name]))

    names = list(after)
    for name, (asked_s, _) in zip(names, spans, strict=True):
        before = {n for n, (a, lasted) in zip(names, spans, strict=True) if a + lasted + 0.5 <= asked_s}
        assert reached(name) == before
        for other in after[name]:
            assert not any(other in reached(third) for third in after[name])


# ---- applications


def test_an_idle_application_has_ended() -> None:
    recorder = Recorder(idle_s=10)
    run(recorder, 0, 1, application_id="a")
    run(recorder, 11, 12, application_id="a")
    run(recorder, 23, 24, application_id="a")
    assert [(a.application_id, len(a.calls), a.arrival_s) for a in recorder.applications()] == [
        ("a", 2, 0),
        ("a#2", 1, 23),
    ]


def test_one_with_a_call_under_way_is_not_idle() -> None:
    recorder = Recorder(idle_s=10)
    long = recorder.begin(Asked(asked_s=0, texts="", prompt=""))
    run(recorder, 100, 101)
    assert long is not None
    long.answer(102, Answered(prompt_tokens=1, output_tokens=1))
    assert len(only(recorder).calls) == 2


def asked_at(asked_s: float, name: str | None = None, group: str = "") -> Asked:
    return Asked(asked_s=asked_s, texts="", prompt="", application_id=name, group=group)


@pytest.mark.parametrize(
    ("awaited", "applications"),
    [
        (None, 2),
        (asked_at(5, "a"), 1),
        (asked_at(12, "a"), 2),  # it was idle for too long then
        (asked_at(25, "a"), 2),  # after the other
        (asked_at(5, "b"), 2),
        (asked_at(5), 2),
        (asked_at(5, "a", "k"), 2),
        (asked_at(5, "a-child"), 1),  # the service has said whose part it is
    ],
)
def test_one_with_a_call_at_the_service_is_not_idle(awaited: Asked | None, applications: int) -> None:
    recorder = Recorder(idle_s=10)
    child = recorder.begin(asked_at(0, "a-child"), "a")
    assert child is not None
    child.answer(1, Answered(prompt_tokens=1, output_tokens=1))
    with nullcontext() if awaited is None else recorder.expected(awaited):
        run(recorder, 20, 21, application_id="a")
    assert len(recorder.applications()) == applications
    run(recorder, 60, 61, application_id="a")
    assert len(recorder.applications()) == applications + 1
    assert not recorder._awaited


def test_the_service_says_whose_a_call_is_and_keys_do_not_mix() -> None:
    recorder = Recorder()
    asked = Asked(asked_s=0, texts="", prompt="", application_id="child", application_type="t", group="k1")
    for served_as, group in (("root", "k1"), ("root", "k1"), (None, "k1"), ("root", "k2")):
        call = recorder.begin(Asked(**{**_fields(asked), "group": group}), served_as)
        assert call is not None
        call.answer(1, Answered(prompt_tokens=1, output_tokens=1))
    assert [(a.application_id, a.application_type, len(a.calls)) for a in recorder.applications()] == [
        ("root", "t", 2),
        ("child", "t", 1),
        ("root#2", "t", 1),
    ]


def _fields(asked: Asked) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in Asked.__dataclass_fields__}


def test_what_has_no_answer_is_in_no_application() -> None:
    recorder = Recorder(max_calls=2)
    failed = recorder.begin(Asked(asked_s=0, texts="", prompt=""))
    assert failed is not None
    failed.fail(1, "broke off")
    assert recorder.applications() == []
    run(recorder, 2, 3)
    assert recorder.begin(Asked(asked_s=4, texts="", prompt="")) is None
    assert edges(only(recorder)) == {"call-2": ()}
    assert dict(recorder.left_out) == {"broke off": 1, "too many": 1}


def test_sequences_prompts_and_thinking() -> None:
    recorder = Recorder(delays=True)
    run(recorder, 1, 2, texts="x" * 9_000, sequences=4, prompts=2)
    run(recorder, 5, 6)
    application = only(recorder)
    assert len(application.prompt) == MAX_PROMPT_CHARS
    first, second = application.calls
    assert (first.prompt_tokens, first.output_tokens, first.sequences, first.delay_s) == (5, 2, 4, 0)
    assert second.delay_s == 3


def test_long_prompts_are_not_kept() -> None:
    recorder = Recorder()
    run(recorder, 0, 1, texts="x" * 9_000)
    run(recorder, 2, 3, texts="y" * 9_000)
    kept = [call.asked for call in recorder._all[0].calls]
    assert [asked.texts for asked in kept] == ["", ""]
    assert {len(asked.prompt) for asked in kept} == {MAX_PROMPT_CHARS}


def test_only_what_has_changed_is_made_anew() -> None:
    recorder = Recorder()
    for name in ("a", "b"):
        run(recorder, 0, 1, application_id=name)
    first, second = recorder.applications()
    run(recorder, 2, 3, application_id="b")
    again, changed = recorder.applications()
    assert again is first
    assert (len(second.calls), len(changed.calls), recorder.calls) == (1, 2, 3)


def test_the_file_is_a_workload(tmp_path: Path) -> None:
    recorder = Recorder()
    run(recorder, 5.0, 6.0, application_id="later")
    run(recorder, 0.0, 9.0, application_id="earlier")
    out = tmp_path / "trace.jsonl"
    save(recorder, out)
    read = list(read_workload(out.read_text().splitlines()))
    assert [application.application_id for application in read] == ["earlier", "later"]
    assert [write_application(application) for application in read] == out.read_text().splitlines()
    assert list(tmp_path.iterdir()) == [out]
    recorder.leave_out("told no usage")
    assert summary(recorder, out) == f"{out}: 2 applications with 2 calls. Left out: 1 told no usage."


# ---- the proxy


class Upstream:
    """An OpenAI service of a few words; remembers what reaches it."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.left = asyncio.Event()
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.says: str | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.asked.append(request)
        if request.url.path == "/down":
            raise httpx.ConnectError("nobody")
        if request.method == "GET":
            return _json({"path": request.url.path, "query": request.url.query.decode()})
        if request.content == b"{":
            return _json({"error": {}}, 400)
        body = json.loads(request.content)
        if self.says is not None:
            return httpx.Response(200, content=_parts(self.says.encode()))
        if body.get("prompt") == "wait":
            self.begun.set()
            await self.goes_on.wait()
        if body.get("prompt") == "refuse":
            return _json({"error": {}}, 429, {"retry-after": "3"})
        if body.get("stream"):
            events = self._events(body)
            return httpx.Response(200, content=events, headers={"x-application-id": "root", "x-call-id": "c"})
        usage = {} if body.get("prompt") == "silent" else {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
        return _json({"choices": [{"index": 0, "text": "a long enough answer"}], **usage})

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        try:
            for text in ("one ", "two"):
                self.begun.set()
                yield _event({"choices": [{"index": 0, "delta": {"content": text}}]})
            if body.get("prompt") == "hang":
                await asyncio.Event().wait()
            if body.get("prompt") == "break":
                raise httpx.ReadError("gone")
            if body["stream_options"]["include_usage"]:
                yield _event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}})
            yield b"data: [DONE]\n\n"
        finally:
            self.left.set()


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, content=_parts(json.dumps(document).encode()), headers=headers)


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


class Proxied:
    def __init__(self) -> None:
        self.upstream, self.recorder = Upstream(), Recorder()
        self.now_s = 0.0
        self.proxy = RecordingProxy("http://up", self.recorder, self._tick, httpx.MockTransport(self.upstream))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.proxy), base_url="http://proxy")

    def _tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "p", **fields})


async def test_everything_else_passes_unseen() -> None:
    proxied = Proxied()
    answer = await proxied.client.get("/v1/models?a=1", headers={"authorization": "Bearer k", "te": "x"})
    assert answer.json() == {"path": "/v1/models", "query": "a=1"}
    (request,) = proxied.upstream.asked
    assert (request.headers["authorization"], request.headers["host"]) == ("Bearer k", "up")
    assert "te" not in request.headers
    assert proxied.recorder.applications() == []


async def test_answers_pass_as_they_are_and_are_recorded() -> None:
    proxied = Proxied()
    whole = await proxied.complete(n=2, application_id="a")
    assert whole.json()["choices"][0]["text"] == "a long enough answer"
    await proxied.complete(prompt="about: a long enough answer", application_id="a", stage="more")
    application = only(proxied.recorder)
    assert application.application_id == "a"
    assert edges(application) == {"call-1": (), "more-1": ("call-1",)}
    assert (application.calls[0].output_tokens, application.calls[0].sequences) == (2, 2)


async def test_a_sibling_of_a_long_call_begins_no_application() -> None:
    proxied = Proxied()
    await proxied.complete(application_id="a")
    long = asyncio.create_task(proxied.complete(prompt="wait", application_id="a", stage="long"))
    await asyncio.wait_for(proxied.upstream.begun.wait(), 5)
    proxied.now_s += 100.0
    await proxied.complete(application_id="a", stage="sibling")
    proxied.upstream.goes_on.set()
    await long
    assert edges(only(proxied.recorder)) == {"call-1": (), "sibling-1": ("call-1",), "long-1": ("call-1",)}
    proxied.now_s += 100.0
    await proxied.complete(application_id="a")
    assert [len(application.calls) for application in proxied.recorder.applications()] == [3, 1]


async def test_a_long_call_whose_client_has_left_is_waited_for_no_longer() -> None:
    proxied = Proxied()
    await proxied.complete(application_id="a")
    body = {"prompt": "wait", "application_id": "a"}
    await asyncio.wait_for(_asgi(proxied.proxy, body, proxied.upstream.begun), 5)
    proxied.now_s += 100.0
    await proxied.complete(application_id="a")
    assert len(proxied.recorder.applications()) == 2
    assert not proxied.recorder._awaited


async def test_of_a_long_stream_only_the_beginning_is_kept() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for word in ("  ", *(f"{number} " for number in range(5_000))):
            yield _event({"choices": [{"index": 0, "delta": {"content": word}}]})

    told, most = Told(), 0
    async for _ in told.listen(parts(), streams=True, hides_usage=False):
        most = max(most, sum(map(len, told._texts.values())))
    assert most == MAX_MARK_CHARS
    assert told._texts[0].startswith("0 1 2 3 ")


@pytest.mark.parametrize("asks", [True, False])
async def test_a_stream_shows_its_usage_to_those_who_asked_for_it(asks: bool) -> None:
    proxied = Proxied()
    options = {"stream_options": {"include_usage": True}} if asks else {}
    answer = await proxied.complete(stream=True, **options)
    assert ('"usage"' in answer.text) == asks
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "one " in answer.text
    assert answer.headers["x-call-id"] == "c"
    application = only(proxied.recorder)
    assert (application.application_id, application.calls[0].output_tokens) == ("root", 2)


async def test_what_fails_is_passed_on_and_left_out() -> None:
    proxied = Proxied()
    refused = await proxied.complete(prompt="refuse")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert (await proxied.complete(prompt="silent")).status_code == 200
    with pytest.raises(httpx.ReadError):
        await proxied.complete(prompt="break", stream=True)
    down = await proxied.client.get("/down")
    assert (down.status_code, down.json()["error"]["message"]) == (502, "the service cannot be reached: nobody")
    odd = await proxied.client.post("/v1/completions", content=b"{")
    assert odd.status_code == 400
    assert proxied.recorder.applications() == []
    assert dict(proxied.recorder.left_out) == {"refused with 429": 1, "told no usage": 1, "broke off": 1}


USAGE = {"prompt_tokens": 1, "completion_tokens": 1}
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"choices": [None], "usage": USAGE}, "unreadable"),
        ({"choices": 3, "usage": USAGE}, "unreadable"),
        ({"choices": [{"index": [], "text": "a"}], "usage": USAGE}, "unreadable"),
        ({"choices": [{"text": "a", "tool_calls": [7]}], "usage": USAGE}, "unreadable"),
        ({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": "many"}}, "told no usage"),
        (DEEP, "unreadable"),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_that_cannot_be_read_is_passed_on(said: Any, reason: str, streams: bool) -> None:
    proxied = Proxied()
    text = said if isinstance(said, str) else json.dumps(said)
    text = f"data: {text}\n\ndata: [DONE]\n\n" if streams else text
    proxied.upstream.says = text
    options = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    answer = await proxied.complete(**options)
    assert answer.text == text
    assert proxied.recorder.applications() == []
    assert dict(proxied.recorder.left_out) == {reason: 1}


async def test_tool_calls_with_odd_ids_disturb_no_later_call() -> None:
    proxied = Proxied()
    message = {"content": None, "tool_calls": [{"id": 7}]}
    proxied.upstream.says = json.dumps({"choices": [{"message": message}], "usage": USAGE})
    for _ in range(2):
        assert (await proxied.complete()).status_code == 200
    assert len(only(proxied.recorder).calls) == 2


async def test_a_recorder_that_fails_fails_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = Proxied()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(proxied.recorder, "begin", fail)
    assert (await proxied.complete()).json()["choices"]
    assert dict(proxied.recorder.left_out) == {"unreadable": 1}


async def test_a_client_that_leaves_takes_its_request_with_it() -> None:
    proxied = Proxied()
    asking = asyncio.create_task(_asgi(proxied.proxy, {"prompt": "hang", "stream": True}, proxied.upstream.begun))
    await asyncio.wait_for(asking, 5)
    await asyncio.wait_for(proxied.upstream.left.wait(), 5)
    assert dict(proxied.recorder.left_out) == {"broke off": 1}


async def test_a_call_has_ended_when_its_client_has_left_while_it_was_written_to() -> None:
    """No matter when the rest of the answer is thrown away: nothing is left to the garbage collector."""
    proxied, writing = Proxied(), asyncio.Event()
    held: list[BaseException] = []

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            writing.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                held.append(error)  # and with it the frames that it went through
                raise

    await asyncio.wait_for(_asgi(proxied.proxy, {"prompt": "p", "stream": True}, writing, stuck), 5)
    assert dict(proxied.recorder.left_out) == {"broke off": 1}
    assert held


async def _asgi(proxy: RecordingProxy, body: dict[str, Any], until: asyncio.Event, send: Send | None = None) -> None:
    """A client that leaves as soon as `until` is set."""
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await until.wait()
        return {"type": "http.disconnect"}

    async def read(_: Any) -> None:
        await asyncio.sleep(0)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
    await proxy(scope, receive, send or read)


# ---- the command


def test_the_command_writes_what_it_saw_when_it_is_stopped(tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    arguments = ["--out", str(out), "--port", str(port), "--upstream", "http://127.0.0.1:9"]
    command = [sys.executable, "-m", "serve_app.cli.main", "record", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert f"http://127.0.0.1:{port}" in process.stderr.readline()
        for _ in range(500):
            with suppress(httpx.ConnectError):
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "p"}, trust_env=False)
                break
            time.sleep(0.02)
        assert answer.status_code == 502
        process.terminate()
        said = process.stderr.read()
    assert process.returncode == 0, said
    assert said.strip() == f"{out}: 0 applications with 0 calls. Left out: 1 the service cannot be reached."
    assert out.read_text() == ""


async def test_files_are_written_beside_the_loop_and_never_two_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, begun = Recorder(), asyncio.Event()
    loop, write = asyncio.get_running_loop(), record.write
    log: list[tuple[str, bool]] = []

    def slowly(applications: list[TraceApplication], out: Path) -> None:
        log.append(("begin", threading.current_thread() is threading.main_thread()))
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.1)
        write(applications, out)
        log.append(("end", threading.current_thread() is threading.main_thread()))

    async def serve(recorder: Recorder, *_: Any) -> None:
        run(recorder, 0, 1)
        await begun.wait()
        run(recorder, 2, 3)

    monkeypatch.setattr(record, "SAVE_S", 0.01)
    monkeypatch.setattr(record, "write", slowly)
    monkeypatch.setattr(recorder_server, "serve_recorder", serve)
    out = tmp_path / "trace.jsonl"
    await record._serve(recorder, out, "http://up", "host", 1, Console(quiet=True))
    assert log == [("begin", False), ("end", False), ("begin", True), ("end", True)]
    assert [len(application.calls) for application in read_workload(out.read_text().splitlines())] == [2]


def test_the_command_touches_no_file_and_takes_no_port_that_is_taken(tmp_path: Path) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    assert CliRunner().invoke(app, ["record", "--out", str(there)]).exit_code == 2
    assert there.read_text() == "mine"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = CliRunner().invoke(app, ["record", "--out", str(tmp_path / "new.jsonl"), "--port", port])
    assert refused.exit_code == 1
    assert list(tmp_path.iterdir()) == [there]
    assert CliRunner().invoke(app, ["record", "--out", str(tmp_path / "no" / "such.jsonl")]).exit_code == 1
    assert CliRunner().invoke(app, ["record", "--out", str(tmp_path / "a"), "--upstream", "nowhere"]).exit_code == 2
