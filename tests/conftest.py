"""The service that the tests of `tests/http` and `tests/cluster` share, and its logs when one of them fails."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # importing it imports Ray, which other tests need not wait for
    from tests.ray_service import Service


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    from tests.ray_service import running_service

    with running_service() as service:
        yield service


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    service = getattr(item, "funcargs", {}).get("service")
    if report.failed and service is not None:
        report.sections.append(("logs of Serve", service.log_tail()))
    return report
