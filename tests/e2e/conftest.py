"""One service on vLLM for all tests here: its start takes most of their time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # importing it imports Ray
    from tests.vllm_service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    from tests.vllm_service import running_service

    with running_service(tmp_path_factory.mktemp("state")) as service:
        yield service
