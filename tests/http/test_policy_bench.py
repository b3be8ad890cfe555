"""`justitia bench policies`: its clients on the running service, and the whole command on the simulated engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.sim.workload import TraceApplication, TraceCall, write_application
from serve_app.policy_bench.deployment import SIMULATED_CHARS_PER_TOKEN
from serve_app.policy_bench.replay import replay
from serve_app.policy_bench.traffic import LengthRule
from tests.ray_service import MAX_MODEL_LEN, MODEL, Service

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 270.0


def traced(name: str, arrival_s: float, output_tokens: int) -> TraceApplication:
    parts = tuple(
        TraceCall(name=f"part{number}", prompt_tokens=30 + number, output_tokens=output_tokens) for number in range(3)
    )
    whole = TraceCall(name="whole", prompt_tokens=50, output_tokens=6, after=tuple(part.name for part in parts))
    return TraceApplication(
        application_id=name, application_type="bench", arrival_s=arrival_s, prompt="Summarize.", calls=(*parts, whole)
    )


@pytest.mark.asyncio(loop_scope="session")
async def test_clients_follow_applications_to_their_ends(service: Service) -> None:
    rule = LengthRule(model=MODEL, max_model_len=MAX_MODEL_LEN, chars_per_token=SIMULATED_CHARS_PER_TOKEN)
    traces = [traced(f"bench-clients-{number}", 0.1 * number, 4 + number) for number in range(6)]
    ended: list[str] = []
    outcomes = await replay(service.url, traces, rule, 60.0, ended.append)
    assert [one.error for one in outcomes] == [None] * 6
    assert sorted(ended) == [one.application_id for one in traces]
    for trace, outcome in zip(traces, outcomes, strict=True):
        assert outcome.sent_s is not None
        assert outcome.finish_s is not None
        assert trace.arrival_s <= outcome.sent_s < outcome.finish_s
        assert outcome.gps_finish_s is not None
        assert outcome.bound_s is not None
    await service.until_clean()


def bench(workload: Path, out: Path, policies: str) -> list[dict[str, Any]]:
    arguments = ("bench", "policies", "--simulated", "--json", "--apps", "6", "--policies", policies)
    run = subprocess.run(
        [sys.executable, "-m", "serve_app.cli.main", *arguments, "--workload", str(workload), "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    documents: list[dict[str, Any]] = json.loads(run.stdout)
    return documents


def test_the_command_compares_policies_and_runs_nothing_twice(tmp_path: Path) -> None:
    workload, out = tmp_path / "trace.jsonl", tmp_path / "out"
    applications = [traced(f"a{number:02}", 0.5 * number, 60 + 20 * (number % 5)) for number in range(12)]
    workload.write_text("".join(write_application(one) + "\n" for one in applications))
    documents = bench(workload, out, "vtc,justitia")
    assert [one["policy"] for one in documents] == ["vtc", "justitia"]
    for document in documents:
        assert {one["application_id"] for one in document["applications"]} == {f"a{number:02}" for number in range(6)}
        assert all(one["completion_s"] > 0 and one["lag_s"] is not None for one in document["applications"])
        assert document["calls"] == 24
        assert document["forecast_mean_completion_s"] > 0
        assert (document["errors"], document["left_out"]) == ({}, 0)
        assert document["calibrated_on_measured"] is False, "six are measured, and six others calibrate"
    written = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert bench(workload, out, "vtc,justitia") == documents
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == written
