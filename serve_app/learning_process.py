"""Training in a process of its own: `python -m serve_app.learning_process --out DIR [--champion DIR]`.

Training takes seconds of computing in Python, which in the ingress would hold every request up, in a thread too. A
plain process keeps the interpreter's lock of the ingress free, can be given the lowest priority, can be killed with
nothing lost, and hands its result over in files that are checked when they are read, never by pickle. A Ray task would
need a slot of the cluster and would send prompts through its object store.

On the standard input come a line `{"train": N, "held_out": M, "min_held_out": K, "margin": X}` and then N + M lines in
the form of `serve_app.training_data`; it stays open, and its end tells that nobody waits any more. On the standard
output goes one line, the verdict; the model is in DIR by then. The exit status is 0 unless training failed, and then
the last line of the standard error says why. The model keeps the champion's types that have not come again
(`predictors.inheritance`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

LOWEST_PRIORITY = 19


def main() -> None:
    """Train, judge, save, say."""
    _step_back()
    arguments = _arguments()
    header = json.loads(sys.stdin.readline())
    train_rows, held_out_rows = (_documents(sys.stdin, header[part]) for part in ("train", "held_out"))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    verdict = _train(train_rows, held_out_rows, header, arguments.out, arguments.champion)
    print(json.dumps(verdict), flush=True)


def _step_back() -> None:
    """Serving comes first; before numpy is imported, which asks for its threads then."""
    os.nice(LOWEST_PRIORITY)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description="Train a predictor for a service that runs.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--champion", type=Path)
    return parser.parse_args()


def _documents(lines: TextIO, count: int) -> list[Any]:
    return [json.loads(lines.readline()) for _ in range(count)]


def _end_with_parent() -> None:
    """What the parent left unread when it died must not go on computing."""
    sys.stdin.read()
    os._exit(1)


def _train(
    train_rows: list[Any], held_out_rows: list[Any], header: dict[str, Any], out: Path, champion: Path | None
) -> dict[str, Any]:
    from predictors.inheritance import inheriting
    from predictors.online import Contest, Observation, TypicalCosts
    from predictors.store import load, save
    from serve_app.training import ModelKind, train
    from serve_app.training_data import parse_finished

    learnt_from = [one for one in map(parse_finished, train_rows) if one is not None]
    judged_by = [one for one in map(parse_finished, held_out_rows) if one is not None]
    observations = [Observation(one.asked, one.cost) for one in learnt_from]
    held_out = [Observation(one.asked, one.cost) for one in judged_by]
    before = None if champion is None else load(champion)
    present = TypicalCosts(observations) if before is None else before.costs
    trained = train(learnt_from, ModelKind.DEFAULT)
    challenger = trained if before is None else inheriting(trained, before)
    contest = Contest(header["min_held_out"], header["margin"])
    verdict = contest.judge(present, challenger.costs, held_out)
    save(challenger, out)
    return {**asdict(verdict), "learnt_from": len(learnt_from)}


if __name__ == "__main__":
    main()
