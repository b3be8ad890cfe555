"""GPS among flows: the fluid reference of fair queueing (Parekh and Gallager, ToN 1993, section II).

Each flow with work left receives service at a rate proportional to its weight. Virtual time V is the service that
each unit of weight has received: with service S delivered to flows of weights W, V grows by S/W. A flow with work B
left and weight w empties when V reaches its end E = V + B/w; what is left of S goes to the others.

Laws: V never falls but in `clear`. A flow is in the fluid exactly while V < E. Service that nobody is left to take is
dropped; service that is taken back (negative) is withheld from what comes next, so V never runs backwards.

add and remaining are O(log n) and O(1); serve is O(log n) and as much again for each flow that empties. V is a float:
at a million units a second to a weight of one it takes two centuries until it is rounded by more than a unit, and
whoever uses it clears it when nothing is left to serve.
"""

from __future__ import annotations

from itertools import count

from scheduler.finish_heap import FinishHeap
from scheduler.policies.flow_weights import FlowWeights


class FluidFlows:
    """The flows that have work left in the fluid, and V."""

    def __init__(self) -> None:
        self._order = count()
        self.clear()

    def __contains__(self, flow: str) -> bool:
        return flow in self._ends

    def clear(self) -> None:
        """Nothing is left to serve, and V begins at 0 again."""
        self.virtual_time = 0.0
        self._withheld = 0.0
        self._ends: FinishHeap[str] = FinishHeap()
        self._weights = FlowWeights()

    def end(self, flow: str) -> float:
        """V at which the flow empties; V itself if it is empty."""
        return self._ends.rank(flow) if flow in self._ends else self.virtual_time

    def remaining(self, flow: str) -> float:
        """Work that the fluid has left for this flow."""
        return (self.end(flow) - self.virtual_time) * self.weight(flow) if flow in self else 0.0

    def weight(self, flow: str) -> float:
        """The weight of a flow that has work left."""
        return self._weights[flow]

    def add(self, flow: str, weight: float, work: float) -> None:
        """Work comes for a flow; negative work goes away, as much of it as is left."""
        end = self.end(flow)
        if flow in self and self.weight(flow) != weight:
            end = self.virtual_time + self.remaining(flow) / weight
        end += work / weight
        if end <= self.virtual_time:
            self._remove(flow)
        else:
            self._ends.set(flow, end, next(self._order))
            self._weights.set(flow, weight)

    def serve(self, service: float) -> list[str]:
        """Deliver service to all flows with work; returns those that it empties."""
        left = service - self._withheld
        self._withheld = max(-left, 0.0)
        emptied = []
        while left > 0 and (flow := self._ends.peek()) is not None:
            end = self._ends.rank(flow)
            needed = (end - self.virtual_time) * self._weights.total
            if left < needed:
                self.virtual_time += left / self._weights.total
                break
            left -= needed
            self.virtual_time = end
            self._remove(flow)
            emptied.append(flow)
        return emptied

    def _remove(self, flow: str) -> None:
        self._ends.discard(flow)
        self._weights.discard(flow)
