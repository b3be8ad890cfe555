"""The reference: generalized processor sharing (GPS) of the KV pool among applications, by weight.

Virtual time V is the service that each unit of weight has received in the reference. With service S delivered
to active weights W, V grows by S/W; an application leaves when V reaches its finish tag F = start + C/w, and
the rest of S is shared among those that stay (Parekh and Gallager 1993; Justitia, arXiv:2510.17015, section 4).
The paper lets V run in seconds at the pool's nominal speed; here the driver says how much service was
delivered, so that V cannot run ahead of the engine.

Applications are known here by their numbers in order of arrival, which also break ties.

Laws: V never falls. An application is in the reference exactly while V < F. Leaving the reference is a matter of
V alone, never of the real end of an application.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from scheduler.finish_heap import FinishHeap


@dataclass(frozen=True, slots=True)
class ReferenceFinish:
    """The reference has served this application in full; `at_s` on the driver's clock."""

    application: int
    at_s: float


MAX_COURSE_POINTS = 65_536


class Course:
    """V over time, for looking back: points in order of time, thinned out when there are too many.

    V moves evenly between two points. When V reached a value is known for values above the first point's.
    """

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._times_s: list[float] = []
        self._values: list[float] = []

    def note(self, now_s: float, virtual_time: float) -> None:
        """V is so much at this moment; moments and values never fall."""
        if len(self._values) > 1 and self._values[-2] == virtual_time:
            self._times_s[-1] = now_s  # it stands still: the first and the last moment of that are enough
            return
        self._times_s.append(now_s)
        self._values.append(virtual_time)
        if len(self._values) > self._max_points:
            self._times_s, self._values = self._times_s[::2], self._values[::2]

    def reached_at_s(self, value: float, now_s: float) -> float:
        """The first moment at which V was at least this much; `now_s` where that is not known."""
        index = bisect_left(self._values, value)
        if index == len(self._values) or index == 0:
            return now_s
        before, after = self._values[index - 1], self._values[index]
        begin_s, end_s = self._times_s[index - 1], self._times_s[index]
        return begin_s + (end_s - begin_s) * (value - before) / (after - before)


ROUNDING = 1e-6
"""Token-iterations that the sum of many reports may lack: without it a finish would wait for the next report."""


class ReferenceClock:
    """V, and who is still served by the reference; of the course of V it remembers at most `course_points` points."""

    def __init__(self, virtual_time: float = 0.0, course_points: int = MAX_COURSE_POINTS) -> None:
        self.virtual_time = virtual_time
        self._tags: FinishHeap[int] = FinishHeap()
        self._weights: dict[int, float] = {}
        self._active_weight = 0.0
        self._advanced_to_s = 0.0
        self._course = Course(course_points)

    def __contains__(self, application: int) -> bool:
        return application in self._tags

    def __len__(self) -> int:
        return len(self._tags)

    @property
    def active_weight(self) -> float:
        return self._active_weight

    def service_until(self, finish_tag: float) -> float:
        """Token-iterations to deliver before V reaches this tag, if nobody else arrives; O(active applications)."""
        return sum(
            weight * max(0.0, min(self._tags.rank(application), finish_tag) - self.virtual_time)
            for application, weight in self._weights.items()
        )

    def service_until_next(self) -> float | None:
        """Token-iterations to deliver before the next application has been served in full; None without any."""
        head = self._tags.peek()
        return None if head is None else max(self._tags.rank(head) - self.virtual_time, 0.0) * self._active_weight

    def reached_at_s(self, finish_tag: float, now_s: float) -> float:
        """When V reached this tag, to the accuracy of the reports; `now_s` when that is further back than is known."""
        return self._course.reached_at_s(finish_tag, now_s)

    def place(self, application: int, finish_tag: float, weight: float) -> bool:
        """Put an application into the reference, or move it; False if V has reached the tag already."""
        self.remove(application)
        if finish_tag <= self.virtual_time:
            return False
        self._tags.set(application, finish_tag, application)
        self._weights[application] = weight
        self._active_weight += weight
        return True

    def remove(self, application: int) -> None:
        """Take an application out of the reference, if it is there."""
        weight = self._weights.pop(application, None)
        if weight is None:
            return
        self._tags.discard(application)
        self._active_weight = self._active_weight - weight if self._weights else 0.0

    def advance(self, now_s: float, service: float) -> list[ReferenceFinish]:
        """Share `service` token-iterations, delivered evenly since the last advance; returns who finished.

        Service that nobody is left to take is dropped: V stands still in an empty reference.
        """
        begin_s, self._advanced_to_s = min(self._advanced_to_s, now_s), now_s
        finishes: list[ReferenceFinish] = []
        left = service
        while service > 0 and (head := self._tags.peek()) is not None:
            tag = self._tags.rank(head)
            needed = max((tag - self.virtual_time) * self._active_weight, 0.0)
            if needed > left + ROUNDING:
                self.virtual_time = min(self.virtual_time + left / self._active_weight, tag)
            else:
                self.virtual_time = max(self.virtual_time, tag)
            if self.virtual_time < tag:
                break
            left = max(left - needed, 0.0)
            self.remove(head)
            finishes.append(ReferenceFinish(head, now_s - (now_s - begin_s) * (left / service)))
        self._course.note(now_s, self.virtual_time)
        return finishes

    def catch_up(self, now_s: float, virtual_time: float) -> list[ReferenceFinish]:
        """Move V on to where an earlier scheduler is known to have been; returns whom that passes."""
        self.virtual_time = max(self.virtual_time, virtual_time)
        finishes = []
        while (head := self._tags.peek()) is not None and self._tags.rank(head) <= self.virtual_time:
            self.remove(head)
            finishes.append(ReferenceFinish(head, now_s))
        self._course.note(now_s, self.virtual_time)
        return finishes

    def drain(self, now_s: float) -> list[ReferenceFinish]:
        """End the busy period: everyone left is served in full at `now_s`, and V moves to the last tag."""
        self._advanced_to_s = now_s
        finishes = []
        while (head := self._tags.peek()) is not None:
            self.virtual_time = max(self.virtual_time, self._tags.rank(head))
            self.remove(head)
            finishes.append(ReferenceFinish(head, now_s))
        self._course.note(now_s, self.virtual_time)
        return finishes
