"""First come, first served."""

from __future__ import annotations

import pytest

from scheduler.actions import Grant
from tests.crowd import crowd, run_crowd


@pytest.mark.parametrize("seed", range(20))
def test_fcfs_starts_in_order_of_arrival(seed: int) -> None:
    """A call that was lost may start again, later than those behind it; first starts keep the order of readiness."""
    bench = run_crowd("fcfs", seed, tenant_level=False)
    first_starts = list(dict.fromkeys((grant.application_id, grant.call_id) for grant in bench.all(Grant)))
    arrived = [(name, str(i)) for name, calls, _ in crowd(seed) for i in range(len(calls))]
    assert first_starts == arrived
