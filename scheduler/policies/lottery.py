"""Lottery scheduling: each grant is a draw, and a flow's chance is its part of the tickets.

Waldspurger and Weihl, "Lottery Scheduling: Flexible Proportional-Share Resource Management", OSDI 1994, section 2. A
backlogged flow holds tickets in proportion to its weight; draw k = 0, 1, 2, ... picks the ticket numbered
⌊x_k·T/2⁶⁴⌋, with T the tickets of all backlogged flows and x_k = splitmix64(seed, k) in [0, 2⁶⁴). The flow that holds
it runs the call that became ready first. Nothing is charged: what is shared are grants, not costs. A flow that leaves
takes its tickets with it, and one that returns has neither credit nor debt.

The number of the draw moves on with each grant and with nothing else. So asking twice gives the same answer, and a
flow that comes or goes between two draws changes who holds the drawn ticket, not what is drawn.

Different from the paper: no currencies, transfers or inflation of tickets, and no compensation tickets (section 4.5),
which would make up for calls of different costs. A weight is taken as exact, not in whole tickets. The generator is
splitmix64 (Steele, Lea and Flood, OOPSLA 2014), computed from the number of the draw, not the paper's Park-Miller.

A flow is an application or a tenant, as the operator set it, and w its weight.

Defining property: over n grants among flows that stay backlogged, a flow with p of the tickets is granted n·p calls
on average, with variance n·p·(1 − p). O(log n) for each operation.
"""

from __future__ import annotations

from scheduler.policies.contract import CallFacts, Need, Policy
from scheduler.policies.flow_queues import FlowQueues
from scheduler.policies.flow_weights import exact_weight
from scheduler.policies.ticket_tree import TicketTree
from scheduler.types import CallKey

_BITS = 64
_MASK = (1 << _BITS) - 1


def splitmix64(seed: int, index: int) -> int:
    """The index-th number, from 0, of the splitmix64 sequence that begins at this seed; in [0, 2⁶⁴)."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


class Lottery(Policy):
    """A ticket drawn for each grant; the flow that holds it runs."""

    name = "lottery"
    summary = "a draw for each grant, chances by weight"
    paper = "Lottery scheduling (Waldspurger and Weihl, OSDI 1994)"
    needs = (Need.WEIGHTS,)
    shares_among_flows = True
    left_to_chance = True

    def __init__(self, *, seed: int = 0) -> None:
        if not 0 <= seed <= _MASK or seed != int(seed):
            raise ValueError(f"seed must be a whole number in [0, 2^64), got {seed}")
        self._seed = int(seed)
        self._draw = 0
        self._queues = FlowQueues()
        self._tickets = TicketTree()

    def add(self, call: CallFacts) -> None:
        if self._queues.add(call):
            self._tickets.add(call.flow, exact_weight(call.flow_weight))

    def remove(self, key: CallKey) -> None:
        flow = self._queues.remove(key)
        if flow is not None:
            self._tickets.remove(flow)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self._draw += 1

    def head(self) -> CallKey | None:
        if not self._queues:
            return None
        ticket = splitmix64(self._seed, self._draw) * self._tickets.total >> _BITS
        return self._queues.first(self._tickets.owner(ticket)).key
