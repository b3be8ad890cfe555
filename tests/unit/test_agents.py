"""The nine agents on a model that follows a script: what they make of good answers, and of nonsense."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import asdict, fields
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.agents import (
    AGENTS,
    code_checking,
    document_merging,
    equation_verification,
    fact_verification,
    household_task,
    knowledge_base_qa,
    map_reduce_summarization,
    plan_and_execute,
    self_consistency,
)
from serve_app.agents.knowledge import Passages
from serve_app.agents.result import InputError, Result
from serve_app.agents.whole import literal
from serve_app.client import JustitiaError
from serve_app.prompt_templates import references
from tests.scripted_service import Model, ScriptedService

SUBMITTED_WHOLE = {"map_reduce_summarization", "document_merging", "self_consistency"}
NONSENSE = ("", "{{map1}} {curly}\n```\n", "\x00\x1b[31m\n- \n- not true, " + "0" * 400, "ü" * 5000)
AVERAGE = "def average(numbers):\n    return sum(numbers) / len(numbers)"


async def played(agent: Any, model: Model, *text: Any) -> tuple[Any, ScriptedService]:
    """What `agent.run` gives with this model, and the service as it was left."""
    service = ScriptedService(model)
    async with service.client() as client:
        return await agent.run(client, *text), service


def check_shape(name: str, result: Result) -> None:
    """What holds of every result, whatever the model said."""
    assert isinstance(result.answer, str)
    assert result.answer.strip()
    assert result.calls
    assert all(0 <= call.started_s <= call.finished_s for call in result.calls)
    names = {call.name for call in result.calls}
    assert len(names) == len(result.calls)
    assert all(set(call.after) <= names - {call.name} for call in result.calls), name
    json.dumps(asdict(result))
    assert len(fields(result)) > len(fields(Result))


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_every_agent_ends_whatever_the_model_says(name: str, nonsense: str) -> None:
    result, service = await played(import_module(f"serve_app.agents.{name}"), lambda stage, prompt: nonsense)
    check_shape(name, result)
    assert list(service.types.values()) == [name]
    assert list(service.endings.values()) == ["finished" if name in SUBMITTED_WHOLE else "closed"]
    assert all(body["max_tokens"] <= 96 for body in service.bodies)


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_whose_call_is_refused_says_so_and_cancels_its_application(name: str) -> None:
    def refuse(stage: str, prompt: str) -> str:
        raise JustitiaError("no room", 400)

    service = ScriptedService(refuse)
    async with service.client() as client:
        with pytest.raises(JustitiaError, match="no room"):
            await import_module(f"serve_app.agents.{name}").run(client)
    assert list(service.endings.values()) == ["failed" if name in SUBMITTED_WHOLE else "cancelled"]


def test_every_agents_file_is_short() -> None:
    for name in AGENTS:
        lines = len(Path(str(import_module(f"serve_app.agents.{name}").__file__)).read_text().splitlines())
        assert lines < 100, f"{name} has {lines} lines"


# ---- map-reduce


@given(st.text(alphabet="ab {}.\n", min_size=1, max_size=4000).filter(lambda text: text.strip()))
def test_every_word_of_a_text_is_summarized_once_and_every_summary_joined_once(text: str) -> None:
    cut = map_reduce_summarization.parts(text, map_reduce_summarization.PART_CHARS)
    assert "".join("".join(cut).split()) == "".join(text.split())
    assert all(len(part) <= map_reduce_summarization.PART_CHARS for part in cut)
    calls = map_reduce_summarization.plan(cut)
    used = Counter(name for call in calls for name in call["after"])
    assert set(used.values()) <= {1}
    assert {call["name"] for call in calls} - set(used) == {calls[-1]["name"]}
    assert max(len(call["after"]) for call in calls) <= map_reduce_summarization.FAN_IN


async def test_summaries_are_passed_on_layer_by_layer() -> None:
    text = " ".join(f"Sentence number {number} of a long text." for number in range(200))
    summary, service = await played(map_reduce_summarization, lambda stage, prompt: f"<{stage}>", text)
    assert summary.parts > map_reduce_summarization.FAN_IN
    assert summary.answer == "<reduce2_1>"
    (last,) = service.prompts("reduce2_1")
    assert "<reduce1_1>" in last
    assert "<reduce1_2>" in last
    assert "<map" not in last


async def test_braces_in_a_text_stay_text() -> None:
    _, service = await played(map_reduce_summarization, lambda stage, prompt: "secret", "See {{map1}} and {{x}}.")
    assert len(service.asked) == 1
    assert "secret" not in service.asked[0][1]


@given(st.lists(st.sampled_from(["{", "}", "{{", "}}", "map1", "{{{map1}}}", " "]), max_size=20).map("".join))
def test_nobodys_text_refers_to_another_call(text: str) -> None:
    written = literal(text)
    assert references(written) == []
    assert written.replace(" ", "") == text.replace(" ", "")


async def test_a_text_of_too_many_parts_is_refused_before_anything_is_sent() -> None:
    service = ScriptedService(lambda stage, prompt: "x")
    async with service.client() as client:
        with pytest.raises(InputError, match="1001 parts"):
            await map_reduce_summarization.run(client, "a" * (500 * 1000 + 1))
    assert not service.types


# ---- merging, voting


async def test_a_merge_marks_its_drafts_and_shows_all_to_the_last_call() -> None:
    answers = {"mark1": "I give it 8.", "mark2": "none", "mark3": "11 of 10"}
    merged, service = await played(document_merging, lambda stage, prompt: answers.get(stage, f"<{stage}>"))
    assert merged.documents == 3
    assert merged.marks == (8.0, None, 10.0)
    assert merged.drafts == ("<draft1>", "<draft2>", "<draft3>")
    (final,) = service.prompts("final")
    assert all(part in final for part in ("I give it 8.", "<draft1>", "<draft2>", "<draft3>"))
    assert all("Ada books the hall" in prompt for prompt in service.prompts("draft2") + service.prompts("mark1"))


async def test_one_document_is_no_merge() -> None:
    service = ScriptedService(lambda stage, prompt: "x")
    async with service.client() as client:
        with pytest.raises(InputError, match="two documents"):
            await document_merging.run(client, "alone\n---\n")


@pytest.mark.parametrize(
    ("thoughts", "model_says", "answer"),
    [
        (["so 24", "it is 24.0", "24 rolls.", "17", "1,024"], "17", "24"),
        (["24", "17", "24", "17", "3"], "The most frequent is 17.", "17"),
        (["24", "17", "24", "17", "3"], "3", "24"),
        (["I think so\nParis.", "paris", "London!", "", "  "], "", "paris"),
        (["", "", "", "", ""], "7", "unclear"),
    ],
)
async def test_the_answer_of_most_lines_of_thought_wins(thoughts: list[str], model_says: str, answer: str) -> None:
    script = iter(thoughts)
    elected, service = await played(
        self_consistency, lambda stage, prompt: next(script) if stage == "think" else model_says or "?"
    )
    assert elected.answer == answer
    assert sum(vote.count for vote in elected.votes) == 5
    assert [vote.count for vote in elected.votes] == sorted((vote.count for vote in elected.votes), reverse=True)
    assert "[5]" in service.prompts("compare")[0]


# ---- claims


async def test_claims_are_checked_one_by_one_and_joined() -> None:
    answers = {"extract": "Here:\n1. Whales breathe air.\n2) The Moon glows.\n", "join": "Half of it."}

    def model(stage: str, prompt: str) -> str:
        return answers.get(stage) or ("True, they do." if "Whales breathe" in prompt else "False: it reflects.")

    checked, service = await played(fact_verification, model)
    assert [(claim.text, claim.verdict) for claim in checked.claims] == [
        ("Whales breathe air.", "true"),
        ("The Moon glows.", "false"),
    ]
    assert checked.verdict == "false"
    assert checked.answer == "Half of it."
    assert "Whales breathe air. (true)" in service.prompts("join")[0]
    assert checked.calls[-1].after == tuple(f"check-{number}" for number in range(1, len(checked.claims) + 1))


async def test_claims_are_checked_side_by_side() -> None:
    """The service answers a check only when all of them are there."""
    service = ScriptedService(lambda stage, prompt: "true")
    barrier = asyncio.Barrier(3)
    answer = service.handle_async_request

    async def together(request: Any) -> Any:
        if b'"stage": "check"' in request.content or b'"stage":"check"' in request.content:
            await barrier.wait()
        return await answer(request)

    service.handle_async_request = together  # type: ignore[method-assign]
    async with service.client() as client:
        checked = await asyncio.wait_for(fact_verification.run(client), 10)
    assert checked.verdict == "true"


async def test_an_answer_is_checked_against_the_passages_about_it() -> None:
    def model(stage: str, prompt: str) -> str:
        if stage == "split":
            return "- The ferry has sailed since 1911.\n- Zebras quack."
        if stage == "answer":
            return "The ferry has sailed since 1911, and zebras quack."
        return "Supported." if stage == "check" else "Since 1911, forty minutes."

    checked, service = await played(knowledge_base_qa, model)
    ferry, zebras = checked.claims
    assert (ferry.verdict, zebras.verdict, zebras.passages) == ("supported", "unclear", ())
    assert "since 1911" in ferry.passages[0]
    assert len(service.prompts("check")) == 1, "nothing is asked where there is no passage"
    assert "forty minutes" in service.prompts("revise")[0]


async def test_another_knowledge_base() -> None:
    known = Passages(["Zebras bark at night.", "Snow is cold."])
    checked, _ = await played(knowledge_base_qa, lambda stage, prompt: "Zebras bark. contradicted", "Zebras?", known)
    assert checked.claims[0].passages == ("Zebras bark at night.",)


# ---- loops


async def test_a_plan_is_carried_out_step_by_step() -> None:
    outcomes = (f"Outcome {number}." for number in range(9))

    def model(stage: str, prompt: str) -> str:
        return {"plan": "Step 1: Look\nStep 2: Leap", "answer": "Landed."}.get(stage) or next(outcomes)

    executed, service = await played(plan_and_execute, model, "Cross the brook")
    assert [(step.text, step.outcome) for step in executed.steps] == [("Look", "Outcome 0."), ("Leap", "Outcome 1.")]
    assert executed.answer == "Landed."
    assert not executed.replanned
    assert "Outcome 0." in service.prompts("step")[1]
    assert "Outcome 1." in service.prompts("answer")[0]


async def test_a_step_that_cannot_be_done_changes_the_plan_once() -> None:
    script = {"plan": "one\ntwo\nthree\nfour\nfive", "step": "Cannot: no bridge.", "answer": "Gave up."}
    executed, service = await played(plan_and_execute, lambda stage, prompt: script[stage])
    assert executed.replanned
    assert len(service.prompts("plan")) == 2
    assert "no bridge" in service.prompts("plan")[1]
    assert len(executed.steps) == 1 + plan_and_execute.MOST_STEPS


async def test_code_is_repaired_until_its_tests_pass() -> None:
    repairs = iter(["I cannot.", f"Here you are:\n```python\n{AVERAGE}\n```\nIt sums first."])
    checked, service = await played(
        code_checking, lambda stage, prompt: "It averages." if stage == "explain" else next(repairs)
    )
    assert (checked.passes, checked.repairs, checked.code) == (True, 2, AVERAGE)
    assert "AssertionError: 1.0" in service.prompts("repair")[0]
    assert "It averages." in service.prompts("repair")[0]


async def test_code_that_no_repair_mends_stays_as_it_came() -> None:
    checked, _ = await played(code_checking, lambda stage, prompt: "import os; os._exit(0)")
    assert (checked.passes, checked.repairs) == (False, code_checking.MOST_REPAIRS)
    assert checked.code in code_checking.SAMPLE


async def test_right_code_needs_no_repair() -> None:
    text = f"{AVERAGE}\n\n# tests: of the mean\nassert average([1, 3]) == 2"
    checked, service = await played(code_checking, lambda stage, prompt: "It averages.", text)
    assert (checked.passes, checked.repairs) == (True, 0)
    assert service.prompts("repair") == []


@pytest.mark.parametrize("text", ["print(1)", "# tests\nassert True", "x = 1\n# tests\n", "x = 1  # tests\nassert x"])
async def test_code_without_tests_is_refused(text: str) -> None:
    service = ScriptedService(lambda stage, prompt: "x")
    async with service.client() as client:
        with pytest.raises(InputError, match="parted by a line"):
            await code_checking.run(client, text)
    assert not service.types


async def test_wrong_equations_are_explained_and_the_model_is_not_believed() -> None:
    answers = {"read": "7 * 7 = 49\n25 - 8 = 12\n1 + 1 = 3", "explain": "It is 36 - 20 = 17.", "revise": "Right now."}
    checked, service = await played(equation_verification, lambda stage, prompt: answers[stage])
    verdicts = {equation.text: equation.verdict for equation in checked.equations}
    assert verdicts["36 - 20 = 17"] == verdicts["25 - 8 = 12"] == "wrong"
    assert verdicts["3 × 12 = 36"] == "holds"
    assert not {"7 * 7 = 49", "1 + 1 = 3"} & set(verdicts), "the text does not have their numbers"
    assert "36 - 20 = 17 is wrong: it comes to 16." in checked.answer
    assert checked.revised == "Right now."
    assert len(service.prompts("explain")) == 2


async def test_a_text_whose_equations_hold_is_left_alone() -> None:
    checked, service = await played(equation_verification, lambda stage, prompt: "no idea", "So 2 + 2 = 4 and 1/0 = 5.")
    assert [equation.verdict for equation in checked.equations] == ["holds", "unclear"]
    assert checked.revised == "So 2 + 2 = 4 and 1/0 = 5."
    assert [stage for stage, _ in service.asked] == ["read"]


async def test_a_household_task_is_done_by_a_model_that_reads() -> None:
    rooms = cycle(("kitchen", "bathroom", "study", "bedroom"))

    def model(stage: str, prompt: str) -> str:
        thing, target, room = re.findall(r"Put the (\w+) into the (\w+) of the (\w+)\.", prompt)[-1]
        possible = prompt.rpartition("Actions: ")[2].strip().split(", ")
        wishes = [f"put {thing} {target}", f"take {thing}"]
        if f"You hold the {thing}" in prompt or f"You take the {thing}" in prompt:
            wishes += [f"go {room}", f"open {target}"]
        wishes += [action for action in possible if action.startswith("open")]
        return next((wish for wish in wishes if wish in possible), f"I go {next(rooms)}, I think.")

    attempt, service = await played(household_task, model)
    assert attempt.done, attempt.steps
    assert attempt.goal in attempt.answer
    assert len(service.asked) == len(attempt.steps) <= household_task.MOST_STEPS
    assert [call.after for call in attempt.calls[1:]] == [(call.name,) for call in attempt.calls[:-1]]


async def test_a_household_is_named_by_a_number() -> None:
    service = ScriptedService(lambda stage, prompt: "look")
    async with service.client() as client:
        with pytest.raises(InputError, match="whole number"):
            await household_task.run(client, "the white one")
    assert not service.types


# ---- leaving


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("silent", [("/completions", "/events"), ("/applications",)], ids=["running", "beginning"])
async def test_an_agent_that_is_cancelled_cancels_its_application(name: str, silent: tuple[str, ...]) -> None:
    service = ScriptedService(lambda stage, prompt: "true")
    asked = asyncio.Event()
    answer = service.handle_async_request

    async def never(request: Any) -> Any:
        if request.url.path.endswith(silent):
            asked.set()
            await asyncio.Event().wait()
        return await answer(request)

    service.handle_async_request = never  # type: ignore[method-assign]
    async with service.client() as client:
        running = asyncio.create_task(import_module(f"serve_app.agents.{name}").run(client))
        await asyncio.wait_for(asked.wait(), 20)
        service.endings.clear()  # the scripted service runs a whole application when it comes
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert list(service.endings.values()) == ["cancelled"]
