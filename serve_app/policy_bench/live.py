"""One run on the live service: brought up for it alone, warmed, given the applications, and asked what it did."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from scheduler.sim.calibration import CalibrationError, Iteration, read_iterations
from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.policy_bench.deployment import Config, bench_config
from serve_app.policy_bench.pace import WINDOW_S
from serve_app.policy_bench.replay import UNREADABLE, Ended, Outcome, replay
from serve_app.policy_bench.results import ResultsError
from serve_app.policy_bench.stage import Stage
from serve_app.policy_bench.traffic import LengthRule

WARM_UP = TraceApplication(
    application_id="warm-up",
    application_type="warm-up",
    arrival_s=0.0,
    calls=(TraceCall(name="only", prompt_tokens=700, output_tokens=128),),
)
"""Its length is what is predicted of any call while nothing has ended."""

TIMEOUT_S = 120.0
REPORT_WAIT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What all runs have in common. `limit_s` bounds each of them."""

    config: Config
    engine: dict[str, Any]
    rule: LengthRule
    predictor_dir: Path | None
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What clients saw, the engine's counters over it, and its iterations.

    `log` has those that the engine wrote down, in their order: fewer than `iterations` where a second had too many.
    `kv_used_tokens` are the tokens in use when each of these was over, at least 0. `marks` are the lengths of the log
    at the ends of the windows of WINDOW_S seconds, as `paces_of` takes them.
    """

    outcomes: list[Outcome]
    iterations: int
    preemptions: int
    log: list[Iteration]
    kv_used_tokens: list[int]
    marks: list[int]


def run_live(
    stage: Stage, arrangement: Arrangement, policy: str, applications: Sequence[TraceApplication], ended: Ended
) -> LiveRun:
    """Replay the applications under a policy on a service of its own.

    Raises httpx.HTTPError when the service does not answer outside the replay, and ResultsError when it does not start,
    answers oddly or does not end, and for an iteration log that cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="justitia-bench-") as directory:
        log = Path(directory) / "iterations.jsonl"
        engine = {**arrangement.engine, "iteration_log": str(log)}
        config = bench_config(arrangement.config, engine, policy, stage.choose_port(), arrangement.predictor_dir)
        with stage.service(config) as url:
            outcomes, before, after, marks = asyncio.run(_run(arrangement, url, applications, ended, log))
        with _log_mistakes():
            iterations, kv_used_tokens = _read(log.read_text("utf-8").splitlines(keepends=True)[marks[0] :])
    return LiveRun(
        outcomes=outcomes,
        iterations=after[0] - before[0],
        preemptions=after[1] - before[1],
        log=iterations,
        kv_used_tokens=kv_used_tokens,
        marks=[mark - marks[0] for mark in marks[1:]],
    )


async def _run(
    arrangement: Arrangement, url: str, applications: Sequence[TraceApplication], ended: Ended, log: Path
) -> tuple[list[Outcome], tuple[int, int], tuple[int, int], list[int]]:
    """The outcomes, the counters before and after, and the log's lines at the beginning and at each window's end."""
    await _warm_up(url, arrangement.rule)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        before = await counters(client)
        with _log_mistakes():
            marks = [await asyncio.to_thread(_lines_of, log)]
        async with marked(log, marks):
            outcomes = await replay(url, applications, arrangement.rule, arrangement.limit_s, ended)
        return outcomes, before, await counters(client), marks


@asynccontextmanager
async def marked(log: Path, marks: list[int]) -> AsyncIterator[None]:
    """Add to `marks` while the block runs. Raises ResultsError at its end where the log could not be read."""
    marking = asyncio.create_task(_mark(log, marks))
    try:
        yield
    finally:
        marking.cancel()
        await asyncio.wait([marking])
    with _log_mistakes(), suppress(asyncio.CancelledError):
        marking.result()


async def _mark(log: Path, marks: list[int]) -> None:
    """Note how long the log is at the end of each window, until cancelled."""
    begin_s = time.monotonic()
    while True:
        await asyncio.sleep(begin_s + len(marks) * WINDOW_S - time.monotonic())
        marks.append(await asyncio.to_thread(_lines_of, log))


async def _warm_up(url: str, rule: LengthRule) -> None:
    """One application from beginning to end, so that everything has been loaded that runs need."""
    (outcome,) = await replay(url, [WARM_UP], rule, TIMEOUT_S, lambda _: None)
    if outcome.error is not None:
        raise ResultsError(f"an application of one call: {outcome.error}")


async def counters(client: httpx.AsyncClient) -> tuple[int, int]:
    """The engine's iterations and preemptions since it started, as it reported them last; it does so when it rests.

    Raises httpx.HTTPError where there is no answer, ResultsError for one without these numbers.
    """
    await asyncio.sleep(REPORT_WAIT_S)
    answer = await client.get("/v1/scheduler")
    answer.raise_for_status()
    try:
        overview = answer.json()
        return int(overview["iterations"]), int(overview["preemptions"])
    except UNREADABLE as error:
        raise ResultsError(f"the service does not answer as it should: {error!r}") from error


def _lines_of(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _read(lines: Sequence[str]) -> tuple[list[Iteration], list[int]]:
    """The iterations, and the tokens in use after each."""
    whole = [line for line in lines if line.endswith("\n")]
    return read_iterations(whole), [int(json.loads(line)["kv_used_tokens"]) for line in whole]


@contextmanager
def _log_mistakes() -> Iterator[None]:
    """An iteration log that cannot be read, in words."""
    try:
        yield
    except OSError as error:
        raise ResultsError(f"the iteration log cannot be read: {error.strerror or error}") from error
    except (CalibrationError, UnicodeDecodeError) as error:
        raise ResultsError(f"the iteration log cannot be read: {error}") from error
