"""The commands against a service that is played by an httpx transport, and the demo's applications."""

from __future__ import annotations

import inspect
import io
import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from scheduler.actions import Refusal
from scheduler.policies import POLICIES, policy_options
from serve_app.cli import http
from serve_app.cli.bench import http_errors_in_words
from serve_app.cli.demo import _run as demo_run
from serve_app.cli.demo_applications import demo_applications
from serve_app.cli.live_table import ServiceRefused, answer_text, final_table, shown_number, watch
from serve_app.cli.main import app
from serve_app.cli.service import packages_of_other_builds
from serve_app.documents import parse_application
from serve_app.errors import ApiError, from_refusal, respond

serve_command = sys.modules["serve_app.cli.serve"]  # the package has the command under the module's name
DOCUMENT = {"application_type": "test", "calls": [{"name": "a", "prompt": "Hello", "max_tokens": 5}]}


def status(state: str, application_id: str = "app-1", **fields: Any) -> dict[str, Any]:
    done = state == "finished"
    call = {"name": "a", "state": state, "prompt_tokens": 2, "output_tokens": 3 if done else None}
    return {
        "application_id": application_id,
        "application_type": "test",
        "state": state,
        "finish_tag": 12.5,
        "created_s": 1.0,
        "calls_total": 1,
        "calls_done": int(done),
        "calls": [{**call, "outputs": ["Good day to you"] if done else None, "error": None}],
        "completion_s": 4.25 if done else None,
        "gps_completion_s": 5.0 if done else None,
        "lag_s": -0.75 if done else None,
        "error": None,
        **fields,
    }


