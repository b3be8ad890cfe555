"""Applications made up so that their cost follows from their prompt, up to noise of a known size."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from predictors.models import Asked

SUBJECTS = ("river", "castle", "engine", "garden", "planet", "bridge", "market", "forest")
NOISE = 0.1


def made_up(count: int, seed: int, kinds: tuple[str, ...] = ("report", "question")) -> tuple[list[Asked], list[float]]:
    """`count` applications of each kind: a cost of a level by kind, proportional to the prompt's words, with noise."""
    draw = random.Random(seed)
    asked, costs = [], []
    for _ in range(count):
        for level, kind in enumerate(kinds, start=1):
            words = draw.choices(SUBJECTS, k=draw.randint(5, 200))
            asked.append(Asked(kind, " ".join(words)))
            costs.append(10.0**level * 100 * len(words) * draw.lognormvariate(0, NOISE))
    return asked, costs


def workload_lines(count: int, seed: int) -> str:
    """The same as a workload file: a call that plans, and one that writes as much as the prompt is long."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        for kind in ("report", "question"):
            words = draw.choices(SUBJECTS, k=draw.randint(5, 120))
            output = max(1, round(len(words) * draw.lognormvariate(0, NOISE)))
            document: dict[str, Any] = {
                "application_id": f"{kind}-{number}",
                "application_type": kind,
                "arrival_s": number / 2,
                "prompt": " ".join(words),
                "calls": [
                    {"name": "plan", "after": [], "prompt_tokens": 50, "output_tokens": 20},
                    {"name": "write0", "after": ["plan"], "prompt_tokens": 70, "output_tokens": output},
                ],
            }
            lines.append(json.dumps(document))
    return "\n".join(lines) + "\n"


def shared_workload(name: str) -> Path:
    """A file of the shared workloads; skips the test where they are absent."""
    beside = Path(__file__).parent.parent.parent / "shared"
    path = Path(os.environ.get("JUSTITIA_SHARED", beside)) / "workloads" / name
    if not path.is_file():
        pytest.skip(f"{path} is absent: set JUSTITIA_SHARED to the folder of shared data")
    return path
