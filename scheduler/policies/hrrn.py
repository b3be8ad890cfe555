"""Highest response ratio next: short calls first, but whoever waits long enough goes before them.

Brinch Hansen ("An analysis of response ratio scheduling", IFIP Congress 1971). Response ratio of a waiting call:

    (waiting + service)/service = 1 + rate·waiting/cost

with waiting in seconds since it began to wait (a call that was lost begins anew) and service its predicted cost over
the rate of a server. The rate multiplies every ratio less one alike and so never changes the order: there is no option
for it, and the order is that of waiting/cost. A weight w makes waiting count w times, so the order is that of
w·waiting/cost; the paper has none. The cost function is the option `cost`, KV token-time unless told. Equal
ratios, as for all calls that have not waited, in order of readiness. Nothing is charged; idling changes nothing.

KV token-time of a call is p·d + d·(d + 1)/2 summed over its sequences, p prompt tokens and d output tokens of each.

Defining property: the ratio grows with waiting, and only calls of smaller cost/w ever pass one that has waited longer.
With equal weights nobody starves below saturation: let calls that bring at most b + rho·x seconds of service in any x
seconds arrive at one server after a call of s seconds, B be the seconds of work that it found, and no call take less
than s_min. At a waiting time W only those can be ahead that arrived before W·(1 − s_min/s), so

    W <= (B + b)/(1 − rho·(1 − s_min/s))    whenever rho·(1 − s_min/s) < 1.

Under lasting overload beyond that, short calls are themselves so late that the long one does starve.

`head` is O(n) by definition: ratios grow at different speeds, so the order among waiting calls changes with time
alone and no heap keeps it. add and remove are O(1).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.cost import CostModel, memory_cost
from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.types import CallKey

_LEAST_COST = 1e-9


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What a waiting call's ratio is made of; the cost is over its weight."""

    ready_s: float
    cost: float
    ready_sequence: int

    def rank(self, now_s: float) -> tuple[float, int]:
        return -max(now_s - self.ready_s, 0.0) / self.cost, self.ready_sequence


class HighestResponseRatioNext(Policy):
    """Largest weight·waiting/cost first."""

    name = "hrrn"
    summary = "calls in order of (waiting + service)/service, waiting counted by weight"
    paper = "Brinch Hansen (IFIP Congress 1971)"
    needs = (Need.PREDICTIONS, Need.WEIGHTS)
    ages = True

    def __init__(self, *, cost: CostModel = memory_cost) -> None:
        self._cost = cost
        self._waiting: dict[CallKey, _Waiting] = {}
        self._now_s = 0.0

    def advance(self, now_s: float) -> None:
        self._now_s = now_s

    def add(self, call: CallFacts) -> None:
        cost = max(call.predicted_cost(self._cost), _LEAST_COST) / call.application.weight
        self._waiting[call.key] = _Waiting(call.ready_s, cost, call.ready_sequence)

    def remove(self, key: CallKey) -> None:
        self._waiting.pop(key, None)

    def head(self) -> CallKey | None:
        return min(self._waiting, key=lambda key: self._waiting[key].rank(self._now_s), default=None)
