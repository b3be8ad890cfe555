"""What the calls that run have been charged: the prediction when they are granted, the truth when they end.

A call that has made no token yet has cost nothing. Laws: the charges of a call add up to its predicted cost while it
has made no more than that, to the cost of what it has made once it has made more, and to exactly that cost when it
ends, finished or not. A call is forgotten when it ends. All operations are O(1).
"""

from __future__ import annotations

from scheduler.cost import CostModel
from scheduler.policies.contract import CallFacts
from scheduler.types import CallKey


def made_cost(cost: CostModel, call: CallFacts, output_tokens: tuple[int, ...]) -> float:
    """What a call has cost that has made so many tokens."""
    return cost(call.prompt_tokens, output_tokens) if any(output_tokens) else 0.0


class RunningCharges:
    """Charge by running call. Each method returns what the flow is to be charged in addition."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._charged: dict[CallKey, float] = {}

    def __contains__(self, key: CallKey) -> bool:
        return key in self._charged

    def __len__(self) -> int:
        return len(self._charged)

    def granted(self, call: CallFacts) -> float:
        """The predicted cost."""
        self._charged[call.key] = call.predicted_cost(self._cost)
        return self._charged[call.key]

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> float:
        """By how much the call has come to exceed what it was charged; 0 for calls that do not run."""
        charged = self._charged.get(call.key)
        if charged is None:
            return 0.0
        self._charged[call.key] = max(charged, made_cost(self._cost, call, output_tokens))
        return self._charged[call.key] - charged

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...]) -> float:
        """The true cost less what was charged, negative for a call that made less; 0 for calls that do not run."""
        charged = self._charged.pop(call.key, None)
        return 0.0 if charged is None else made_cost(self._cost, call, output_tokens) - charged
