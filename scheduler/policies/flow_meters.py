"""A meter a flow, over a floor that rises: what policies that pick the smallest counter have in common.

A meter is normalized service: it grows by cost/weight. Laws:
- a flow joins (one of its calls waits) with its own meter, lifted to the floor;
- a flow that leaves keeps its meter while it lies above the floor, and is forgotten when the floor reaches it, which
  changes nothing, since it would be lifted to there;
- the floor never falls, but where nothing waits all meters and the floor are set to 0. That is the same as lifting
  the floor to the largest meter, because only differences count, and keeps numbers small.

Equal meters are ordered by the flows' numbers. All operations are O(log n) amortized in the flows remembered. Between
two such moments meters grow with the service given; they are floats, and at a million units a second it takes two
centuries until one of them is rounded by more than a unit.
"""

from __future__ import annotations

from itertools import count

from scheduler.finish_heap import FinishHeap


class FlowMeters:
    """Meters of the flows that wait, and of those that left above the floor."""

    floor: float
    _waiting: FinishHeap[str]
    _idle: FinishHeap[str]

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._order = count()
        self._reset()

    def __contains__(self, flow: str) -> bool:
        """Whether the flow has joined."""
        return flow in self._waiting

    def join(self, flow: str, number: int) -> None:
        """A flow begins to wait; `number` breaks ties and is unique among those that wait."""
        meter = self.meter(flow)
        self._idle.discard(flow)
        self._numbers[flow] = number
        self._waiting.set(flow, max(meter, self.floor), number)

    def leave(self, flow: str) -> None:
        """A flow that had joined waits no more."""
        meter = self.meter(flow)
        self._waiting.discard(flow)
        del self._numbers[flow]
        self._remember(flow, meter)
        self.forget_if_empty()

    def charge(self, flow: str, amount: float) -> None:
        """Add so much normalized service, which may be negative, to a flow's meter, whether it waits or not."""
        meter = self.meter(flow) + amount
        if flow in self._waiting:
            self._waiting.set(flow, meter, self._numbers[flow])
        else:
            self._remember(flow, meter)

    def meter(self, flow: str) -> float:
        """A flow's meter; that of a flow not remembered is the floor."""
        for heap in (self._waiting, self._idle):
            if flow in heap:
                return heap.rank(flow)
        return self.floor

    def least(self) -> str | None:
        """The flow with the smallest meter among those that wait."""
        return self._waiting.peek()

    def raise_floor(self, value: float) -> None:
        """Lift the floor to this value, if it lies below, and forget the idle flows that it reaches."""
        self.floor = max(self.floor, value)
        while (flow := self._idle.peek()) is not None and self._idle.rank(flow) <= self.floor:
            self._idle.discard(flow)

    def raise_floor_to_least(self) -> None:
        """Lift the floor to the smallest meter of a flow that waits."""
        flow = self.least()
        if flow is not None:
            self.raise_floor(self._waiting.rank(flow))

    def forget_if_empty(self) -> None:
        """Forget everything if nothing waits."""
        if not self._waiting:
            self._reset()

    def _remember(self, flow: str, meter: float) -> None:
        self._idle.discard(flow)
        if meter > self.floor:
            self._idle.set(flow, meter, next(self._order))

    def _reset(self) -> None:
        self.floor = 0.0
        self._waiting = FinishHeap()
        self._idle = FinishHeap()
