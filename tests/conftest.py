"""The service that the tests of `tests/http` and `tests/cluster` share, and its logs when one of them fails.

Hypothesis profiles: `HYPOTHESIS_PROFILE=long pytest tests/property` searches for minutes instead of seconds.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # importing it imports Ray, which other tests need not wait for
    from tests.ray_service import Service

_SLOW_ON_PURPOSE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "normal",
    max_examples=100,
    deadline=None,
    derandomize="CI" in os.environ,  # a submission is judged by the same examples each time
    suppress_health_check=_SLOW_ON_PURPOSE,
)
settings.register_profile(
    "long",
    max_examples=3000,
    stateful_step_count=120,
    deadline=None,
    suppress_health_check=_SLOW_ON_PURPOSE,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service() -> AsyncIterator[Service]:
    """On the event loop of its tests: handles of this process live there, and end before it."""
    from tests.ray_service import running_service

    async with running_service() as service:
        yield service


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    service = getattr(item, "funcargs", {}).get("service")
    if report.failed and hasattr(service, "log_tail"):
        report.sections.append(("logs of Serve", service.log_tail()))
    return report
