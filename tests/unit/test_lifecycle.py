import itertools

import pytest

from scheduler.lifecycle import ENDS, HOLDING, MOVES, CallState, IllegalMove, check_move


def test_the_table_names_every_state_and_nothing_leaves_an_end() -> None:
    assert set(MOVES) == set(CallState)
    assert all(MOVES[state] == frozenset() for state in ENDS)
    assert not ENDS & HOLDING


@pytest.mark.parametrize(("before", "after"), list(itertools.product(CallState, CallState)))
def test_only_listed_moves_are_made(before: CallState, after: CallState) -> None:
    history = [CallState.BLOCKED, before]
    if after in MOVES[before]:
        check_move("a/c", history, after)
    else:
        with pytest.raises(IllegalMove, match=f"call a/c: blocked → {before} may not be followed by {after}"):
            check_move("a/c", history, after)


def test_every_state_can_be_reached_and_every_state_can_end() -> None:
    reached = {CallState.BLOCKED}
    for _ in CallState:
        reached |= {after for state in reached for after in MOVES[state]}
    assert reached == set(CallState)
    assert all(MOVES[state] & ENDS for state in set(CallState) - ENDS)


def test_a_call_that_nobody_waits_for_never_runs_again() -> None:
    assert MOVES[CallState.STOPPING] == {CallState.CANCELLED}
