"""The policy contract: which waiting call goes next?

The core tells a policy facts, in the order in which they come true; the policy answers one question, `head()`. It
owns its own numbers and nothing else, decides nothing about capacity, and looks at no other policy. Asking changes
nothing. A policy reads no clock and draws no lots: `advance` tells the time, chance comes from a seed.

What the core promises:
- an application arrives (`application_arrived`) before its first call is added, and leaves after its last has ended;
- `granted(call, replica)` comes while the call still waits, followed at once by `remove(call.key)`; a call that is
  removed without it was cancelled, or failed, while it waited;
- a call that was granted is `progressed` any number of times and `ended` once; one that was lost is then added again
  with its old `ready_sequence`;
- a policy that is chosen while the system runs is told first of what is there: applications, running calls (granted
  and progressed, though they were never added), waiting calls.

A policy that shares among *flows* shares among applications or among tenants, as the operator set it: `call.flow`
names the subject, `call.flow_weight` its weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from scheduler.cost import CostModel
from scheduler.types import CallKey

MAX_PRIORITY = 2**53

ALWAYS = 2**53
"""More tokens than any call makes."""


class Need(StrEnum):
    """What a policy must be told, or able to do, to be what it says it is.

    Nothing here preempts a call that runs; under a policy that needs preemption decisions come between calls instead.
    """

    PREDICTIONS = "predictions"
    TRUE_LENGTHS = "true lengths"
    DEADLINES = "deadlines"
    PERIODS = "periods"
    WEIGHTS = "weights"
    PREFIXES = "prefixes"
    DEPENDENCIES = "dependencies"
    PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationFacts:
    """What is known of an application at one moment.

    `sequence` numbers applications in order of arrival. Costs are in the unit of the core's cost function:
    `predicted_cost` of the whole (the true cost once it has ended), `remaining_cost` of what has not been served yet,
    what runs counted as far as it has come. `start_tag` and `finish_tag` are virtual time. `deadline_s` is a moment
    on the scheduler's clock, `period_s` a length; both are infinite when nobody stated them. `calls` counts the calls
    that were revealed.
    """

    application_id: str
    sequence: int
    flow: str
    tenant: str = "default"
    application_type: str = "unknown"
    weight: float = 1.0
    flow_weight: float = 1.0
    tenant_weight: float = 1.0
    arrival_s: float = 0.0
    start_tag: float = 0.0
    finish_tag: float = 0.0
    predicted_cost: float = 0.0
    remaining_cost: float = 0.0
    deadline_s: float = inf
    period_s: float = inf
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is known of a call when it begins to wait.

    `ready_sequence` numbers calls in the order in which they first became ready (a call that was lost keeps its
    number) and is unique. `grants` says how often it was granted before and came back. `stage` is the number of calls
    on the longest chain before it, `after` the calls that it came directly after. Token counts are per sequence.
    `prefix` holds a hash for each leading block of the prompt, each hash covering all blocks before it.
    `true_output_tokens` is known in simulations only.
    """

    key: CallKey
    application: ApplicationFacts
    ready_sequence: int
    ready_s: float = 0.0
    stage: int = 0
    after: tuple[str, ...] = ()
    prompt_tokens: int = 1
    predicted_output_tokens: int = 1
    true_output_tokens: int | None = None
    sequences: int = 1
    prefix: tuple[int, ...] = ()
    grants: int = 0

    @property
    def flow(self) -> str:
        return self.application.flow

    @property
    def flow_weight(self) -> float:
        return self.application.flow_weight

    def predicted_cost(self, cost: CostModel) -> float:
        """What the call is predicted to cost under this cost function."""
        return cost(self.prompt_tokens, (self.predicted_output_tokens,) * self.sequences)


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that runs: each of its sequences has made `made_tokens` since the grant, and `kept_tokens` before it."""

    facts: CallFacts
    made_tokens: int
    kept_tokens: int = 0


class Policy(ABC):
    """One scheduling policy, made once when it is chosen. Facts it does not override do not concern it."""

    name: str
    summary: str
    paper: str
    needs: tuple[Need, ...] = ()
    shares_among_flows: bool = False
    """Whether it is fair among flows by itself; where these are tenants, it stands in place of the tenant level."""
    orders_by_tag: bool = False
    """Whether applications go in the order of their finish tags."""
    follows_service: bool = False
    """Whether service alone (progress of running calls) may change its head."""
    service_demotes: bool = False
    """Whether service can only move the flow that gets it further back, and nobody else."""
    service_adds_up: bool = False
    """Whether service matters to the order by its sum alone, however late or in how many reports it is told."""
    ages: bool = False
    """Whether time alone may change its head."""
    left_to_chance: bool = False
    """Whether a seed decides between equals, and not the order in which they came."""
    cost: CostModel | None = None
    """The cost function in which it wants applications measured; None takes KV token-time."""

    # ---- the question

    @abstractmethod
    def head(self) -> CallKey | None:
        """The call to run next, or None when none waits."""

    def rank(self, call: CallFacts) -> float | None:
        """Where a call stands in the order at present, whether it waits or runs; smaller first, ties by readiness.

        None, for a policy whose order is not a number a call.
        """
        return None

    def priority(self, call: CallFacts) -> int | None:
        """The rank as an integer in [0, MAX_PRIORITY], for the engine's own queue; None keeps the order of grants."""
        rank = self.rank(call)
        return None if rank is None else bounded_priority(rank)

    def preferred_replica(self, key: CallKey) -> str | None:
        """Where this waiting call should run if there is room; None leaves it to the core."""
        return None

    def steady_tokens(self, first: ApplicationFacts, running: Sequence[RunningCall]) -> int:
        """How many tokens each sequence that runs may make with the head sure to stay who it is, at least 0.

        `first` is the application of the head, `running` are all calls that run. What they have made has been told,
        nothing else happens, and none makes more than was predicted of it. Too little may be said, never too much.
        """
        if not self.follows_service:
            return ALWAYS
        demotes_others = self.service_demotes and all(one.facts.flow != first.flow for one in running)
        return ALWAYS if demotes_others else 0

    def tenant_count(self) -> int:
        """Tenants among whom it shares at present."""
        return 1

    # ---- the queue

    @abstractmethod
    def add(self, call: CallFacts) -> None:
        """A call began to wait."""

    @abstractmethod
    def remove(self, key: CallKey) -> None:
        """A call waits no more. Unknown keys are ignored."""

    # ---- facts

    def advance(self, now_s: float) -> None:  # noqa: B027 - most policies do not ask what time it is
        """It is this late, in seconds on the scheduler's clock; never earlier than before."""

    def application_arrived(self, application: ApplicationFacts) -> None:  # noqa: B027
        """An application is in the system."""

    def application_changed(self, application: ApplicationFacts) -> None:  # noqa: B027
        """Its finish tag or a cost was corrected, or some of it was served. Strangers are ignored."""

    def application_left(self, application: ApplicationFacts) -> None:  # noqa: B027
        """An application has ended. Strangers are ignored."""

    def granted(self, call: CallFacts, replica_id: str) -> None:  # noqa: B027
        """A call was given to a replica."""

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:  # noqa: B027
        """A running call has made this many tokens since its grant, sequence by sequence."""

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:  # noqa: B027
        """A granted call holds its replica no more; `finished` says whether it has its whole answer."""

    def served(self, service: float) -> None:  # noqa: B027
        """So much service was delivered by all replicas together, in the unit in which virtual time is counted."""

    def replica_left(self, replica_id: str) -> None:  # noqa: B027
        """A replica is gone, and what it had in memory with it; its calls have ended before."""

    def pool_changed(self, pool_tokens: int, sequences: int) -> None:  # noqa: B027
        """All replicas together have this many KV tokens and places for sequences."""


def bounded_priority(rank: float) -> int:
    """A rank as an engine priority, cut to [0, MAX_PRIORITY]."""
    return int(min(max(rank, 0.0), MAX_PRIORITY))
