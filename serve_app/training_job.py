"""One training in a process of its own (`serve_app.learning_process` says why), seen from the ingress.

Laws: whatever becomes of the process, killed, hung or talking nonsense, its job ends in a verdict or in
`TrainingFailed`, within `timeout_s`; a job that is cancelled leaves no process behind; the event loop is held for a
few rows at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictors.online import Observation, Verdict

ROWS_AT_ONCE = 50
MAX_REASON = 300


class TrainingFailed(Exception):
    """No model came of it; the text says why."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What to learn from and to judge by, where the champion is (None: running means) and where the model goes."""

    train: Sequence[Observation]
    held_out: Sequence[Observation]
    champion: Path | None
    out: Path
    min_held_out: int
    margin: float
    timeout_s: float


async def run_training(job: TrainingJob) -> Verdict:
    """The verdict; where it is `accepted`, the model is in `job.out`. Raises TrainingFailed."""
    process = await _started(job)
    try:
        async with asyncio.timeout(job.timeout_s):
            answer = await _conversed(process, job)
    except TimeoutError:
        raise TrainingFailed(f"it took longer than {job.timeout_s:g} s") from None
    finally:
        await _ended(process)
    return answer


async def _started(job: TrainingJob) -> Process:
    champion = [] if job.champion is None else ["--champion", str(job.champion)]
    command = ["-m", "serve_app.learning_process", "--out", str(job.out), *champion]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # code may come with a job of Ray
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
        )
    except OSError as error:
        raise TrainingFailed(f"no process could be started: {error.strerror or error}") from error


async def _conversed(process: Process, job: TrainingJob) -> Verdict:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    telling = asyncio.create_task(_tell(process.stdin, job))
    errors = asyncio.create_task(process.stderr.read())
    try:
        answer = await process.stdout.read()
        code = await process.wait()
        said = (await errors).decode(errors="replace").strip().splitlines()
    finally:
        telling.cancel()
        errors.cancel()
        await asyncio.gather(telling, errors, return_exceptions=True)
    if code != 0:
        raise TrainingFailed(_why(code, said))
    return _verdict(answer)


async def _tell(pipe: asyncio.StreamWriter, job: TrainingJob) -> None:
    """The pipe stays open: its end would tell the process that nobody waits any more."""
    with suppress(ConnectionError):  # the process has died: its status says more
        for number, line in enumerate(_lines(job)):
            pipe.write(line.encode())
            if number % ROWS_AT_ONCE == 0:
                await pipe.drain()
                await asyncio.sleep(0)
        await pipe.drain()


def _lines(job: TrainingJob) -> Iterator[str]:
    header = {"train": len(job.train), "held_out": len(job.held_out)}
    yield json.dumps({**header, "min_held_out": job.min_held_out, "margin": job.margin}) + "\n"
    for observation in (*job.train, *job.held_out):
        yield json.dumps(_row(observation)) + "\n"


def _row(observation: Observation) -> dict[str, Any]:
    calls = [
        {"name": call.name, "prompt_tokens": call.prompt_tokens, "output_tokens": call.output_tokens}
        for call in observation.calls
    ]
    tenant = observation.calls[0].tenant if observation.calls else "default"
    kind, prompt = observation.asked
    return {
        "application_type": kind,
        "prompt": prompt,
        "tenant": tenant,
        "true_cost": observation.cost,
        "calls": calls,
    }


async def _ended(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _why(code: int, said: list[str]) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    last = said[-1][:MAX_REASON] if said else ""
    return f"its process ended with {code}: {last}"


def _verdict(answer: bytes) -> Verdict:
    try:
        document = json.loads(answer)
        return Verdict(
            champion_error=float(document["champion_error"]),
            challenger_error=float(document["challenger_error"]),
            held_out=int(document["held_out"]),
            accepted=document["accepted"] is True,
            reason=str(document["reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingFailed(f"its verdict makes no sense: {error!r}") from error
