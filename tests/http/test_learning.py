"""A service that learns while it serves: the shared one, deployed for this module with learning on.

When a model is trained, judged, kept or withdrawn is in `tests/unit/test_learning.py`; here it is that a deployed
ingress does all of it on its own, in a process beside it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from serve_app.cli.main import app
from tests.http.test_tenants import _deployed
from tests.ray_service import POLL_S, Service, document_call

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

APPLICATIONS = 60
WITHIN_S = 120.0


class LearningService(Service):
    """One ingress that learns, and where it keeps what it learns."""

    @property
    def learning_dir(self) -> Path:
        return Path(self.config["applications"][1]["args"]["ingress"]["state_dir"])

    async def predictor(self) -> dict[str, Any]:
        async with self.async_http() as client:
            answer = await client.get("/v1/predictor")
            answer.raise_for_status()
            (status,) = answer.json()["data"]
            return dict(status)

    async def submit(self, words: int, prompt: str, tokens: int) -> dict[str, Any]:
        call = document_call("write", tokens, f"{prompt} {'river ' * words}")
        async with self.async_http() as client:
            answer = await client.post("/v1/applications", json={"application_type": "essay", "calls": [call]})
            answer.raise_for_status()
            return dict(answer.json())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def learning(service: Service, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LearningService]:
    config = copy.deepcopy(service.config)
    config["applications"][1]["args"]["ingress"] |= {
        "state_dir": str(tmp_path_factory.mktemp("learning")),
        "learning": {"enabled": True, "min_new": APPLICATIONS, "min_held_out": 5},
    }
    config["applications"][1]["deployments"][1]["num_replicas"] = 1
    await _deployed(service, config)
    yield LearningService(service.url, config, service.state_dir, service.ray_dir)
    await _deployed(service, service.config)
    await service.until(lambda seen: len(seen["replicas"]) == 2, within_s=30)


async def test_a_service_learns_what_its_applications_cost_and_can_go_back(learning: LearningService) -> None:
    await learning.until(lambda seen: len(seen["replicas"]) == 2, within_s=30)
    assert (await learning.predictor())["version"] == 1
    untrained = [await learning.submit(words, "Before:", 20) for words in (2, 60)]
    draw = random.Random(4)
    lengths = [draw.randint(2, 60) for _ in range(APPLICATIONS)]
    await asyncio.gather(*(learning.submit(words, "Tell:", words) for words in lengths))

    learnt = await _until_version(learning, 2)
    assert learnt["last_training"]["challenger_error"] < learnt["last_training"]["champion_error"]
    short, long = [await learning.submit(words, "After:", 70) for words in (2, 60)]
    assert long["predicted_cost"] > 1.5 * short["predicted_cost"]
    assert long["predicted_cost"] != untrained[1]["predicted_cost"]
    await learning.until_clean()

    _check_log(learning.learning_dir / "finished")
    assert (learning.learning_dir / "models" / "v000002" / "model.json").is_file()
    listed = await asyncio.to_thread(CliRunner().invoke, app, ["models", "list", "--url", learning.url])
    assert listed.exit_code == 0, listed.output
    async with learning.async_http() as client:
        assert (await client.post("/v1/predictor/rollback")).json()["data"][0]["version"] == 1
        assert (await client.post("/v1/predictor/rollback")).status_code == 409


async def _until_version(service: LearningService, version: int) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while (status := await service.predictor())["version"] < version:
            assert status["failures"] == 0, status
            await asyncio.sleep(POLL_S)
    return status


def _check_log(directory: Path) -> None:
    lines = [json.loads(line) for path in directory.iterdir() for line in path.read_text().splitlines()]
    finished = [line for line in lines if line["outcome"] == "finished"]
    assert len(finished) >= APPLICATIONS
    assert all(line["application_type"] == "essay" and line["true_cost"] > 0 for line in finished)
    assert "river" not in json.dumps(lines)
