"""What a running service shows: metrics, structured log lines, and an event log that replays to what happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest
import ray

from scheduler.events import CallStarted
from tests.ray_service import SLOTS, Service, completion, document_call, occupied

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

METRICS_WITHIN_S = 30.0  # Ray collects them from time to time
Metrics = dict[str, float]


async def some_traffic(service: Service, name: str) -> None:
    """Three applications of three calls, and six calls of an open one."""
    calls = [document_call("a", 10), document_call("b", 20), document_call("c", 5, "{{a}}", after=["a"])]
    async with service.async_http() as client:
        posts = [
            client.post("/v1/applications", json={"application_id": f"{name}-{i}", "calls": calls}) for i in range(3)
        ]
        singles = [client.post("/v1/completions", json=completion(8, application_id=name)) for _ in range(6)]
        answers = await asyncio.gather(*posts, *singles)
        assert {answer.status_code for answer in answers} == {200, 201}
        for number in range(3):
            await client.get(f"/v1/applications/{name}-{number}/events")
    await service.until_idle()


async def metrics() -> Metrics:
    """Values of `ray_justitia_…` by name, summed over labels."""
    port = ray.nodes()[0]["MetricsExportPort"]
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    values: Metrics = {}
    for line in text.splitlines():
        if line.startswith("ray_justitia_"):
            name, value = line.split("{")[0], float(line.rpartition(" ")[2])
            values[name] = values.get(name, 0.0) + value
    return values


async def until_metrics(question: Callable[[Metrics], bool]) -> Metrics:
    deadline_s = time.monotonic() + METRICS_WITHIN_S
    while True:
        values = await metrics()
        if values and question(values):
            return values
        assert time.monotonic() < deadline_s, values
        await asyncio.sleep(0.5)


async def test_metrics_show_the_queue_and_how_applications_fared(service: Service) -> None:
    """Ray's agent exports them without a dashboard, on the node's `MetricsExportPort`."""
    await some_traffic(service, "measured")
    async with service.async_http() as client, occupied(service, rounds=6):
        calls = [asyncio.create_task(client.post("/v1/completions", json=completion(2))) for _ in range(5)]
        await until_metrics(lambda seen: seen.get("ray_justitia_kv_held_tokens", 0) > 0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    names = ("waiting_calls", "running_calls", "kv_held_tokens")
    seen = await until_metrics(lambda seen: not any(seen[f"ray_justitia_{name}"] for name in names))
    grants = [len(service.recording(epoch).grants) for epoch in service.epochs()]
    seen = await until_metrics(lambda seen: seen["ray_justitia_grants_total"] >= grants[-1])
    assert seen["ray_justitia_grants_total"] <= sum(grants)  # what a killed scheduler had not exported is lost
    assert seen["ray_justitia_kv_pool_tokens"] == 2 * 1024 * 16
    assert seen["ray_justitia_virtual_time"] > 0
    assert seen["ray_justitia_finish_lag_seconds_count"] >= 3


async def test_log_lines_name_application_and_call(service: Service) -> None:
    await some_traffic(service, "logged")
    names = {f"logged-{i}" for i in range(3)}
    for deployment, event in (
        ("Scheduler", "call_granted"),
        ("Scheduler", "call_ended"),
        ("EngineReplica", "call_started"),
    ):
        records = [record for record in service.log_events(deployment, event) if record["application_id"] in names]
        assert {(record["application_id"], record["call_id"]) for record in records} == {
            (name, call) for name in names for call in "abc"
        }, event
        assert len(records) == 9, event
    ended = [r for r in service.log_events("Scheduler", "application_audited") if r["application_id"] in names]
    assert sorted(record["application_id"] for record in ended) == sorted(names)
    assert all(isinstance(record["lag_s"], float) for record in ended)


async def test_the_event_log_replays_to_what_happened(service: Service) -> None:
    await some_traffic(service, "recorded")
    epoch = (await service.overview())["epoch"]
    recording = service.recording(epoch)
    replayed = [(grant.lease_id, grant.application_id, grant.call_id, grant.replica_id) for grant in recording.grants]
    live = [
        (record["lease"], record["application_id"], record["call_id"], record["replica_id"])
        for record in service.log_events("Scheduler", "call_granted")
        if record["lease"].startswith(f"{epoch}-")
    ]
    assert replayed == live

    for replica_id in service.actors("EngineReplica"):
        granted = {lease for lease, *_, replica in replayed if replica == replica_id}
        told = [event.lease_id for event, _ in recording.steps if isinstance(event, CallStarted)]
        begun = [
            record["lease"]
            for record in service.logs("EngineReplica")[replica_id]
            if record.get("event") == "call_started" and record["lease"] in granted
        ]
        assert len(begun) == len(set(begun))
        assert begun == [lease for lease in told if lease in granted]

    async with service.async_http() as client:
        answer = await client.get("/v1/applications/recorded-0/events")
    followed = [line for line in answer.text.splitlines() if '"call_granted"' in line]
    mine = [grant for grant in recording.grants if grant.application_id == "recorded-0"]
    assert len(followed) == len(mine) == 3
    assert all(grant.replica_id in line for grant, line in zip(mine, followed, strict=True))
    assert recording.watched().wrong == []
    assert max_running(recording.steps) <= 2 * SLOTS


def max_running(steps: list[tuple[object, list[object]]]) -> int:
    """The most leases that were out at once, counted from grants and from what ends them."""
    from scheduler.actions import Grant
    from scheduler.events import CallFailed, CallFinished, CallLost, CallStopped

    out: set[str] = set()
    most = 0
    for event, actions in steps:
        if isinstance(event, CallFinished | CallStopped | CallFailed | CallLost):
            out.discard(event.lease_id)
        out |= {action.lease_id for action in actions if isinstance(action, Grant)}
        most = max(most, len(out))
    return most
