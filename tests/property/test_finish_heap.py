"""The heap against a dictionary that is sorted each time it is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.finish_heap import FinishHeap

keys = st.integers(0, 12)
ranks = st.integers(0, 6).map(float) | st.floats(allow_nan=False)
operations = st.lists(
    st.tuples(st.just("set"), keys, ranks) | st.tuples(st.sampled_from(["discard", "pop", "peek"]), keys, ranks),
    max_size=300,
)


@given(operations)
def test_it_behaves_like_a_sorted_dictionary(steps: list[tuple[str, int, float]]) -> None:
    heap: FinishHeap[int] = FinishHeap()
    model: dict[int, tuple[float, int]] = {}
    for name, key, rank in steps:
        smallest = min(model, key=model.__getitem__, default=None)
        if name == "set":
            heap.set(key, rank, key)
            model[key] = (rank, key)
        elif name == "discard":
            heap.discard(key)
            model.pop(key, None)
        elif name == "pop" and smallest is not None:
            assert heap.pop() == smallest
            del model[smallest]
        else:
            assert heap.peek() == smallest
        assert len(heap) == len(model)
        assert (key in heap) == (key in model)
        assert set(heap) == set(model)
        assert len(heap._entries) <= 2 * len(heap) + 64
    assert heap.sorted() == sorted(model, key=model.__getitem__)
    assert {key: heap.rank(key) for key in model} == {key: rank for key, (rank, _) in model.items()}


@given(st.lists(st.integers(0, 2).map(float), max_size=60))
def test_equal_ranks_leave_in_order_of_sequence(ranks: list[float]) -> None:
    heap: FinishHeap[object] = FinishHeap()
    things = [object() for _ in ranks]  # objects have no order: comparing two would raise
    for sequence, (thing, rank) in enumerate(zip(things, ranks, strict=True)):
        heap.set(thing, rank, sequence)
    expected = [thing for _, _, thing in sorted((rank, i, things[i]) for i, rank in enumerate(ranks))]
    assert [heap.pop() for _ in things] == expected
