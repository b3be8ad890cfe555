"""The service that running calls have had: what policies of attained service count.

Service is measured by a cost function of the prompt and of the tokens made so far. Laws: each unit of service is
counted once, when it is first heard of; what was counted is never taken back, though the call be lost, fail or be
cancelled, because the engine has spent it; a call that made no token had none. Only running calls are kept.
All operations are O(1).
"""

from __future__ import annotations

from scheduler.cost import CostModel
from scheduler.policies.contract import CallFacts
from scheduler.types import CallKey


class ServiceMeter:
    """How far each running call has been counted."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._counted: dict[CallKey, float] = {}

    def more(self, call: CallFacts, output_tokens: tuple[int, ...]) -> float:
        """The service that a running call has had since it was last asked about, given all tokens since its grant."""
        if not any(output_tokens):
            return 0.0
        counted = self._counted.get(call.key, 0.0)
        total = max(self._cost(call.prompt_tokens, output_tokens), counted)
        self._counted[call.key] = total
        return total - counted

    def last(self, call: CallFacts, output_tokens: tuple[int, ...]) -> float:
        """The same for a call that has ended, which is then forgotten."""
        service = self.more(call, output_tokens)
        self._counted.pop(call.key, None)
        return service
