"""Weights of the flows that take part, and their sum without rounding.

A weight is at least 1e-6 and a float has 53 bits, so every weight is a whole number of units of 2⁻⁸⁰. The sum is kept
as an integer of such units: however many flows come and go, nothing of them stays in it. All operations are O(1).
"""

from __future__ import annotations

_UNITS = 2.0**80


def exact_weight(weight: float) -> int:
    """The weight in units of 2⁻⁸⁰."""
    return int(weight * _UNITS)


class FlowWeights:
    """Weight by flow."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._sum = 0

    def __contains__(self, flow: str) -> bool:
        return flow in self._weights

    def __getitem__(self, flow: str) -> float:
        return self._weights[flow]

    @property
    def total(self) -> float:
        return self._sum / _UNITS

    def set(self, flow: str, weight: float) -> None:
        """The flow takes part with this weight."""
        self.discard(flow)
        self._weights[flow] = weight
        self._sum += exact_weight(weight)

    def discard(self, flow: str) -> None:
        """The flow takes part no more, if it did."""
        weight = self._weights.pop(flow, None)
        if weight is not None:
            self._sum -= exact_weight(weight)
