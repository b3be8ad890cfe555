"""From a client's document to its answers, with everything between but Ray."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from cluster.call_path import drain
from scheduler.actions import Action, Grant
from scheduler.event_log import LogHeader, event_from_json, replay
from scheduler.lifecycle import CallState
from scheduler.types import CallKey
from serve_app.documents import ApplicationStatus, parse_application
from serve_app.errors import ApiError
from serve_app.inference import ANONYMOUS_APPLICATION
from serve_app.inference_request import parse_inference
from serve_app.settings import IngressSettings
from tests.in_process import InProcessIngress, InProcessSystem, eventually, started

pytestmark = pytest.mark.timeout(180)


def completion(name: str, prompt: str = "once upon a time", **fields: Any) -> dict[str, Any]:
    return {"name": name, "prompt": prompt, "max_tokens": 20, "ignore_eos": True, **fields}


def document(application_id: str, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"application_id": application_id, "calls": list(calls), **fields}


async def submit(ingress: InProcessIngress, *arguments: Any, **fields: Any) -> ApplicationStatus:
    return await ingress.runner.submit(parse_application(document(*arguments, **fields)))


async def ended(ingress: InProcessIngress, application_id: str, within_s: float = 60.0) -> ApplicationStatus:
    run = ingress.runner.get(application_id)
    await eventually(lambda: run.settled, within_s)
    return run.status()


def results(status: ApplicationStatus) -> dict[str, list[str]]:
    """Texts of the finished calls by call name."""
    return {call.name: call.outputs for call in status.calls or [] if call.outputs is not None}


async def infer(ingress: InProcessIngress, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    counted = await ingress.inference.count(parse_inference("/v1/completions", {}, json.dumps(body).encode()))
    _, messages = ingress.inference.answer_open(counted, ((b"content-type", b"application/json"),))
    status, answer = await drain(messages)
    return status, json.loads(answer)


def log_lines(system: InProcessSystem) -> list[str]:
    assert system.settings.state_dir is not None
    (log,) = system.settings.state_dir.glob(f"events-{system.service.epoch}.jsonl")
    return log.read_text().splitlines()


async def test_forty_calls_of_eight_applications_are_granted_in_the_order_of_their_tags(tmp_path: Path) -> None:
    async with started(engine={"max_sequences": 3}, state_dir=tmp_path, event_log=True) as system:
        ingress = system.ingresses[0]
        live: list[Action] = []
        ingress.link.listen_to_all(live.append)
        documents = [
            document(f"app{number}", *(completion(f"c{index}", max_tokens=4 + 3 * number) for index in range(5)))
            for number in reversed(range(8))
        ]
        await asyncio.gather(*(ingress.runner.submit(parse_application(each)) for each in documents))
        statuses = [await ended(ingress, f"app{number}") for number in range(8)]
        assert [status.state for status in statuses] == ["finished"] * 8
        for number, status in enumerate(statuses):
            assert {name: len(texts[0].split()) for name, texts in results(status).items()} == {
                f"c{index}": 4 + 3 * number for index in range(5)
            }
        await system.clean()
        assert len(system.begun) == 40
        assert set(system.begun.values()) == {1}
        assert_grants_follow_tags(log_lines(system))
        replayed = [action for actions in replay(log_lines(system)) for action in actions]
        assert [a for a in replayed if isinstance(a, Grant)] == [a for a in live if isinstance(a, Grant)]


def assert_grants_follow_tags(lines: list[str]) -> None:
    core = LogHeader.from_json(lines[0]).create_core()
    granted = 0
    for line in lines[1:]:
        grants = [action for action in core.handle(*event_from_json(line)) if isinstance(action, Grant)]
        waiting = [
            application.finish_tag
            for application in core.applications.values()
            if any(call.state is CallState.READY for call in application.calls.values())
        ]
        tags = [core.applications[grant.application_id].finish_tag for grant in grants]
        assert tags == sorted(tags)
        assert not tags or not waiting or tags[-1] <= min(waiting)
        granted += len(grants)
    assert granted == 40


async def test_a_dag_puts_answers_into_later_prompts() -> None:
    async with started() as system:
        ingress = system.ingresses[0]
        await submit(
            ingress,
            "dag",
            completion("plan", n=2),
            completion("left", "L {{plan}}", after=["plan"]),
            {
                "name": "right",
                "messages": [{"role": "user", "content": "R {{plan}}"}],
                "max_tokens": 5,
                "after": ["plan"],
            },
            completion("join", "{{left}} + {{right}}", after=["left", "right"]),
        )
        status = await ended(ingress, "dag")
        assert status.state == "finished"
        assert status.calls_done == 4
        texts = results(status)
        assert len(texts["plan"]) == 2
        bodies = list(system.replicas.by_id["r0"].engine.simulated.last_bodies)
        joined = f"[1] {texts['plan'][0]}\n\n[2] {texts['plan'][1]}"
        assert bodies[1]["prompt"] == f"L {joined}" or bodies[2]["prompt"] == f"L {joined}"
        assert bodies[-1]["prompt"] == f"{texts['left'][0]} + {texts['right'][0]}"
        assert status.lag_s is not None
        events = [event["event"] async for event in ingress.runner.events("dag")]
        assert events[0] == "tag_set"
        assert events[-2:] == ["application_ended", "application_audited"]
        await system.clean()


async def test_an_application_that_shows_as_finished_shows_every_output() -> None:
    async with started(replicas=2) as system:
        ingress = system.ingresses[0]
        for round_ in range(40):
            await submit(ingress, f"app{round_}", *(completion(f"c{i}", max_tokens=1 + i) for i in range(3)))
            run = ingress.runner.get(f"app{round_}")
            while (status := run.status()).state != "finished":  # noqa: ASYNC110 - a client polls
                await asyncio.sleep(0)
            assert len(results(status)) == 3
        await system.clean()


async def test_cancelling_at_any_moment_leaves_nothing_behind() -> None:
    chance = random.Random(7)
    async with started(replicas=2, ingresses=2, engine={"max_sequences": 4}) as system:
        for round_ in range(100):
            ingress = chance.choice(system.ingresses)
            name = f"app{round_}"
            calls = [completion(f"c{index}", n=chance.choice([1, 4])) for index in range(chance.choice([1, 8]))]
            calls.append(completion("last", "{{c0}}", after=["c0"]))
            submitting = asyncio.create_task(submit(ingress, name, *calls))
            await asyncio.sleep(chance.choice([0, 0, 0.0005, 0.002, 0.005, 0.02]))
            if chance.random() < 0.5:
                submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
            if ingress.runner.holds(name):
                ingress.runner.cancel(name)
                status = await ended(ingress, name)
                assert status.state in ("cancelled", "finished")
                states = {call.state for call in status.calls or []}
                assert (status.state == "finished") == (states == {"finished"})
                assert all(call.outputs for call in status.calls or [] if call.state == "finished")
            await system.clean()
        assert max(system.begun.values()) == 1


async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind() -> None:
    """Before the grant, before the first byte, in the stream, at its end."""
    chance = random.Random(8)
    async with started(engine={"max_sequences": 1}) as system:
        ingress = system.ingresses[0]
        body = {"prompt": "p" * 40, "max_tokens": 12, "n": 1, "ignore_eos": True, "stream": True}
        for round_ in range(100):
            counted = await ingress.inference.count(parse_inference("/v1/completions", {}, json.dumps(body).encode()))
            readers = [asyncio.create_task(read(ingress, counted, chance.randrange(20))) for _ in range(2)]
            await asyncio.sleep(chance.choice([0, 0.0005, 0.002, 0.008]))
            for reader in readers:
                reader.cancel()
                await asyncio.sleep(0)
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            if round_ % 10 == 9:
                status, answer = await asyncio.wait_for(infer(ingress, {**body, "stream": False}), 10.0)
                assert status == 200
                assert answer["usage"]["completion_tokens"] == 12
                await system.clean()
        assert max(system.begun.values()) == 1


async def read(ingress: InProcessIngress, counted: Any, messages_read: int) -> None:
    _, messages = ingress.inference.answer_open(counted, ())
    try:
        for _ in range(messages_read):
            await anext(messages)
    finally:
        await messages.aclose()


async def test_a_fresh_scheduler_takes_over_twenty_running_applications(tmp_path: Path) -> None:
    engine = {"max_sequences": 6, "base_s": 0.002}
    async with started(replicas=2, ingresses=2, engine=engine, state_dir=tmp_path) as system:
        for number in range(20):
            calls = [completion(f"c{index}", max_tokens=10) for index in range(3)]
            calls.append(completion("last", "{{c0}} {{c1}}", after=["c0", "c1"]))
            await submit(system.ingresses[number % 2], f"app{number}", *calls)
        epochs = {system.service.epoch}
        for _ in range(3):
            await eventually(lambda: bool(system.core.leases))
            await asyncio.sleep(0.05)
            assert system.core.applications
            system.replace_scheduler()
            epochs.add(system.service.epoch)
        assert len(epochs) == 4
        for number in range(20):
            status = await ended(system.ingresses[number % 2], f"app{number}", 60)
            assert status.state == "finished", status
            assert len(results(status)) == 4
        assert len(system.begun) == 80
        assert set(system.begun.values()) == {1}
        await system.clean()


async def test_what_was_cancelled_stays_cancelled_under_a_fresh_scheduler() -> None:
    async with started(engine={"max_sequences": 1, "base_s": 0.001}) as system:
        ingress = system.ingresses[0]
        for number in range(6):
            await submit(ingress, f"app{number}", completion("c", max_tokens=60), completion("d", "{{c}}", after=["c"]))
        await eventually(lambda: bool(system.core.leases))
        system.wire.service = None  # the scheduler is away, so that the word of the cancellation is lost
        for number in range(6):
            ingress.runner.cancel(f"app{number}")
        await asyncio.sleep(0.02)
        system.replace_scheduler()
        for number in range(6):
            assert (await ended(ingress, f"app{number}")).state == "cancelled"
        await system.clean()


@pytest.mark.parametrize("killed_after_s", [0.0, 0.01, 0.03, 0.08])
async def test_a_replica_that_dies_costs_calls_at_most_time(killed_after_s: float) -> None:
    """Answers come whole, so a lost replica is before the first byte and the call runs elsewhere."""
    async with started(replicas=2, engine={"max_sequences": 4}, replica_timeout_s=0.5) as system:
        ingress = system.ingresses[0]
        for number in range(4):
            await submit(ingress, f"app{number}", *(completion(f"c{index}") for index in range(5)))
        await asyncio.sleep(killed_after_s)
        await system.replicas.by_id["r0"].kill()
        await system.add_replica("r2")
        for number in range(4):
            status = await ended(ingress, f"app{number}")
            assert status.state == "finished", status
            assert all(len(texts[0].split()) == 20 for texts in results(status).values())
        await eventually(lambda: "r0" not in system.core.replicas)
        await system.clean()


async def test_a_prompt_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    """With M = 784 tokens."""
    engine = {"usable_blocks": 49, "block_tokens": 16, "max_model_len": 784}
    async with started(engine=engine) as system:
        ingress = system.ingresses[0]
        with pytest.raises(ApiError, match="cannot fit") as refusal:
            await submit(ingress, "a", completion("c", "x" * 4 * 1002))
        assert (refusal.value.status, refusal.value.code) == (400, "cannot_fit")
        assert refusal.value.param == "calls[0].prompt"
        assert not ingress.runner.holds("a")
        with pytest.raises(ApiError, match="cannot fit") as refusal:
            await infer(ingress, {"prompt": "x" * 4 * 1002, "max_tokens": 5})
        assert (refusal.value.status, refusal.value.param) == (400, "prompt")
        await submit(ingress, "clipped", completion("c", "x" * 4 * 700, max_tokens=400))
        for name in ("b", "c"):
            await submit(ingress, name, completion("c", "x" * 4 * 50))
        assert [(await ended(ingress, name)).state for name in ("b", "c", "clipped")] == ["finished"] * 3
        assert system.service._register.application_owners == {}
        await system.clean()


async def test_an_engine_that_refuses_a_call_fails_its_application_with_the_reason() -> None:
    async with started(engine={"max_model_len": 500}) as system:
        ingress = system.ingresses[0]
        await submit(ingress, "bad", completion("c"), completion("d", "{{c}}", after=["c"], max_tokens=501))
        status = await ended(ingress, "bad")
        assert status.state == "failed"
        assert status.error is not None
        states = {call.name: call.state for call in status.calls or []}
        assert states == {"c": "finished", "d": "failed"}
        await submit(ingress, "good", completion("c"))
        assert (await ended(ingress, "good")).state == "finished"
        await system.clean()


async def test_empty_prompts_are_refused_one_by_one() -> None:
    """The part that lies behind the parser: an answer that leaves a later prompt empty."""
    async with started() as system:
        ingress = system.ingresses[0]
        await submit(
            ingress,
            "e",
            completion("a", stop=["b", "d", "e", "f", "k", "l", "m", "n", "p", "r", "s", "t"]),
            completion("b", "{{a}}", after=["a"]),
            completion("other"),
        )
        status = await ended(ingress, "e")
        assert status.state == "failed"
        assert "empty prompt" in (status.error or "")
        assert (await infer(ingress, {"prompt": "hello", "max_tokens": 3}))[0] == 200
        await system.clean()


async def test_calls_given_up_while_they_wait_leave_the_queue(tmp_path: Path) -> None:
    """300 calls expire behind a long one; the next in line is next."""
    async with started(engine={"max_sequences": 1, "base_s": 0.002}) as system:
        ingress = system.ingresses[0]
        long = asyncio.create_task(infer(ingress, {"prompt": "long", "max_tokens": 150, "ignore_eos": True}))
        await eventually(lambda: len(system.core.leases) == 1)
        ghosts = [asyncio.create_task(infer(ingress, {"prompt": "g", "max_tokens": 5})) for _ in range(300)]
        await eventually(lambda: system.core.ready_calls == 300)
        for ghost in ghosts:
            ghost.cancel()
        await asyncio.gather(*ghosts, return_exceptions=True)
        await eventually(lambda: system.core.ready_calls == 0)
        assert not long.done()
        assert len(ingress.link._expected) == 1
        assert (await infer(ingress, {"prompt": "next", "max_tokens": 5}))[0] == 200
        assert (await long)[0] == 200
        assert len(system.begun) == 2
        await system.clean()


async def test_an_early_or_late_leave_has_one_outcome_and_a_missing_engine_another() -> None:
    """Busy and no engine are told apart, and nothing ends in an unforeseen error."""
    async with started(replicas=0, engine_wait_s=0.2, max_calls=2) as system:
        ingress = system.ingresses[0]
        waiting = [asyncio.create_task(infer(ingress, {"prompt": "w", "max_tokens": 5})) for _ in range(2)]
        await eventually(lambda: system.core.ready_calls == 2)
        with pytest.raises(ApiError) as busy:
            await infer(ingress, {"prompt": "w", "max_tokens": 5})
        assert (busy.value.status, busy.value.code) == (429, "busy")
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [(o.status, o.code) for o in outcomes if isinstance(o, ApiError)] == [(503, "no_engine")] * 2
        await system.clean()


async def test_two_ingresses_share_one_open_application_across_a_restart() -> None:
    async with started(ingresses=2, engine={"max_sequences": 2, "base_s": 0.002}) as system:
        body = {"prompt": "p", "max_tokens": 15, "ignore_eos": True, "application_id": "shared"}
        calls = [asyncio.create_task(infer(system.ingresses[n % 2], body)) for n in range(20)]
        for _ in range(2):
            await asyncio.sleep(0.1)
            system.replace_scheduler()
        answers = await asyncio.gather(*calls)
        assert [status for status, _ in answers] == [200] * 20
        assert len(system.begun) == 20
        assert set(system.begun.values()) == {1}
        await system.clean()


async def test_ids_are_taken_once_and_free_after_a_refusal() -> None:
    """Two of one id: the second is refused and the first is untouched."""
    async with started(ingresses=2) as system:
        first, second = system.ingresses
        await submit(first, "x", completion("c", max_tokens=60))
        for ingress in (first, second):
            with pytest.raises(ApiError) as refused:
                await submit(ingress, "x", completion("c"))
            assert (refused.value.status, refused.value.code) == (409, "duplicate_id")
        assert (await ended(first, "x")).state == "finished"
        assert not second.runner.holds("x")
        await submit(second, "x", completion("c"))
        assert (await ended(second, "x")).state == "finished"
        await system.clean()
        assert system.begun[CallKey("x", "c")] == 2


async def test_an_application_cancelled_before_it_was_taken_begins_no_call() -> None:
    """Its acceptance and its end come in one batch of mail."""
    async with started() as system:
        ingress = system.ingresses[0]
        service, system.wire.service = system.wire.service, None
        submitting = asyncio.create_task(submit(ingress, "x", completion("c")))
        await eventually(lambda: "x" in ingress.link.held.applications)
        ingress.runner.cancel("x")
        system.wire.service = service
        assert (await submitting).state in ("queued", "cancelled")
        assert (await ended(ingress, "x")).state == "cancelled"
        assert ingress.runner.get("x").tasks == set()
        assert not system.begun
        await system.clean()


async def test_an_id_whose_client_left_is_not_free_before_it_has_ended() -> None:
    """The end of the first must not be taken for that of the second."""
    async with started() as system:
        ingress = system.ingresses[0]
        service, system.wire.service = system.wire.service, None
        submitting = asyncio.create_task(submit(ingress, "x", completion("c")))
        await eventually(lambda: "x" in ingress.link.held.applications)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        with pytest.raises(ApiError, match="exists already"):
            await submit(ingress, "x", completion("c"))
        system.wire.service = service
        assert (await ended(ingress, "x")).state == "cancelled"
        await system.clean()


async def test_a_foreign_call_under_a_dag_s_id_is_refused_and_harms_it_not() -> None:
    async with started(engine={"base_s": 0.002}) as system:
        ingress = system.ingresses[0]
        await submit(ingress, "dag", completion("c", max_tokens=30))
        with pytest.raises(ApiError) as refused:
            await infer(ingress, {"prompt": "p", "max_tokens": 5, "application_id": "dag"})
        assert (refused.value.status, refused.value.code) == (409, "application_closed")
        assert (await ended(ingress, "dag")).state == "finished"
        assert (await infer(ingress, {"prompt": "p", "max_tokens": 5}))[0] == 200
        await system.clean()


async def test_the_calls_of_an_accepted_dag_are_not_refused_for_being_too_many() -> None:
    async with started(ingresses=0, engine={"max_sequences": 2, "base_s": 0.002}) as system:
        ingress = system.add_ingress("small", IngressSettings(max_calls_in_flight=5))
        await system.ready()
        with pytest.raises(ApiError) as too_large:
            await submit(ingress, "large", *(completion(f"c{index}") for index in range(6)))
        assert (too_large.value.status, too_large.value.param) == (400, "calls")
        await submit(ingress, "first", *(completion(f"c{index}", max_tokens=30) for index in range(4)))
        with pytest.raises(ApiError) as busy:
            await submit(ingress, "second", completion("c"), completion("d"))
        assert (busy.value.status, busy.value.code) == (429, "busy")
        assert not ingress.runner.holds("second")
        await submit(ingress, "third", completion("c", max_tokens=30))
        await eventually(lambda: ingress.inference._in_flight == 5)
        with pytest.raises(ApiError) as open_busy:
            await infer(ingress, {"prompt": "p", "max_tokens": 5})
        assert (open_busy.value.status, open_busy.value.code) == (429, "busy")
        assert {(await ended(ingress, name)).state for name in ("first", "third")} == {"finished"}
        assert ingress.runner.get("first").unfinished_calls == 0
        await submit(ingress, "second", *(completion(f"c{index}") for index in range(5)))
        assert (await ended(ingress, "second")).state == "finished"
        assert "large" not in system.service._register.application_owners
        await system.clean()


async def test_a_cancelled_dag_leaves_its_room_to_others() -> None:
    async with started(ingresses=0, engine={"max_sequences": 1, "base_s": 0.002}) as system:
        ingress = system.add_ingress("small", IngressSettings(max_calls_in_flight=3))
        await system.ready()
        await submit(ingress, "a", completion("c", max_tokens=200), completion("d", "{{c}}", after=["c"]))
        ingress.runner.cancel("a")
        await ended(ingress, "a")
        await submit(ingress, "b", *(completion(f"c{index}") for index in range(3)))
        assert (await ended(ingress, "b")).state == "finished"
        await system.clean()


async def test_the_scheduler_hears_no_text_of_prompts_or_answers(tmp_path: Path) -> None:
    async with started(engine={"max_model_len": 500}, state_dir=tmp_path, event_log=True) as system:
        ingress = system.ingresses[0]
        refusal = ApiError(400, "the engine says: 'top secret' is no prompt")
        await submit(ingress, "x", completion("c"), completion("d", "{{c}}", after=["c"]))
        run = ingress.runner.get("x")
        ingress.runner._fail(run, "d", refusal)
        status = await ended(ingress, "x")
        assert (status.state, status.error) == ("failed", refusal.message)
        assert {call.name: call.error for call in status.calls or []}["d"] == refusal.message
        await system.clean()
        log = "\n".join(log_lines(system))
        assert "call d failed: invalid" in log
        assert "secret" not in log


async def test_requests_that_name_no_application_share_one_that_nobody_can_name() -> None:
    async with started() as system:
        ingress = system.ingresses[0]
        waiting = asyncio.create_task(infer(ingress, {"prompt": "p", "max_tokens": 40, "ignore_eos": True}))
        await eventually(lambda: list(system.core.applications) == [ANONYMOUS_APPLICATION])
        for body in ({"application_id": ANONYMOUS_APPLICATION}, {"metadata": {"application_id": "~anonymous"}}):
            with pytest.raises(ApiError) as refused:
                await infer(ingress, {"prompt": "p", **body})
            assert refused.value.status == 400
        with pytest.raises(ApiError):
            parse_application(document(ANONYMOUS_APPLICATION, completion("c")))
        assert (await waiting)[0] == 200
        await system.clean()
