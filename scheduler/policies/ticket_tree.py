"""Tickets by flow, and whose the t-th is: a Fenwick tree over the flows' places.

Laws: tickets are whole numbers, so their sum is exact. A flow that comes takes a free place; the tree doubles when it
is full and shrinks when less than a quarter is taken, so that memory follows the flows. add, remove and owner are
O(log n) amortized (Fenwick 1994).
"""

from __future__ import annotations

_SMALLEST = 16


class TicketTree:
    """A place a flow, and the sums of the tickets at the places."""

    def __init__(self) -> None:
        self.total = 0
        self._tickets: dict[str, int] = {}
        self._rebuild(_SMALLEST)

    def __len__(self) -> int:
        """Flows."""
        return len(self._tickets)

    @property
    def places(self) -> int:
        """Places for flows."""
        return len(self._flows)

    def add(self, flow: str, tickets: int) -> None:
        """A flow that is not there comes with at least one ticket."""
        if not self._free:
            self._rebuild(2 * self.places)
        self._tickets[flow] = tickets
        self._settle(flow, self._free.pop())

    def remove(self, flow: str) -> None:
        """A flow that is there goes; KeyError for any other."""
        place = self._places.pop(flow)
        self._change(place, -self._tickets.pop(flow))
        self._free.append(place)
        if self.places > max(_SMALLEST, 4 * len(self)):
            self._rebuild(self.places // 2)

    def owner(self, ticket: int) -> str:
        """Whose ticket this is, 0 <= ticket < total: tickets are numbered place by place."""
        place, step = 0, self.places
        while step:
            if place + step <= self.places and self._sums[place + step] <= ticket:
                place += step
                ticket -= self._sums[place]
            step //= 2
        return self._flows[place]

    def _settle(self, flow: str, place: int) -> None:
        self._places[flow] = place
        self._flows[place] = flow
        self._change(place, self._tickets[flow])

    def _change(self, place: int, tickets: int) -> None:
        self.total += tickets
        index = place + 1
        while index <= self.places:
            self._sums[index] += tickets
            index += index & -index

    def _rebuild(self, places: int) -> None:
        """Move everybody into a tree of so many places, a power of two."""
        self.total = 0
        self._flows = [""] * places
        self._sums = [0] * (places + 1)
        self._places: dict[str, int] = {}
        self._free = list(range(places - 1, -1, -1))
        for flow in self._tickets:
            self._settle(flow, self._free.pop())
