import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cost import kv_token_time, memory_cost

counts = st.integers(0, 300)


@given(counts, counts, st.data())
def test_the_closed_form_is_the_sum_over_steps(p: int, d: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(0, p))
    assert kv_token_time(p, d, s) == sum(p - s + step for step in range(1, d + 1))


@given(counts, st.lists(counts, max_size=5))
def test_a_call_costs_the_sum_over_its_sequences(p: int, outputs: list[int]) -> None:
    cost = memory_cost(p, outputs)
    assert type(cost) is float
    assert cost == sum(kv_token_time(p, d) for d in outputs)


@pytest.mark.parametrize(("p", "d", "s"), [(-1, 1, 0), (1, -1, 0), (1, 1, -1), (3, 1, 4)])
def test_impossible_counts_are_refused(p: int, d: int, s: int) -> None:
    with pytest.raises(ValueError, match="impossible counts"):
        kv_token_time(p, d, s)
