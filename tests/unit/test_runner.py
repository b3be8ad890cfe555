"""What one run makes of the scheduler's actions and of its own answers."""

from __future__ import annotations

import asyncio

import pytest

from cluster.scheduler_link import SchedulerLink
from scheduler.actions import Action, Grant, PublishCallEnd, PublishTag, Refusal, Reject
from scheduler.events import ApplicationArrived, ApplicationCancelled
from serve_app.documents import ApplicationStatus, parse_application
from serve_app.errors import ApiError
from serve_app.inference import Inference
from serve_app.predictions import Predictions
from serve_app.runner import ApplicationRunner, Run
from serve_app.settings import IngressSettings
from serve_app.token_counting import ApproximateTokenCounter
from tests.in_process import InProcessReplicas, eventually


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


# ---- many runs, without a scheduler


class Link(SchedulerLink):
    """Only remembers what it is told."""

    def __init__(self) -> None:
        super().__init__("i", None, frozenset)  # type: ignore[arg-type]

    def hear(self, action: Action) -> None:
        self._take(action)


def runner_with(link: Link, max_kept: int = 2) -> ApplicationRunner:
    counter = ApproximateTokenCounter()
    inference = Inference(link, InProcessReplicas(), counter, Predictions(), IngressSettings())
    link.listen_to_all(inference.predictions.note)
    return ApplicationRunner(inference, max_kept)


def tag(application_id: str) -> PublishTag:
    return PublishTag(application_id, 0.0, 1.0, 1.0, "arrival")


async def submitting(runner: ApplicationRunner, link: Link, application_id: str) -> asyncio.Task[ApplicationStatus]:
    """A submission whose scheduler has not answered."""
    document = parse_application({"application_id": application_id, "calls": [call("a")]})
    task = asyncio.create_task(runner.submit(document))
    await eventually(lambda: application_id in link._listeners)
    return task


@pytest.mark.parametrize("refused", [False, True])
async def test_one_whose_client_leaves_is_cancelled_but_never_its_namesake(refused: bool) -> None:
    link = Link()
    runner = runner_with(link)
    task = await submitting(runner, link, "x")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [type(event) for event in link._outbox] == [ApplicationArrived]
    link.hear(Reject("x", None, Refusal.DUPLICATE_ID, "x runs") if refused else tag("x"))
    await asyncio.sleep(0)
    cancelled = [] if refused else [ApplicationCancelled]
    assert [type(event) for event in link._outbox] == [ApplicationArrived, *cancelled]
    assert runner.holds("x") is not refused


async def test_nothing_is_kept_of_one_that_was_refused() -> None:
    link = Link()
    runner = runner_with(link)
    task = await submitting(runner, link, "x")
    link.hear(Reject("x", None, Refusal.DUPLICATE_ID, "x runs"))
    with pytest.raises(ApiError):
        await task
    predictions = runner._inference.predictions
    assert (len(predictions.underway), len(predictions._pending)) == (0, 0)


async def test_one_that_ran_for_long_is_kept_after_it_has_settled() -> None:
    link = Link()
    runner = runner_with(link)
    for name in ("long", "b", "c", "d"):
        task = await submitting(runner, link, name)
        link.hear(tag(name))
        await task
    for name in ("b", "c", "long"):
        link.hear(Reject(name, None, Refusal.BUSY, "a later scheduler has no room"))
        await asyncio.sleep(0)
    assert [runner.holds(name) for name in ("long", "b", "c", "d")] == [True, False, True, True]
    assert [status.application_id for status in runner.summaries()] == ["long", "c", "d"]
    runner.cancel("d")
