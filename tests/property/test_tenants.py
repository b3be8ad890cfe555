"""The tenant level in closed loop: what it must not change, and what it promises to tenants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.actions import Grant, PublishCompletion
from scheduler.events import ApplicationClosed, CallReady, CallRevealed, Event
from scheduler.policies import POLICIES
from scheduler.tenants import TenantLevel
from scheduler.types import ApplicationSpec, CallSpec
from tests.property.fluid_gps import Job
from tests.property.scripted_loop import ScriptedLoop
from tests.scheduling import Bench, application, call, clean_state

LONGEST = 12

fewer = settings(max_examples=25, deadline=None)  # two simulations each
weights = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0])

Workload = list[tuple[int, ApplicationSpec]]


def uniform(name: str, tenant: str, calls: int, p: int = 20, d: int = 10) -> ApplicationSpec:
    return application(name, *[call(str(number), p, d) for number in range(calls)], tenant=tenant)


CALL_COST = sum(20 + step for step in range(1, 11))
"""Of a call of `uniform`, in token-iterations."""


def played(workload: Workload, *, slots: int = 256, **settings: Any) -> ScriptedLoop:
    """The workload to its end, on one replica."""
    bench = Bench(check_each=False, **settings)
    bench.join(max_sequences=slots)
    loop = ScriptedLoop(bench, sorted(workload, key=lambda item: item[0]))
    loop.run()
    clean_state(bench.core)
    return loop


# ---- one application a tenant: flat Justitia


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Workload, list[tuple[int, Event]], dict[tuple[str, str], int]]:
    """Staged applications, open ones that reveal calls and close, and what calls truly make."""
    workload: Workload = []
    script: list[tuple[int, Event]] = []
    truth: dict[tuple[str, str], int] = {}
    for number, second in enumerate(sorted(draw(st.lists(st.integers(0, 30), min_size=2, max_size=9)))):
        name, is_open = f"a{number}", draw(st.booleans())
        calls = [
            call(
                str(index),
                draw(st.integers(1, 40)),
                draw(st.integers(1, LONGEST)),
                n=draw(st.sampled_from([1, 1, 2])),
                after=draw(st.sets(st.integers(0, index - 1).map(str), max_size=2)) if index else (),
            )
            for index in range(draw(st.sampled_from([1, 3, 12])))
        ]
        spec = {"predicted_cost": draw(st.sampled_from([None, None, 1.0, 5000.0])), "weight": draw(weights)}
        workload.append((second, application(name, *calls, tenant=name, open=is_open, **spec)))
        late = draw(st.lists(st.integers(1, 40), max_size=3)) if is_open else []
        for index, wait in enumerate(late):
            revealed = call(f"late{index}", draw(st.integers(1, 40)), draw(st.integers(1, LONGEST)))
            script.append((second + wait, CallRevealed(name, revealed)))
            script.append((second + wait, _ready(name, revealed)))
            calls.append(revealed)
        script.append((second + max(late, default=0), ApplicationClosed(name)))
        truth |= {(name, c.call_id): draw(st.integers(1, 2 * c.predicted_output_tokens)) for c in calls}
    return workload, script, truth


def _ready(name: str, spec: CallSpec) -> CallReady:
    return CallReady(name, spec.call_id, spec.prompt_tokens, spec.predicted_output_tokens)


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_with_one_application_a_tenant_the_order_is_flat_justitias(
    world: tuple[Workload, list[tuple[int, Event]], dict[tuple[str, str], int]],
) -> None:
    """The same grants at the same moments: stages, early ends, overruns, false totals and revealed work included."""
    workload, script, truth = world
    tenant_weights = tuple((spec.tenant, spec.weight) for _, spec in workload)
    grants = []
    for tenant_level in (True, False):
        bench = Bench(check_each=False, tenant_level=tenant_level, tenant_weights=tenant_weights)
        bench.join()
        loop = ScriptedLoop(bench, workload, truth, script=script, check_each=False)
        loop.run()
        clean_state(bench.core)
        grants.append((loop.starts, [grant.lease_id for grant in bench.all(Grant)]))
    assert grants[0] == grants[1]


# ---- one application in pieces


@fewer
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 40), weights), min_size=1, max_size=3),
    st.integers(1, 5),
    weights,
)
def test_a_tenant_that_cuts_its_application_into_ten_finishes_no_earlier(
    others: list[tuple[int, int, float]], tenth: int, weight: float
) -> None:
    """Bound: one longest call.

    Whole or cut, its last call stands behind the same finish tag, and so behind the same work of others; one call that
    has begun is not interrupted. The others may finish later than beside the whole application, which as a large one
    stood behind all of theirs; but not later than by fair sharing, up to two longest calls.
    """
    tenant_weights = (("cut", weight), *((f"t{n}", w) for n, (_, _, w) in enumerate(others)))
    theirs = [(second, uniform(f"o{n}", f"t{n}", calls)) for n, (second, calls, _) in enumerate(others)]
    whole = [(5, uniform("whole", "cut", 10 * tenth))]
    pieces = [(5, uniform(f"piece{number}", "cut", tenth)) for number in range(10)]
    before, after = (played(theirs + mine, slots=8, tenant_weights=tenant_weights) for mine in (whole, pieces))
    assert after.finish_s("cut") >= before.finish_s("cut") - 10
    jobs = [Job(second, calls * CALL_COST, w) for second, calls, w in others]
    fair = after.fair_finishes_s([*jobs, Job(5, 10 * tenth * CALL_COST, weight)])
    assert [n for n in range(len(others)) if after.finish_s(f"t{n}") > fair[n] + 2 * 10] == []


# ---- any policy inside


@pytest.mark.parametrize("name", sorted(name for name in POLICIES if not POLICIES[name].shares_among_flows))
def test_tenants_share_whatever_orders_their_own(name: str) -> None:
    """A tenant with one application of ten calls beside one with twenty such: done when a tenth more than twice its own
    work was done, under each policy that shares among nobody by itself; everything ends once."""
    many = [(0, uniform(f"many{number}", "many", 10)) for number in range(20)]
    loop = played([*many, (0, uniform("few", "few", 10))], slots=5, policy=name)
    assert Counter(action.record.application_id for action in loop.bench.all(PublishCompletion)) == {
        spec.application_id: 1 for _, spec in loop.arrivals
    }
    rounds = loop.finish_s("few") / 10  # five calls at a time, ten iterations each
    assert rounds <= 5
    assert loop.finish_s("many") == 420


# ---- memory


def test_nothing_is_kept_of_thousands_of_tenants_that_come_and_go() -> None:
    bench = Bench(check_each=False)
    bench.join()
    bench.arrive_ready("stays", call(p=10, d=50), tenant="stays")
    stays, *_ = bench.offer()
    bench.start(stays)
    level = bench.core.policy
    assert isinstance(level, TenantLevel)
    for number in range(2000):
        spec = call(p=2, d=1)
        bench.arrive_ready(f"a{number}", spec, tenant=f"t{number}")
        (grant,) = bench.offer()
        bench.finish(grant, 2, (1,))
        bench.serve(6)
    assert len(level._tenants) <= 3
    assert len(level._names) <= 3
    assert list(level._applications) == ["stays"]
    assert len(level._waiting) == 0
    assert len(level._unplaced) <= 3
    assert len(level._reference) <= 3
