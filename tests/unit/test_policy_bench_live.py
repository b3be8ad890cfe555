"""One run of `justitia bench policies`: its log, its counters, and the end of its service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from ray import serve
from rich.console import Console

from serve_app.policy_bench import live, stage
from serve_app.policy_bench.live import counters, marked
from serve_app.policy_bench.results import ResultsError
from serve_app.policy_bench.stage import Stage


async def test_the_logs_length_is_noted_at_each_windows_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WINDOW_S", 0.02)
    log, marks = tmp_path / "log", [0]
    log.write_text("{}\n{}\n")
    async with marked(log, marks):
        await asyncio.sleep(0.5)
    assert set(marks[1:]) == {2}
    noted = len(marks)
    await asyncio.sleep(0.1)
    assert len(marks) == noted, "nobody notes after the block"


async def test_a_log_that_cannot_be_read_ends_a_run_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WINDOW_S", 0.01)
    with pytest.raises(ResultsError, match="the iteration log cannot be read: Is a directory"):
        async with marked(tmp_path, [0]):
            await asyncio.sleep(0.5)


async def test_what_ends_a_run_is_not_hidden_by_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WINDOW_S", 0.01)

    async def fail() -> None:
        async with marked(tmp_path, [0]):
            await asyncio.sleep(0.1)
            raise httpx.ConnectError("gone")

    with pytest.raises(httpx.ConnectError):
        await fail()


@pytest.mark.parametrize("text", ["<html>", "{}", "[]", "5", '{"iterations": null, "preemptions": 0}'])
async def test_a_service_that_answers_oddly_ends_a_run_in_words(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(live, "REPORT_WAIT_S", 0.0)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
    async with httpx.AsyncClient(base_url="http://service", transport=transport) as client:
        with pytest.raises(ResultsError, match="the service does not answer as it should"):
            await counters(client)


# ---- the end of a service


def end_of(monkeypatch: pytest.MonkeyPatch, wait_s: float, *there: list[str]) -> list[str]:
    """Delete one application while Serve has these; what was deleted."""
    answers = list(there)
    deleted: list[str] = []
    monkeypatch.setattr(stage, "POLL_S", 0.0)
    monkeypatch.setattr(stage, "END_WAIT_S", wait_s)
    monkeypatch.setattr(serve, "delete", deleted.append)
    monkeypatch.setattr(
        serve,
        "status",
        lambda: SimpleNamespace(applications=dict.fromkeys(answers.pop(0) if len(answers) > 1 else answers[0])),
    )
    monkeypatch.setattr(Stage, "_deploy", lambda *_: "http://service")
    whole = Stage(Console(quiet=True))
    whole._begun = True
    with whole.service({"applications": [{"name": "justitia"}]}) as url:
        assert url == "http://service"
    return deleted


def test_a_service_is_waited_for_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_of(monkeypatch, 60.0, ["justitia"], ["justitia"], []) == ["justitia"]


def test_no_run_begins_beside_a_service_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResultsError, match="the service does not end: justitia"):
        end_of(monkeypatch, 0.05, ["justitia"])
