import pytest

from scheduler.finish_heap import FinishHeap


def test_an_empty_heap_has_no_head() -> None:
    heap: FinishHeap[str] = FinishHeap()
    assert heap.peek() is None
    assert len(heap) == 0
    with pytest.raises(IndexError):
        heap.pop()
    with pytest.raises(KeyError):
        heap.rank("a")


def test_a_rank_that_is_no_number_never_enters() -> None:
    heap: FinishHeap[str] = FinishHeap()
    heap.set("a", 1.0, 1)
    with pytest.raises(ValueError, match="rank of 'a' is not a number"):
        heap.set("a", float("nan"), 1)
    assert (heap.peek(), heap.rank("a")) == ("a", 1.0)


def test_a_key_that_moves_leaves_no_ghost() -> None:
    heap: FinishHeap[str] = FinishHeap()
    heap.set("a", 1.0, 1)
    heap.set("b", 2.0, 2)
    heap.set("a", 3.0, 1)
    assert heap.peek() == "b"
    heap.set("a", 1.0, 1)
    heap.discard("stranger")
    assert [heap.pop(), heap.pop()] == ["a", "b"]
    assert heap.peek() is None
    assert "a" not in heap


def test_moving_one_key_for_ever_costs_no_memory() -> None:
    heap: FinishHeap[str] = FinishHeap()
    heap.set("first", -1.0, 0)  # always the head, so that nothing is ever dropped from the front
    for step in range(10_000):
        heap.set("a", float(step), 1)
    assert len(heap._entries) <= 2 * 2 + 64


def test_entries_follow_the_live_keys_when_they_are_popped() -> None:
    heap: FinishHeap[int] = FinishHeap()
    for key in range(1000):
        heap.set(key, 1e9, key)
    for key in range(1000):
        heap.set(key, float(key), key)
    for _ in range(1000):
        heap.pop()
    assert len(heap._entries) <= 64
