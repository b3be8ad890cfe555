import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.applications import MAX_ENDED_CALLS, Application, find_cycle_or_stranger
from scheduler.cost import memory_cost
from scheduler.lifecycle import CallState, IllegalMove
from scheduler.types import ApplicationSpec
from tests.scheduling import application, call


def created(spec: ApplicationSpec, start_tag: float = 0.0, ended_cost: float = 0.0) -> Application:
    return Application(spec, 1, 5.0, start_tag, memory_cost, ended_cost)


def run(app: Application, call_id: str, *output: int, state: CallState = CallState.FINISHED) -> None:
    one = app.calls[call_id]
    one.move(CallState.READY)
    one.move(CallState.GRANTED)
    one.output_tokens = output
    app.end_call(one, state, 9.0, "done")


def test_the_tag_is_the_start_and_the_cost_by_weight() -> None:
    app = created(application("a", call("x", 10, 10), call("y", 10, 10, n=2), weight=3.0), start_tag=100.0)
    assert app.predicted_cost == app.expected_cost == 3 * 155.0
    assert app.finish_tag == 100.0 + 155.0
    assert (app.unfinished_calls, app.ended, app.served_cost) == (2, False, 0.0)


def test_a_prediction_for_the_whole_stands_until_its_parts_exceed_it() -> None:
    app = created(application("a", call("x", 10, 10), predicted_cost=200.0, open=True))
    assert app.finish_tag == 200.0
    app.reveal(call("y", 10, 10))
    assert app.expected_cost == 310.0
    assert app.update_tag()
    assert app.finish_tag == 310.0
    assert not app.update_tag()


def test_what_ended_under_an_earlier_scheduler_still_counts() -> None:
    assert created(application("a", call("x", 10, 10)), 50.0, ended_cost=1000.0).finish_tag == 50.0 + 1155.0


def test_an_early_end_moves_the_tag_to_the_true_cost_only_at_the_end() -> None:
    app = created(application("a", call("x", 10, 10), call("y", 10, 10)))
    run(app, "x", 1)
    assert app.served_cost == 11.0
    assert app.expected_cost == 166.0
    assert not app.update_tag()
    run(app, "y", 2)
    assert app.ended
    assert app.update_tag()
    assert app.finish_tag == 11.0 + 23.0
    assert app.last_end_s == 9.0


def test_a_failed_call_costs_what_it_was_served() -> None:
    app = created(application("a", call("x", 10, 10)))
    run(app, "x", 4, state=CallState.FAILED)
    assert app.expected_cost == 50.0
    assert app.calls["x"].end_reason == "done"


def test_a_call_that_outlives_its_prediction_is_expected_to_go_on_for_half_of_what_it_made() -> None:
    app = created(application("a", call("x", 10, 10, most=40)))
    one = app.calls["x"]
    one.progress((9,))
    assert (one.predicted_output_tokens, one.rest_tokens) == (10, 1)
    one.progress((20, 5))
    assert (one.predicted_output_tokens, one.rest_tokens, one.generated_tokens) == (30, 10, 20)
    one.progress((38,))
    assert (one.predicted_output_tokens, one.rest_tokens) == (40, 2)
    one.progress((50,))
    assert (one.predicted_output_tokens, one.rest_tokens) == (50, 1)
    app.reestimate(one)
    assert app.update_tag()
    assert app.finish_tag == memory_cost(10, [50])


def test_a_short_call_that_outlives_its_prediction_goes_on_for_a_token() -> None:
    one = created(application("a", call("x", 10, 1))).calls["x"]
    one.progress((1,))
    assert one.predicted_output_tokens == 2


def test_nothing_is_saved_up_while_nothing_is_asked_for() -> None:
    app = created(application("a", open=True))
    app.reveal(call("x", 10, 10))
    app.update_tag()
    app.start_anew_if_served(100.0)
    assert app.start_tag == 0.0, "the reference still serves it"
    run(app, "x", 10)
    app.start_anew_if_served(1000.0)
    app.reveal(call("y", 10, 10))
    app.update_tag()
    assert app.finish_tag == 1000.0 + 155.0


