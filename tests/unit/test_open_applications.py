"""Open applications that were begun with a statement: status at once, one door for all ingresses, their events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from cluster.scheduler_link import SchedulerLink
from scheduler.actions import PublishTag, Refusal, Reject
from scheduler.events import ApplicationArrived, ApplicationCancelled
from scheduler.types import ApplicationSpec, CallKey
from serve_app.documents import ApplicationStatus
from serve_app.errors import ApiError
from serve_app.open_applications import OpenApplication, OpenApplications
from serve_app.tenants import DEFAULT_TENANT
from tests.in_process import eventually
from tests.unit.test_ingress import CALL, two_ingresses

pytestmark = pytest.mark.timeout(60)

STATED = {"open": True, "application_id": "stated", "application_type": "kind", "weight": 3.0, "deadline_s": 50.0}


async def complete(ingress: Any, **fields: Any) -> None:
    await ingress.infer("/v1/completions", {"prompt": "p", "max_tokens": 3, **fields})


async def events_of(ingress: Any, application_id: str) -> list[dict[str, Any]]:
    return [event async for event in ingress.application_events(application_id)]


async def test_what_was_stated_is_known_everywhere_before_the_first_call() -> None:
    async with two_ingresses() as (system, first, second):
        begun = await first.submit_application(STATED)
        for ingress in (first, second):
            status = await ingress.get_application("stated")
            assert {**status, "created_s": None} == {**begun, "created_s": None}
        assert (begun["state"], begun["application_type"], begun["weight"]) == ("queued", "kind", 3.0)
        assert system.core.applications["stated"].spec.deadline_s == 50.0
        await second.close_application("stated")
        await eventually(lambda: not system.core.applications)


async def test_its_events_hold_calls_from_every_ingress() -> None:
    async with two_ingresses() as (_, first, second):
        await first.submit_application(STATED)
        await complete(first, application_id="stated")
        await complete(second, application_id="stated")
        await second.close_application("stated")
        events = await events_of(first, "stated")
        assert await events_of(second, "stated") == events
        names = [event["event"] for event in events]
        assert names[0] == "tag_set"
        assert names.count("call_ended") == 2
        assert names[-2:] == ["application_ended", "application_audited"]
        assert (await first.get_application("stated"))["calls_total"] == 2


async def test_it_is_listed_and_shows_how_it_fares() -> None:
    async with two_ingresses() as (_, first, second):
        await first.submit_application(STATED)

        async def listed() -> dict[str, Any]:
            (status,) = await second.list_applications()
            return dict(status)

        assert {**await listed(), "calls": None}.keys() == set(ApplicationStatus.model_fields)
        assert ((await listed())["state"], (await listed())["weight"]) == ("queued", 3.0)
        await complete(second, application_id="stated")
        await eventually(lambda: first._open.summaries(DEFAULT_TENANT)[0].calls_done == 1)
        assert (await listed())["state"] == "running"
        await first.close_application("stated")
        await events_of(first, "stated")
        ended = await listed()
        assert (ended["state"], ended["calls_total"], ended["calls_done"]) == ("finished", 1, 1)
        assert ended["completion_s"] > 0
        assert await second.list_applications("acme") == []


async def test_its_type_holds_for_calls_that_name_none() -> None:
    """Lengths are learnt for it: 40 tokens were made, where 128 are expected of what is not known."""
    async with two_ingresses() as (_, first, _second):
        await first.submit_application(STATED)
        await complete(first, application_id="stated", max_tokens=40, ignore_eos=True)
        lengths = first._inference.predictions
        assert lengths.output_tokens(CallKey("a", "b"), "kind", "completion", 1_000) < 128
        await first.close_application("stated")


async def test_an_id_is_given_where_none_is_named() -> None:
    async with two_ingresses() as (_, first, _second):
        ids = {(await first.submit_application({"open": True}))["application_id"] for _ in range(2)}
        assert len(ids) == 2
        for application_id in ids:
            await first.cancel_application(application_id)


async def test_one_id_is_taken_once_wherever_it_is_asked_for() -> None:
    async with two_ingresses() as (system, first, second):
        await first.submit_application(STATED)
        for ingress in (first, second):
            for document in (STATED, {"application_id": "stated", "calls": [CALL]}):
                with pytest.raises(ApiError) as refused:
                    await ingress.submit_application(document)
                assert (refused.value.status, refused.value.param) == (409, "application_id")
        await complete(first, application_id="by-call")
        with pytest.raises(ApiError) as refused:
            await first.submit_application({"open": True, "application_id": "by-call"})
        assert (refused.value.status, refused.value.param) == (409, "application_id")
        assert not first._open.holds("by-call")
        assert set(system.core.applications) == {"stated", "by-call"}
        for application_id in ("stated", "by-call"):
            await first.cancel_application(application_id)


@pytest.mark.parametrize("number", [0, 1])
async def test_it_is_cancelled_at_any_ingress(number: int) -> None:
    async with two_ingresses() as (system, *ingresses):
        await ingresses[0].submit_application(STATED)
        await ingresses[number].cancel_application("stated")
        await eventually(lambda: not system.core.applications)
        assert (await ingresses[1].get_application("stated"))["state"] == "cancelled"
        assert [event["event"] for event in await events_of(ingresses[0], "stated")][-2:] == [
            "application_ended",
            "application_audited",
        ]


async def test_a_later_scheduler_hears_what_was_stated() -> None:
    async with two_ingresses() as (system, first, _):
        await first.submit_application(STATED)
        await complete(first, application_id="stated")
        system.replace_scheduler()
        await eventually(lambda: "stated" in system.core.applications)
        spec = system.core.applications["stated"].spec
        assert (spec.weight, spec.deadline_s, spec.open) == (3.0, 50.0, True)
        await complete(first, application_id="stated")
        await first.close_application("stated")
        await eventually(lambda: not system.core.applications)


async def test_a_sub_agent_is_a_part_of_the_application_that_began_it() -> None:
    async with two_ingresses() as (system, first, second):
        await first.submit_application(STATED)
        part = {"open": True, "application_id": "part", "parent_application_id": "stated", "weight": 9.0}
        assert (await second.submit_application(part))["application_id"] == "stated"
        await complete(first, application_id="part")
        await complete(second, application_id="deeper", parent_application_id="part")
        await complete(first, application_id="deeper")
        assert {name: app.call_count for name, app in system.core.applications.items()} == {"stated": 3}
        assert system.core.applications["stated"].spec.weight == 3.0
        with pytest.raises(ApiError):
            await first.cancel_application("part")
        await first.close_application("stated")


async def test_a_parent_that_nobody_knows_is_the_name_of_a_root() -> None:
    async with two_ingresses() as (system, first, _):
        begun = await first.submit_application({"open": True, "parent_application_id": "later", "weight": 2.0})
        assert (begun["application_id"], begun["weight"]) == ("later", 2.0)
        await complete(first, parent_application_id="unheard-of")
        assert set(system.core.applications) == {"later", "unheard-of"}
        for application_id in ("later", "unheard-of"):
            await first.cancel_application(application_id)


async def test_a_whole_application_is_no_place_for_more_calls() -> None:
    async with two_ingresses() as (_, first, _second):
        await first.submit_application({"application_id": "whole", "calls": [CALL]})
        with pytest.raises(ApiError) as refused:
            await complete(first, parent_application_id="whole")
        assert refused.value.code == "application_closed"
        await eventually(lambda: first._runner.get("whole").settled)


# ---- without a scheduler


class Link(SchedulerLink):
    """Only remembers what it is told."""

    def __init__(self) -> None:
        super().__init__("i", None, frozenset)  # type: ignore[arg-type]


def spec(application_id: str) -> ApplicationSpec:
    return ApplicationSpec(application_id=application_id, open=True)


def tag(application_id: str) -> PublishTag:
    return PublishTag(application_id, 0.0, 1.0, 1.0, "arrival")


async def test_of_those_that_settled_only_so_many_are_kept() -> None:
    link = Link()
    applications = OpenApplications(link, max_kept=2)
    for name in "abcd":
        beginning = asyncio.create_task(applications.begin(spec(name)))
        await asyncio.sleep(0)
        link._listeners[name](tag(name))
        await beginning
        link._listeners[name](Reject(name, None, Refusal.BUSY, "a later scheduler has no room"))
    assert [applications.holds(name) for name in "abcd"] == [False, False, True, True]
    assert link._listeners == {}


async def test_a_refusal_is_the_clients() -> None:
    link = Link()
    applications = OpenApplications(link, max_kept=2)
    beginning = asyncio.create_task(applications.begin(spec("acme/a")))
    await asyncio.sleep(0)
    link._listeners["acme/a"](Reject("acme/a", None, Refusal.BUSY, "no room for acme/a"))
    with pytest.raises(ApiError, match=r"no room for a$"):
        await beginning
    assert not applications.holds("acme/a")


async def begun_and_left() -> tuple[Link, OpenApplications]:
    """The client of `a` has left before the scheduler has answered."""
    link = Link()
    applications = OpenApplications(link, max_kept=2)
    beginning = asyncio.create_task(applications.begin(spec("a")))
    await asyncio.sleep(0)
    beginning.cancel()
    with suppress(asyncio.CancelledError):
        await beginning
    return link, applications


async def test_one_whose_client_leaves_while_it_begins_is_cancelled() -> None:
    link, _ = await begun_and_left()
    assert [type(event) for event in link._outbox] == [ApplicationArrived]
    link._listeners["a"](tag("a"))
    await asyncio.sleep(0)
    assert [type(event) for event in link._outbox] == [ApplicationArrived, ApplicationCancelled]


async def test_one_whose_client_leaves_never_cancels_its_namesake() -> None:
    link, applications = await begun_and_left()
    link._listeners["a"](Reject("a", None, Refusal.DUPLICATE_ID, "a runs"))
    await asyncio.sleep(0)
    assert [type(event) for event in link._outbox] == [ApplicationArrived]
    assert not applications.holds("a")


async def test_one_that_ran_for_long_is_kept_after_it_has_settled() -> None:
    link = Link()
    applications = OpenApplications(link, max_kept=2)
    for name in ("long", "b", "c", "d"):
        beginning = asyncio.create_task(applications.begin(spec(name)))
        await asyncio.sleep(0)
        link._listeners[name](tag(name))
        await beginning
    for name in ("b", "c", "long"):
        link._listeners[name](Reject(name, None, Refusal.BUSY, "a later scheduler has no room"))
    assert [applications.holds(name) for name in ("long", "b", "c", "d")] == [True, False, True, True]
    assert [status.application_id for status in applications.summaries(DEFAULT_TENANT)] == ["long", "c", "d"]


async def test_an_audit_that_is_lost_ends_the_events() -> None:
    one = OpenApplication(spec("a"))
    one.lose_audit()
    assert not one.events.closed
