"""The command line around the agents: where texts come from, what is printed, how it ends."""

from __future__ import annotations

import asyncio
import errno
import json
import runpy
import socket
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from serve_app.agents import AGENTS, command
from serve_app.agents.trace import gantt
from serve_app.cli.main import app
from serve_app.client import AsyncJustitia, CallTrace, JustitiaError
from tests.scripted_service import ScriptedService

NAME = "equation_verification"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ScriptedService:
    """Whoever asks a service, asks this one."""
    service = ScriptedService(lambda stage, prompt: f"{stage} [says]")

    def client(url: str, api_key: str | None) -> AsyncJustitia:
        return AsyncJustitia(url, api_key, http=service, max_retries=0)

    monkeypatch.setattr(command, "AsyncJustitia", client)
    monkeypatch.setattr(command.http, "require_service", lambda url, api_key: None)
    return service


def run(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["agent", *arguments], input=given)


def test_an_agent_works_on_its_sample_and_prints_what_it_found(service: ScriptedService) -> None:
    result = run(NAME)
    assert result.exit_code == 0, result.output
    assert "36 - 20 = 17 is wrong: it comes to 16." in result.stdout
    assert "36 - 20 = 17 | wrong | 16" in result.stdout
    assert "revise [says]" in result.stdout
    assert "Calls over time" not in result.stdout


def test_a_text_a_file_or_the_standard_input(service: ScriptedService, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("We see 2 + 2 = 5.")
    for result in (run(NAME, "We see 2 + 2 = 5."), run(NAME, str(file)), run(NAME, "-", given="We see 2 + 2 = 5.")):
        assert result.stdout.startswith("Equations: 1, wrong: 1. 2 + 2 = 5"), result.output
    assert run(NAME, "a" * 10_000).exit_code == 0


def test_json_holds_all_of_it(service: ScriptedService) -> None:
    found = json.loads(run(NAME, "--json").stdout)
    assert {"answer", "calls", "equations", "revised"} == set(found)
    assert [call["name"] for call in found["calls"]] == ["read-1", "explain-1", "revise-1"]


def test_the_trace_shows_calls_over_time(service: ScriptedService) -> None:
    shown = run("fact_verification", "--trace").stdout
    assert "Calls over time" in shown
    for name in ("extract-1", "check-1", "join-1"):
        assert name in shown


@pytest.mark.parametrize("text", ["", "  \n"])
def test_no_text_is_refused(service: ScriptedService, text: str) -> None:
    result = run(NAME, text)
    assert (result.exit_code, service.asked) == (2, [])
    assert "there is no text in it" in result.stderr


def test_what_an_agent_cannot_work_on_is_refused_in_words(service: ScriptedService, tmp_path: Path) -> None:
    assert "whole number" in run("household_task", "seven").stderr
    assert "none of" in run("no_agent").stderr
    broken = tmp_path / "broken"
    broken.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in run(NAME, str(broken)).stderr
    assert "not UTF-8" in run(NAME, "x\udcff").stderr


def test_what_cannot_be_read_is_refused_in_words(
    service: ScriptedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.write_text("2 + 2 = 5")

    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)  # who tests as root may read all files
        refused = run(NAME, str(locked))
    assert (refused.exit_code, service.asked) == (2, [])
    assert "locked: Permission denied" in " ".join(refused.stderr.split())
    broken = run(NAME, "-", given=b"2 + 2 = 5 \xff\xfe")
    assert (broken.exit_code, service.asked) == (2, [])
    assert "not UTF-8" in broken.stderr


def test_lines_may_end_as_on_another_system(service: ScriptedService, tmp_path: Path) -> None:
    text = b"def f():\r\n    return 1\r\n\r\n# tests\r\nassert f() == 1\r\n"
    file = tmp_path / "code.txt"
    file.write_bytes(text)
    for result in (run("code_checking", str(file)), run("code_checking", "-", given=text)):
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (JustitiaError("the prompt is too long", 400), 2, "Refused: the prompt is too long"),
        (JustitiaError("the application is failed: no reason"), 3, "the application is failed"),
        (httpx.ConnectError("nobody"), 1, "Cannot reach the service"),
    ],
)
def test_failures_have_exit_codes(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int, words: str
) -> None:
    async def fail(request: Any) -> Any:
        raise error

    monkeypatch.setattr(service, "handle_async_request", fail)
    result = run(NAME, "--url", "http://service")
    assert result.exit_code == exit_code
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_without_a_service_it_says_so_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        result = run(NAME, "--url", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert result.exit_code == 1
    assert "Cannot reach the service" in result.stderr


@pytest.mark.parametrize("name", ["no/such/../text.txt", "/no/such", "./none", "notes.md"])
def test_a_file_that_is_not_there_is_no_text(service: ScriptedService, name: str) -> None:
    refused = run(NAME, name)
    assert (refused.exit_code, service.asked) == (2, [])
    assert "No such file" in refused.stderr


def test_a_folder_is_no_text(service: ScriptedService, tmp_path: Path) -> None:
    refused = run(NAME, str(tmp_path))
    assert (refused.exit_code, service.asked) == (2, [])
    assert "Is a directory" in " ".join(refused.stderr.split())


def test_what_only_looks_a_little_like_a_file_is_a_text(service: ScriptedService) -> None:
    assert run(NAME, "6/3=2.").stdout.startswith("Equations: 1")


@pytest.mark.parametrize("url", ["nowhere", "ftp://x"])
def test_a_wrong_url_is_refused(url: str) -> None:
    assert run(NAME, "--url", url).exit_code in (1, 2)


def test_all_agents_are_listed() -> None:
    listing = CliRunner().invoke(app, ["agents", "--json"])
    about = json.loads(listing.stdout)
    assert tuple(about) == AGENTS
    assert all(says.endswith(".") for says in about.values())
    table = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["agents"]).stdout
    assert all(name in table for name in AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_a_program_of_its_own(
    name: str, service: ScriptedService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--json"])
    monkeypatch.delitem(sys.modules, f"serve_app.agents.{name}", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"serve_app.agents.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["answer"]


def test_bars_lie_where_calls_ran() -> None:
    calls = [
        CallTrace("reduce-1", "reduce", 5.0, 10.0, ("map-1", "map-2", "map-3", "map-4"), 9, 8),
        CallTrace("map-1", "map", 0.0, 5.0, (), 7, 6),
    ]
    console = Console(width=100, record=True, file=StringIO())
    console.print(gantt(calls))
    first, second = (line for line in console.export_text().splitlines() if "-1" in line and "█" in line)
    assert first.index("map-1") < first.index("█")
    assert first.rindex("█") < second.index("█")
    assert "map-1 … map-4 (4)" in second


@pytest.mark.parametrize("calls", [[], [CallTrace("a", None, 0.0, 0.0, (), 0, 0)]])
def test_a_trace_without_time_is_shown(calls: list[CallTrace]) -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(gantt(calls))
    assert "0 … 0.0 s" in console.export_text()


def test_an_interrupt_ends_it_and_cancels_the_application(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = service.handle_async_request

    async def interrupted(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("completions"):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(10)
        return await answer(request)

    monkeypatch.setattr(service, "handle_async_request", interrupted)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(command._run(_agent(), "1 + 1 = 3", service.client()))
    assert list(service.endings.values()) == ["cancelled"]


def _agent() -> Any:
    from serve_app.agents import equation_verification

    return equation_verification.run