def test_a_call_waits_for_those_that_have_not_ended() -> None:
    app = created(application("a", call("y", after=["x"]), call("x"), open=True))
    assert app.calls["y"].waiting_for == {"x"}
    assert app.dependents("x") == [app.calls["y"]]
    assert app.dependents("y") == []
    run(app, "x", 10)
    assert app.reveal(call("z", after=["x", "y"])).waiting_for == {"y"}


@pytest.mark.parametrize(
    ("failure", "cancellation", "outcome"),
    [(None, None, "finished"), ("f", None, "failed"), (None, "", "cancelled"), ("f", "c", "failed")],
)
def test_outcomes(failure: str | None, cancellation: str | None, outcome: str) -> None:
    app = created(application("a", call()))
    app.failure, app.cancellation = failure, cancellation
    assert app.outcome == outcome


def test_an_end_is_an_end() -> None:
    app = created(application("a", call("x")))
    run(app, "x", 1)
    with pytest.raises(IllegalMove, match="call a/x: blocked → ready → granted → finished may not be followed by"):
        app.calls["x"].move(CallState.READY)


# ---- graphs that can never run


@pytest.mark.parametrize(
    ("edges", "fault"),
    [
        ({"a": ["b"], "b": ["a"]}, "cycle: a, b"),
        ({"a": ["a"]}, "cycle: a"),
        ({"a": ["nobody"]}, "call 'a' comes after 'nobody', which is not a call"),
        ({"root": [], "a": ["root", "c"], "b": ["a"], "c": ["b"]}, "cycle: a, b, c"),
    ],
)
def test_graphs_that_can_never_run_are_named(edges: dict[str, list[str]], fault: str) -> None:
    found = find_cycle_or_stranger([call(name, after=after) for name, after in edges.items()])
    assert found is not None
    assert fault in found


def test_a_diamond_and_a_long_chain_run() -> None:
    diamond = {"d": ["b", "c"], "b": ["a"], "c": ["a"], "a": []}
    assert find_cycle_or_stranger([call(name, after=after) for name, after in diamond.items()]) is None
    chain = [call("0"), *[call(str(i), after=[str(i - 1)]) for i in range(1, 5000)]]
    assert find_cycle_or_stranger(reversed(chain)) is None
    assert find_cycle_or_stranger([]) is None


@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.sets(st.integers(0, n - 1)), min_size=n, max_size=n)))
def test_a_cycle_is_found_exactly_when_there_is_one(edges: list[set[int]]) -> None:
    reach = [set(after) for after in edges]
    for _ in edges:
        reach = [after | {further for name in after for further in reach[name]} for after in reach]
    cyclic = any(i in after for i, after in enumerate(reach))
    specs = [call(str(i), after=map(str, sorted(after))) for i, after in enumerate(edges)]
    assert (find_cycle_or_stranger(specs) is not None) == cyclic


def test_a_long_lived_open_application_keeps_the_cost_of_all_its_calls_and_only_the_last_of_them() -> None:
    app = Application(application("o", open=True), 1, 0.0, 0.0, memory_cost)
    for number in range(3 * MAX_ENDED_CALLS):
        one = app.reveal(call(f"c{number}"))
        one.output_tokens = (10,)
        app.end_call(one, CallState.CANCELLED, float(number), "")
    assert len(app.calls) == MAX_ENDED_CALLS
    assert app.call_count == 3 * MAX_ENDED_CALLS
    each = memory_cost(app.calls[f"c{3 * MAX_ENDED_CALLS - 1}"].prompt_tokens, (10,))
    assert app.expected_cost == app.served_cost == pytest.approx(3 * MAX_ENDED_CALLS * each)
