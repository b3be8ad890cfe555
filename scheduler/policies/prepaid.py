"""Counters that are charged in advance: the expected answer at admission, settled by what is made.

Laws, with cost function h and expected length e: while a call runs it has been charged h(p, max(e, d)), sequence by
sequence; when it ends, h(p, d).
"""

from __future__ import annotations

from abc import abstractmethod

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.contract import CallFacts
from scheduler.policies.service_counters import CounterPolicy


class PrepaidVtc(CounterPolicy):
    """Smallest counter first; a policy says how long it expects an answer to be."""

    def __init__(self, *, cost: CostModel = linear_cost) -> None:
        super().__init__()
        self._service = cost

    @abstractmethod
    def expected_tokens(self, call: CallFacts) -> int:
        """Output tokens that each sequence of the call is expected to make."""

    def charge_while_running(self, call: CallFacts, made: tuple[int, ...]) -> float:
        expected = self.expected_tokens(call)
        return self._service(call.prompt_tokens, [max(expected, tokens) for tokens in made])

    def charge_at_end(self, call: CallFacts, made: tuple[int, ...]) -> float:
        return self._service(call.prompt_tokens, made)
