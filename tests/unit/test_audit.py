import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.applications import Application
from scheduler.audit import AuditBook, LongestCalls, critical_path_s, latest_finish_s
from scheduler.cost import memory_cost
from scheduler.lifecycle import CallState
from scheduler.types import ApplicationRecord
from tests.scheduling import application, call

moments = st.integers(0, 50).map(float)


@given(
    st.lists(st.tuples(moments, st.integers(0, 20).map(float)), max_size=40), st.lists(moments, max_size=10), moments
)
def test_the_longest_call_since_a_moment(
    calls: list[tuple[float, float]], asked: list[float], forgotten: float
) -> None:
    calls.sort(key=lambda one: one[0])
    longest = LongestCalls()
    for end_s, duration_s in calls:
        longest.add(end_s, duration_s)
    for moment in asked:
        assert longest.since(moment) == max((d for end, d in calls if end >= moment), default=0.0)
    longest.forget_before(forgotten)
    for moment in asked:
        if moment >= forgotten:
            assert longest.since(moment) == max((d for end, d in calls if end >= moment), default=0.0)
    assert all(end >= forgotten for end in longest._ends_s)


def test_shorter_calls_that_ended_earlier_are_not_kept() -> None:
    longest = LongestCalls()
    for moment in range(1000):
        longest.add(float(moment), 1.0)
    assert len(longest._ends_s) == 1


def ran(*stages: tuple[str, float, float, tuple[str, ...]]) -> Application:
    """An application whose calls ran from one moment to another; a start below 0 never ran."""
    app = Application(application("a", *[call(n, after=after) for n, _, _, after in stages]), 1, 0.0, 0.0, memory_cost)
    for name, start, end, _ in sorted(stages, key=lambda stage: stage[2]):
        one = app.calls[name]
        if start >= 0:
            one.replica_id, one.granted_s, one.attempts = "r", start, 1
            one.move(CallState.READY)
            one.move(CallState.GRANTED)
            app.end_call(one, CallState.FINISHED, end, "")
        else:
            app.end_call(one, CallState.CANCELLED, end, "")
    return app


def test_the_critical_path_is_the_longest_chain_and_not_the_time_between() -> None:
    diamond = ran(("a", 0.0, 2.0, ()), ("b", 2.0, 3.0, ("a",)), ("c", 5.0, 9.0, ("a",)), ("d", 20.0, 21.0, ("b", "c")))
    assert critical_path_s(diamond.calls.values()) == (2.0 + 4.0 + 1.0, 3)


def test_seconds_and_stages_may_come_from_different_chains() -> None:
    app = ran(("a", 0.0, 1.0, ()), ("b", 1.0, 2.0, ("a",)), ("alone", 0.0, 30.0, ()))
    assert critical_path_s(app.calls.values()) == (30.0, 2)


def test_calls_that_never_ran_or_still_run_are_no_part_of_the_path() -> None:
    app = ran(("a", 0.0, 1.0, ()), ("never", -1.0, 5.0, ("a",)))
    still = app.reveal(call("still", after=["a"]))
    still.replica_id = "r"
    assert critical_path_s(app.calls.values()) == (1.0, 1)
    assert critical_path_s([]) == (0.0, 0)


def test_the_bound_is_the_later_of_fair_sharing_and_the_chain_and_the_longest_calls() -> None:
    assert latest_finish_s(100.0, 10.0, 5.0, 1, 3.0) == 100.0 + 2 * 3.0
    assert latest_finish_s(12.0, 10.0, 50.0, 4, 3.0) == 60.0 + 5 * 3.0


def record(outcome: str = "finished", finish_s: float = 50.0) -> ApplicationRecord:
    return ApplicationRecord(
        application_id="a",
        application_type="t",
        tenant="d",
        weight=1.0,
        outcome=outcome,
        arrival_s=0.0,
        finish_s=finish_s,
        predicted_cost=1.0,
        true_cost=1.0,
        finish_tag=1.0,
        calls=1,
    )


@pytest.mark.parametrize(("gps_finish_s", "violated"), [(44.0, False), (43.9, True)])
def test_a_finish_after_the_bound_is_counted(gps_finish_s: float, violated: bool) -> None:
    book = AuditBook()
    app = ran(("c", 0.0, 3.0, ()))
    book.note_call(3.0, 3.0)
    book.note_end(app, record(), 0.0)
    assert app.sequence in book
    assert len(book) == 1
    audited = book.settle(app.sequence, gps_finish_s)
    assert audited.bound_s == gps_finish_s + 6.0
    assert audited.lag_s == 50.0 - gps_finish_s
    assert audited.bound_violated is violated
    assert (book.audited, book.violations, len(book)) == (1, int(violated), 0)


def test_no_bound_is_claimed_for_what_it_does_not_cover() -> None:
    book = AuditBook()
    app = ran(("c", 0.0, 3.0, ()))
    book.note_end(app, record("cancelled", 1e9), 0.0)
    assert book.settle(app.sequence, 0.0).bound_s is None
    retried = ran(("c", 0.0, 3.0, ()))
    retried.calls["c"].attempts = 2
    book.note_end(retried, record("finished", 1e9), 0.0)
    assert book.settle(retried.sequence, 0.0).bound_s is None
    opened = Application(application("o", open=True), 2, 0.0, 0.0, memory_cost)
    book.note_end(opened, record("finished", 1e9), 0.0)
    assert book.settle(2, 0.0).bound_s is None
    assert (book.audited, book.violations) == (3, 0)


def test_the_longest_call_counts_from_the_arrival_on() -> None:
    book = AuditBook()
    book.note_call(-5.0, 100.0)
    book.note_call(2.0, 3.0)
    app = ran(("c", 0.0, 3.0, ()))
    book.note_end(app, record(), 0.0)
    assert book.settle(app.sequence, 10.0).bound_s == 10.0 + 2 * 3.0
    book.forget_calls_before(3.0)
    book.note_end(app, record(), 0.0)
    assert book.settle(app.sequence, 10.0).bound_s == 10.0
