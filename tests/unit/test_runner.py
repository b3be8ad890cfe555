"""What one run makes of the scheduler's actions and of its own answers."""

from __future__ import annotations

import pytest

from scheduler.actions import Action, Grant, PublishCallEnd, PublishTag, Refusal, Reject
from serve_app.documents import parse_application
from serve_app.errors import ApiError
from serve_app.runner import Run


def call(name: str, *after: str) -> dict[str, object]:
    return {"name": name, "prompt": "p", "after": list(after)}


async def run_of(*calls: dict[str, object]) -> Run:
    return Run("x", parse_application({"calls": list(calls)}))


STRANGERS: list[Action] = [
    Grant("r0", "x", "call-1", "lease", 1, 0),
    Reject("x", "call-1", Refusal.APPLICATION_CLOSED, "closed"),
    PublishCallEnd("x", "call-1", "failed", "lost", 3, (2,)),
]


@pytest.mark.parametrize("action", STRANGERS, ids=lambda action: type(action).__name__)
async def test_news_of_a_call_that_is_not_in_the_document_is_ignored(action: Action) -> None:
    run = await run_of(call("a"))
    before = run.status()
    run.take(action)
    assert run.status() == before
    assert run.error is None


async def test_news_of_its_own_calls_is_taken() -> None:
    run = await run_of(call("a"), call("b", "a"))
    run.take(PublishTag("x", 0.0, 5.0, 5.0, "arrived"))
    run.take(Grant("r0", "x", "a", "lease", 1, 0))
    assert run.status().state == "running"
    assert run.unfinished_calls == 2
    run.take(PublishCallEnd("x", "a", "finished", "", 3, (2, 4)))
    assert run.unfinished_calls == 1
    status = run.status()
    assert status.calls is not None
    assert (status.calls[0].state, status.calls[0].output_tokens, status.finish_tag) == ("finished", 6, 5.0)
    assert run.summary().calls is None


async def test_calls_are_released_by_the_last_answer_that_they_wait_for() -> None:
    run = await run_of(call("a"), call("b"), call("c", "a"), call("d", "a", "b"), call("e", "d"))
    assert run.roots == ["a", "b"]
    assert run.answer("a", ["A"]) == ["c"]
    assert run.answer("c", ["C"]) == []
    assert run.answer("b", ["B"]) == ["d"]
    assert run.answer("d", ["D"]) == ["e"]
    assert run.outputs == {"a": ["A"], "b": ["B"], "c": ["C"], "d": ["D"]}


async def test_the_first_error_of_a_call_stays() -> None:
    run = await run_of(call("a"))
    run.fail("a", ApiError(400, "the engine's own words"))
    run.take(PublishCallEnd("x", "a", "failed", "call a failed: invalid", 3, (0,)))
    status = run.status()
    assert status.calls is not None
    assert status.error == status.calls[0].error == "the engine's own words"