class Service:
    """Answers each (method, path) with what is put into `answers`, in order, and the last one for ever."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[httpx.Response | Exception]] = {}
        self.requests: list[httpx.Request] = []

    def say(self, method: str, path: str, *answers: object) -> None:
        self.answers[method, path] = [_as_answer(answer) for answer in answers]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answers = self.answers.get((request.method, request.url.raw_path.decode()))
        if not answers:
            return _as_answer(ApiError(404, "no such path"))
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def _as_answer(answer: object) -> Any:
    if isinstance(answer, ApiError):
        sent = respond(answer)
        return httpx.Response(sent.status_code, headers=dict(sent.headers), content=sent.body)
    return answer if isinstance(answer, httpx.Response | Exception) else httpx.Response(200, json=answer)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    played = Service()
    transport = httpx.MockTransport(played)

    def client(kind: Callable[..., Any]) -> Callable[..., Any]:
        return lambda url, api_key=None: kind(base_url=url, transport=transport, headers=http.authorization(api_key))

    monkeypatch.setattr(http, "make_client", client(httpx.Client))
    monkeypatch.setattr(http, "make_async_client", client(httpx.AsyncClient))
    monkeypatch.setattr("serve_app.cli.submit.watch", partial(watch, poll_interval_s=0.001))
    return played


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.mark.parametrize("command", ["submit", "status", "explain", "cancel"])
def test_every_command_has_help_with_an_example_and_json(command: str) -> None:
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert f"Example: justitia {command}" in shown.output
    assert "--json" in shown.output
    assert "JUSTITIA_URL" in shown.output
    assert "JUSTITIA_API_KEY" in shown.output


@pytest.mark.parametrize(
    "arguments", [["submit", "-", "--wait"], ["status"], ["explain", "app-1"], ["cancel", "app-1"]]
)
def test_every_command_sends_the_api_key(service: Service, arguments: list[str]) -> None:
    for method, path in (("POST", ""), ("GET", ""), ("GET", "/app-1"), ("GET", "/app-1/explain"), ("DELETE", "/app-1")):
        service.say(method, f"/v1/applications{path}", status("finished"))
    assert run(*arguments, "--api-key", "key-of-a", stdin=json.dumps(DOCUMENT)).exit_code == 0
    assert {request.headers["Authorization"] for request in service.requests} == {"Bearer key-of-a"}
    service.requests.clear()
    assert run(*arguments, stdin=json.dumps(DOCUMENT)).exit_code == 0
    assert all("Authorization" not in request.headers for request in service.requests)


def test_a_key_from_the_environment_is_sent_and_not_shown(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUSTITIA_API_KEY", "key-of-a")
    service.say("GET", "/v1/applications", ApiError(401, "this API key is not known"))
    shown = run("status")
    assert (shown.exit_code, service.requests[0].headers["Authorization"]) == (2, "Bearer key-of-a")
    assert "Refused (401): this API key is not known" in shown.output
    assert "key-of-a" not in run("status", "--help").output


@pytest.mark.parametrize("key", ["schlüssel", "line\nbreak"])
def test_a_key_that_no_header_carries_is_refused_unseen(service: Service, key: str) -> None:
    shown = run("status", "--api-key", key)
    assert shown.exit_code == 2
    assert "visible ASCII" in shown.output
    assert key not in shown.output
    assert service.requests == []


def test_submit_sends_a_json_file(service: Service, tmp_path: Path) -> None:
    service.say("POST", "/v1/applications", status("queued"))
    file = tmp_path / "app.json"
    file.write_text(json.dumps(DOCUMENT))
    shown = run("submit", str(file))
    assert shown.exit_code == 0
    assert "app-1 is queued" in shown.output
    assert json.loads(service.requests[0].content) == DOCUMENT


def test_submit_reads_yaml_from_stdin(service: Service) -> None:
    service.say("POST", "/v1/applications", status("queued"))
    document = "application_type: test\ncalls:\n- {name: a, prompt: Hello, max_tokens: 5}\n"
    shown = run("submit", "-", "--json", stdin=document)
    assert json.loads(shown.stdout)["application_id"] == "app-1"
    assert json.loads(service.requests[0].content) == DOCUMENT


def test_submit_waits_and_prints_the_answer(service: Service) -> None:
    service.say("POST", "/v1/applications", status("queued"))
    service.say("GET", "/v1/applications/app-1", status("running"), status("running"), status("finished"))
    shown = run("submit", "-", "--wait", stdin=json.dumps(DOCUMENT))
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("app-1: running, 0/1 calls") == 1
    assert "app-1: finished, 1/1 calls" in shown.output
    assert shown.output.rstrip().endswith("Good day to you")
    assert "-0.75" in shown.output


def test_submit_wait_json_prints_only_the_final_status(service: Service) -> None:
    service.say("POST", "/v1/applications", status("queued"))
    service.say("GET", "/v1/applications/app-1", status("running"), status("finished"))
    shown = run("submit", "-", "--wait", "--json", stdin=json.dumps(DOCUMENT))
    assert json.loads(shown.stdout) == status("finished")


def test_waiting_for_an_application_that_fails_ends_with_3(service: Service) -> None:
    service.say("POST", "/v1/applications", status("queued"))
    service.say("GET", "/v1/applications/app-1", status("failed", error="the engine said no"))
    shown = run("submit", "-", "--wait", stdin=json.dumps(DOCUMENT))
    assert shown.exit_code == 3
    assert "the engine said no" in shown.output


@pytest.mark.parametrize("content", ["", "[1, 2]", "a: [", "just words"])
def test_a_file_that_is_no_application_is_a_usage_error(service: Service, content: str) -> None:
    shown = run("submit", "-", stdin=content)
    assert shown.exit_code == 2
    assert service.requests == []


def test_a_missing_file_is_a_usage_error(service: Service, tmp_path: Path) -> None:
    shown = run("submit", str(tmp_path / "missing.yaml"))
    assert shown.exit_code == 2
    assert "cannot read" in shown.output


COMMANDS = [
    ("POST", "/v1/applications", ("submit", "-")),
    ("GET", "/v1/applications", ("status",)),
    ("GET", "/v1/applications/x", ("status", "x")),
    ("GET", "/v1/applications/x/explain", ("explain", "x")),
    ("DELETE", "/v1/applications/x", ("cancel", "x")),
]


@pytest.mark.parametrize(("method", "path", "arguments"), COMMANDS)
def test_a_refusal_ends_with_2_and_its_reason(
    service: Service, method: str, path: str, arguments: tuple[str, ...]
) -> None:
    service.say(method, path, ApiError(429, "the queue is full", retry_after_s=9))
    shown = run(*arguments, stdin=json.dumps(DOCUMENT))
    assert shown.exit_code == 2
    assert "the queue is full" in shown.stderr
    assert "429" in shown.stderr
    assert "9 s" in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize(("method", "path", "arguments"), COMMANDS)
def test_no_service_ends_with_1_and_says_where(
    service: Service, method: str, path: str, arguments: tuple[str, ...]
) -> None:
    service.say(method, path, httpx.ConnectError("connection refused"))
    shown = run(*arguments, "--url", "http://nowhere:1", stdin=json.dumps(DOCUMENT))
    assert shown.exit_code == 1
    assert "http://nowhere:1" in shown.stderr
    assert "justitia serve" in shown.stderr


def test_a_port_that_nobody_listens_on_is_unreachable() -> None:
    shown = run("status", "--url", "http://127.0.0.1:9")
    assert shown.exit_code == 1
    assert "Cannot reach" in shown.stderr


def test_a_stranger_on_the_port_is_not_believed(service: Service) -> None:
    service.say("GET", "/v1/applications", httpx.Response(200, text="<html>hello"))
    assert run("status").exit_code == 1
    service.say("GET", "/v1/applications", httpx.Response(502, text="bad gateway"))
    shown = run("status")
    assert shown.exit_code == 2
    assert "bad gateway" in shown.stderr


def test_status_lists_applications(service: Service) -> None:
    listed = [status("finished"), status("running", "app-2", calls=None)]
    service.say("GET", "/v1/applications", {"data": listed})
    shown = run("status")
    assert shown.exit_code == 0
    assert "app-1" in shown.output
    assert "app-2" in shown.output
    assert "4.25" in shown.output
    assert json.loads(run("status", "--json").stdout) == {"data": listed}


def test_status_of_none_says_so(service: Service) -> None:
    service.say("GET", "/v1/applications", {"data": []})
    assert "No applications" in run("status").output


def test_status_of_one_shows_its_calls(service: Service) -> None:
    service.say("GET", "/v1/applications/app-1", status("finished"))
    shown = run("status", "app-1")
    assert "Good day to you" in shown.output
    assert "lag_s: -0.75" in shown.output


def test_ids_are_quoted_in_paths(service: Service) -> None:
    service.say("GET", "/v1/applications/a%2Fb%3Fc", status("queued", "a/b?c"))
    assert run("status", "a/b?c").exit_code == 0


def test_explain_shows_facts_and_who_is_ahead(service: Service) -> None:
    facts = {"reason": "waits for memory", "finish_tag": 10.0, "expected_finish_s": None}
    ahead = [{"application_id": "other", "finish_tag": 3.25}]
    service.say("GET", "/v1/applications/app-1/explain", {**facts, "ahead": ahead})
    shown = run("explain", "app-1")
    assert "waits for memory" in shown.output
    assert "other" in shown.output
    assert "3.25" in shown.output
    service.say("GET", "/v1/applications/app-1/explain", {**facts, "ahead": []})
    assert "Ahead of it" not in run("explain", "app-1").output
    assert json.loads(run("explain", "app-1", "--json").stdout)["reason"] == "waits for memory"


def test_an_application_that_came_call_by_call_has_no_number_of_calls(service: Service) -> None:
    fields = {"calls_total": None, "calls_done": None, "calls": None}
    service.say("GET", "/v1/applications/app-1", status("running", **fields))
    shown = run("status", "app-1")
    assert shown.exit_code == 0
    assert "-/-" in shown.output


def test_cancel_says_what_became_of_it(service: Service) -> None:
    service.say("DELETE", "/v1/applications/app-1", status("cancelled"))
    assert "app-1 is cancelled" in run("cancel", "app-1").output
    service.say("DELETE", "/v1/applications/app-1", httpx.Response(204))
    assert run("cancel", "app-1").exit_code == 0


async def test_watch_survives_a_restart_of_the_service(service: Service) -> None:
    lost = httpx.ConnectError("restarting")
    busy = from_refusal(Refusal.NO_ENGINE, "starting")
    service.say("GET", "/v1/applications/app-1", status("running"), lost, lost, busy, status("finished"))
    service.say("GET", "/v1/applications/app-2", status("cancelled", "app-2"))
    console = Console(file=io.StringIO(), force_terminal=False)
    async with http.make_async_client("http://service") as client:
        statuses = await watch(client, ["app-1", "app-2"], console, poll_interval_s=0.001)
    assert [each["state"] for each in statuses] == ["finished", "cancelled"]
    assert [each["application_id"] for each in statuses] == ["app-1", "app-2"]


async def test_watch_gives_up_on_what_will_not_come_back(service: Service) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    service.say("GET", "/v1/applications/gone", httpx.ConnectError("down"))
    async with http.make_async_client("http://service") as client:
        with pytest.raises(httpx.ConnectError):
            await watch(client, ["gone"], console, poll_interval_s=0.001)
        with pytest.raises(ServiceRefused) as caught:
            await watch(client, ["unknown"], console, poll_interval_s=0.001)
    assert caught.value.answer.status_code == 404


async def test_watch_draws_a_table_on_a_terminal(service: Service) -> None:
    service.say("GET", "/v1/applications/app-1", status("running"), status("finished"))
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120)
    async with http.make_async_client("http://service") as client:
        await watch(client, ["app-1"], console, poll_interval_s=0.001)
    assert "finish tag" in written.getvalue()
    assert "finished" in written.getvalue()


def test_the_final_table_gives_times_and_answers() -> None:
    written = io.StringIO()
    ended = [status("finished"), status("failed", "app-2", error="[bold]out of memory[/bold]")]
    Console(file=written, width=160).print(final_table(ended))
    assert "Good day to you" in written.getvalue()
    assert "[bold]out of memory[/bold]" in written.getvalue()
    assert all(number in written.getvalue() for number in ("4.25", "5.00", "-0.75"))


async def test_a_demo_that_takes_too_long_names_what_was_not_finished(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.say("POST", "/v1/applications", status("queued"))
    service.say("GET", "/v1/applications/app-1", status("running"))
    listed = [status("running"), status("finished", "app-2"), status("queued", "app-3")]
    service.say("GET", "/v1/applications", {"data": listed})
    with pytest.raises(typer.Exit) as ended:
        await demo_run("http://service", Console(file=io.StringIO()), 0.05)
    assert ended.value.exit_code == 3
    said = capsys.readouterr().err
    assert "Gave up after 0.05 s. Not finished: 2." in said
    assert "app-1: running, 0/1 calls" in said
    assert "app-3: queued" in said
    assert "app-2" not in said


def test_a_refused_measurement_ends_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    request = httpx.Request("POST", "http://service/v1/completions")
    with pytest.raises(typer.Exit) as refused, http_errors_in_words("http://service"):
        httpx.Response(503, request=request).raise_for_status()
    assert refused.value.exit_code == 2
    assert "A request was refused (503): http://service/v1/completions" in capsys.readouterr().err
    with pytest.raises(typer.Exit) as unreachable, http_errors_in_words("http://service"):
        raise httpx.ConnectError("nobody listens")
    assert unreachable.value.exit_code == 1
    assert "nobody listens" in capsys.readouterr().err


def played_service(monkeypatch: pytest.MonkeyPatch, start: Callable[[], None]) -> None:
    @contextmanager
    def starting(_document: object, _console: Console) -> Iterator[str]:
        start()
        yield "http://service"

    monkeypatch.setattr(serve_command, "running_service", starting)
    monkeypatch.setattr(serve_command, "with_available_model", lambda document, _: document)


def test_ctrl_c_stops_a_start_up_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> None:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    played_service(monkeypatch, start)
    assert stopped_by_signal("serve", "--simulated").exit_code == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_service_that_is_up(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    played_service(monkeypatch, lambda: None)
    monkeypatch.setattr(http, "print_json", lambda _: signal.raise_signal(number))
    assert stopped_by_signal("serve", "--simulated", "--json").exit_code == 0


def stopped_by_signal(*arguments: str) -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run(*arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_numbers_are_shown_for_readers() -> None:
    shown = [shown_number(value) for value in (None, 3, 1.234, 12_345_678.9, "text")]
    assert shown == ["-", "3", "1.23", "12,345,679", "text"]


def test_an_answer_is_the_last_call_s_first_text() -> None:
    calls = [{"outputs": ["first"]}, {"outputs": [" last ", "other"]}]
    assert answer_text({"calls": calls}) == "last"
    assert answer_text({"calls": []}) == answer_text({}) == ""


def test_the_demo_fits_its_small_machine() -> None:
    documents = [parse_application(document) for document in demo_applications()]
    assert len(documents) >= 7
    assert len({document.application_type for document in documents}) >= 5
    total_tokens = 0
    for document in documents:
        made = {name: (document.call(name).max_tokens or 0) * document.call(name).n for name in document.order()}
        total_tokens += sum(made.values())
        for name in document.order():
            call = document.call(name)
            known = document.longest_template_chars(name) / 4
            assert known + sum(made[other] for other in call.references()) <= 350
            assert 24 <= (call.max_tokens or 0) <= 120
    assert total_tokens <= 2_500


def test_the_demo_has_the_promised_shapes() -> None:
    shapes = {document["application_type"]: document for document in reversed(demo_applications())}
    summary = shapes["map_reduce_summarization"]["calls"]
    assert [len(call["after"]) for call in summary] == [0, 0, 0, 0, 4]
    assert max(call.get("n", 1) for call in shapes["self_consistency"]["calls"]) == 5
    assert {"fact_verification", "plan_and_execute", "document_merging", "code_checking"} <= set(shapes)


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "serve.yaml"
        config.write_text(
            f"http_options: {{host: 127.0.0.1, port: {port}}}\n"
            "applications: [{name: a, import_path: a:b, args: {engine: {kind: simulated}}}]\n"
        )
        result = CliRunner().invoke(app, ["serve", "--config", str(config)])
    assert result.exit_code == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in result.output
    assert "Traceback" not in result.output


def test_policies_are_listed_with_all_that_one_chooses_by() -> None:
    listed = {row["name"]: row for row in json.loads(run("policies", "--json").stdout)}
    assert set(listed) == set(POLICIES)
    assert listed["justitia"]["needs"] == ["predictions", "weights"]
    assert listed["justitia"]["shares_among_flows"] is False
    assert listed["fcfs"]["options"] == {}
    for name, policy in POLICIES.items():
        assert tuple(listed[name]["options"]) == policy_options(policy)
        assert listed[name]["summary"] == policy.summary


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_of_policies_fits_the_terminal(columns: int) -> None:
    shown = CliRunner().invoke(app, ["policies"], env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    assert shown.exit_code == 0
    assert max(len(line) for line in shown.output.splitlines()) <= columns
    assert "…" not in shown.output
    first_words = {line.strip("│ ").split("│")[0].strip() for line in shown.output.splitlines()}
    assert set(POLICIES) <= first_words, "names are never broken"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_is_shown_with_its_algorithm(name: str) -> None:
    shown = run("policies", name)
    assert shown.exit_code == 0
    document = json.loads(run("policies", name, "--json").stdout)
    assert document["algorithm"] == inspect.getdoc(sys.modules[POLICIES[name].__module__])
    assert document["algorithm"] in shown.output
    assert POLICIES[name].paper in shown.output


def test_an_unknown_policy_names_the_known_ones() -> None:
    shown = run("policies", "fastest")
    assert shown.exit_code == 2
    assert "No policy 'fastest'" in shown.stderr
    assert "justitia" in shown.stderr


SMALL_BENCH = ("bench", "core", "--policy", "justitia", "--size", "10", "--size", "20", "--seconds", "0.001")
ONE_RATE = ("--rate", "600", "--applications", "5")


def test_bench_core_prints_its_tables() -> None:
    shown = run(*SMALL_BENCH, *ONE_RATE)
    assert shown.exit_code == 0, shown.output
    for words in ("heapq push + pop", "promised of justitia", "The whole scheduler", "8.093 ms"):
        assert words in shown.output
    helped = run("bench", "core", "--help")
    assert "Example: justitia bench core" in helped.output
    assert "--json" in helped.output


def test_bench_core_speaks_json() -> None:
    document = json.loads(run(*SMALL_BENCH, *ONE_RATE, "--json").stdout)
    assert set(document["heap_pair_us"]) == set(document["life_us"]["justitia"]) == {"10", "20"}
    assert [promise["holds"] for promise in document["promises"]] == [
        promise["measured"] <= promise["limit"] for promise in document["promises"]
    ]
    assert document["core"][0]["applications_a_minute"] == 600


@pytest.mark.parametrize(("limit", "exit_code"), [(0.0, 1), (1e9, 0)])
def test_bench_core_checks_what_is_promised(monkeypatch: pytest.MonkeyPatch, limit: float, exit_code: int) -> None:
    monkeypatch.setattr("serve_app.cli.policy_speed.MAX_RATIO_TO_HEAP", limit)
    monkeypatch.setattr("serve_app.cli.policy_speed.MAX_GROWTH", 1e9)
    assert run(*SMALL_BENCH, *ONE_RATE, "--check").exit_code == exit_code


@pytest.mark.parametrize(
    ("versions", "named"),
    [
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.13.0+cpu"}, ["torchvision"]),
        ({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, []),
        ({"torch": "2.13.0", "torchvision": "0.28.0", "torchcodec": "0.9"}, []),
        ({"torch": "2.13.0+cpu"}, []),
        ({"torchvision": "0.28.0"}, []),
    ],
)
def test_packages_that_may_not_fit_torch_are_named(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], named: list[str]
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    said = packages_of_other_builds()
    assert (said or "").rpartition("pip uninstall ")[2].split() == named
