"""One engine of each kind for all tests of this folder.

They run on one event loop, for an engine lives on the loop that started it, and vLLM is started once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.driver import Caller, started


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=["simulated", pytest.param("vllm", marks=pytest.mark.vllm)]
)
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    """A caller of each engine in turn."""
    async with started(request.param) as caller:
        yield caller
