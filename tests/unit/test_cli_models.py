"""`justitia models`: what it prints of what the service says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from serve_app.cli import http
from serve_app.cli.main import app

STATUSES = [
    {
        "ingress": "one",
        "version": 3,
        "model": "default",
        "learnt_from": 120,
        "versions_before": [1, 2],
        "drifts": 1,
        "training": False,
        "last_training": {"outcome": "accepted", "reason": "0.2 against 0.3"},
    },
    {"ingress": "two", "version": 1, "model": "running means", "model_refused": "predictor_dir/model.json: not JSON"},
    {"ingress": "three", "version": 1, "model": "running means", "training": True, "last_training": None},
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def ask(url: str, method: str, path: str, *, api_key: str | None) -> dict[str, Any]:
        found.append((method, path))
        return {"data": STATUSES}

    monkeypatch.setattr(http, "ask", ask)
    monkeypatch.setenv("COLUMNS", "200")
    return found


def test_it_lists_what_predicts_and_what_was_refused(asked: list[tuple[str, str]]) -> None:
    done = CliRunner().invoke(app, ["models", "list"])
    assert done.exit_code == 0, done.output
    assert asked == [("GET", "/v1/predictor")]
    for words in ("accepted: 0.2 against 0.3", "1, 2", "runs", "refused: predictor_dir/model.json: not JSON"):
        assert words in done.output


def test_it_goes_back(asked: list[tuple[str, str]]) -> None:
    done = CliRunner().invoke(app, ["models", "rollback", "--json"])
    assert json.loads(done.stdout) == {"data": STATUSES}
    assert asked == [("POST", "/v1/predictor/rollback")]
