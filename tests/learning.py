"""Ended applications made up for tests of learning, and a service's records of them."""

from __future__ import annotations

from scheduler.types import ApplicationRecord
from serve_app.ended_applications import EndedApplication, EndedCall
from tests.predicting import made_up


def record(
    kind: str = "report", cost: float = 1000.0, predicted: float = 1000.0, **fields: object
) -> ApplicationRecord:
    values: dict[str, object] = {
        "application_id": "app",
        "application_type": kind,
        "tenant": "default",
        "weight": 1.0,
        "outcome": "finished",
        "arrival_s": 1.0,
        "finish_s": 3.5,
        "predicted_cost": predicted,
        "true_cost": cost,
        "finish_tag": 5.0,
        "calls": 1,
    }
    return ApplicationRecord(**{**values, **fields})  # type: ignore[arg-type]


def ended(kind: str = "report", prompt: str = "p", cost: float = 1000.0, **fields: object) -> EndedApplication:
    """One of two calls, of which one was seen here, so that its cost is what the scheduler counted: as stated."""
    return EndedApplication(record(kind, cost, **{"calls": 2, **fields}), prompt, (EndedCall("write", 40, (30,)),))  # type: ignore[arg-type]


def many(count: int, seed: int = 1, **fields: object) -> list[EndedApplication]:
    """`count` of each of two kinds whose costs follow from their prompts."""
    asked, costs = made_up(count, seed)
    return [ended(one.application_type, one.prompt, cost, **fields) for one, cost in zip(asked, costs, strict=True)]
