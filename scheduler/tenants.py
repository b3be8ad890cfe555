"""The tenant level: tenants share by weight, and inside each of them a policy orders what is its own.

A tenant's applications compete for the tenant's share and nobody else's, so that many ids, many small applications or
one application cut into pieces gain a tenant nothing against others. It is a start-time account a tenant, over a GPS
reference of its own among tenants (virtual time V):

- A tenant's account A moves with what it is given, over its weight W: a call's predicted cost at its grant, what the
  call makes beyond that as it is reported, and at its end what it truly cost. A call that was lost costs nothing.
- A tenant that the reference has served in full and that asks for more (an application arrives, a call is revealed)
  has A moved up by what V passed meanwhile: nothing is saved up by asking for nothing. A correction of what was asked
  for before is no such request.
- The tenant stands in the order with F = A + (cost of its first application that is not granted yet)/W, smallest
  first; its first application is the one whose call the tenant's own policy names. Equal tags go in order of arrival.

While a tenant runs one application after another this is S = max(V, F_prev), F = S + C/W, as in weighted fair queueing
(Parekh and Gallager 1993). With one application a tenant F never moves by a grant, and the order is that of flat
Justitia. A tenant with work waiting gets its share by weight whatever others do, up to one longest application of
each (`tests/property/test_tenants.py`, `tests/theory/test_adversaries.py`).

A level that is chosen while the system runs starts all accounts at zero: shares are counted from there. A tenant's
policy is not told of `served`, which is what all tenants got.

Laws: V never falls; what a tenant asked for less what it was charged is what its applications have left to be charged;
a tenant is kept while it has an application or the reference has not served it in full.
A tenant that a fact concerns is put in its place when the head is asked for. All operations are O(log n), except that
`head` visits every waiting tenant, once a moment, under a policy that ages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.cost import memory_cost
from scheduler.finish_heap import FinishHeap
from scheduler.gps import ReferenceClock, ReferenceFinish
from scheduler.policies import create_policy
from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy, RunningCall
from scheduler.settings import CoreSettings, Flows
from scheduler.types import CallKey


@dataclass(slots=True)
class _Application:
    """What the level keeps of an application: how much of its cost was charged, and for each call that runs."""

    facts: ApplicationFacts
    charged: float
    charges: dict[CallKey, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Tenant:
    """One tenant: since V was `start` it has asked for work that costs `asked`, and was charged `charged` of it.

    A = start + charged/W. Costs are added up before they are divided, so that equal work has equal tags.
    """

    number: int
    weight: float
    policy: Policy
    start: float
    asked: float = 0.0
    charged: float = 0.0
    applications: int = 0

    @property
    def served_at(self) -> float:
        """The V at which the reference will have served all that it asked for."""
        return self.start + self.asked / self.weight

    def tag(self, application: _Application) -> float:
        """F: the account once all of this application is granted."""
        return self.start + (self.charged + application.facts.predicted_cost - application.charged) / self.weight


class TenantLevel(Policy):
    """Any policy, once for each tenant, under fair sharing among tenants."""

    paper = "Parekh and Gallager (1993)"

    def __init__(self, create: Callable[[], Policy]) -> None:
        pattern = create()
        self.name, self.summary, self.needs = pattern.name, pattern.summary, pattern.needs
        self.follows_service, self.service_demotes = pattern.follows_service, pattern.service_demotes
        self.service_adds_up = pattern.service_adds_up
        self.ages, self.cost, self.orders_by_tag = pattern.ages, pattern.cost, pattern.orders_by_tag
        self.left_to_chance = pattern.left_to_chance
        self._create = create
        self._count_cost = pattern.cost or memory_cost
        self._reference = ReferenceClock(0.0, course_points=2)  # nobody asks when V was where
        self._tenants: dict[str, _Tenant] = {}
        self._names: dict[int, str] = {}
        self._applications: dict[str, _Application] = {}
        self._waiting: FinishHeap[str] = FinishHeap()
        self._unplaced: set[str] = set()
        self._unanswered: dict[CallKey, float] = {}
        self._tenant_count = 0
        self._now_s = 0.0
        self._pool = (0, 0)

    # ---- the question

    def head(self) -> CallKey | None:
        while self._unplaced:
            self._place(self._unplaced.pop())
        tenant = self._waiting.peek()
        return None if tenant is None else self._tenants[tenant].policy.head()

    def rank(self, call: CallFacts) -> float | None:
        """A lone tenant's policy says it; beside others it is the tenant's tag with this call's application first."""
        if len(self._tenants) == 1:
            return self._tenants[call.application.tenant].policy.rank(call)
        tenant, application = self._tenants[call.application.tenant], self._applications[call.key.application_id]
        return tenant.tag(application)

    def steady_tokens(self, first: ApplicationFacts, running: Sequence[RunningCall]) -> int:
        """Until the head of any tenant that waits may change, and with it the tenant's tag."""
        of_tenant: dict[str, list[RunningCall]] = {}
        for one in running:
            of_tenant.setdefault(one.facts.application.tenant, []).append(one)
        return min(self._steady_tokens_of(name, of_tenant.get(name, ())) for name in self._waiting)

    def _steady_tokens_of(self, name: str, running: Sequence[RunningCall]) -> int:
        policy = self._tenants[name].policy
        key = policy.head()
        assert key is not None
        return policy.steady_tokens(self._applications[key.application_id].facts, running)

    def tenant_count(self) -> int:
        return len(self._tenants)

    def preferred_replica(self, key: CallKey) -> str | None:
        return self._tenants[self._applications[key.application_id].facts.tenant].policy.preferred_replica(key)

    # ---- the queue

    def add(self, call: CallFacts) -> None:
        application = self._applications[call.key.application_id]
        self._charge(application, -self._unanswered.pop(call.key, 0.0))  # it was lost: nothing of it is left
        self._policy_of(application).add(call)

    def remove(self, key: CallKey) -> None:
        application = self._applications.get(key.application_id)
        if application is not None:
            self._policy_of(application).remove(key)
            self._unplaced.add(application.facts.tenant)

    # ---- facts

    def advance(self, now_s: float) -> None:
        self._now_s = now_s
        self._unanswered.clear()  # a call that was lost has returned by now
        if self.ages:
            self._unplaced.update(self._waiting)

    def replica_left(self, replica_id: str) -> None:
        for name, tenant in self._tenants.items():
            tenant.policy.replica_left(replica_id)
            self._unplaced.add(name)

    def pool_changed(self, pool_tokens: int, sequences: int) -> None:
        self._pool = (pool_tokens, sequences)
        for name, tenant in self._tenants.items():
            tenant.policy.pool_changed(pool_tokens, sequences)
            self._unplaced.add(name)

    def served(self, service: float) -> None:
        self._forget(self._reference.advance(self._now_s, service))

    def application_arrived(self, application: ApplicationFacts) -> None:
        name = application.tenant
        tenant = self._tenants.get(name) or self._meet(name, application)
        self._start_anew_if_served(tenant)
        tenant.applications += 1
        served = application.predicted_cost - application.remaining_cost  # before this policy was chosen
        self._applications[application.application_id] = _Application(application, served)
        self._owe(tenant, application.remaining_cost)
        self._inner(tenant).application_arrived(application)

    def application_changed(self, application: ApplicationFacts) -> None:
        known = self._applications.get(application.application_id)
        if known is None:
            return
        tenant, before = self._tenants[application.tenant], known.facts
        if application.calls > before.calls:
            self._start_anew_if_served(tenant)
        known.facts = application
        if application.predicted_cost != before.predicted_cost:
            self._owe(tenant, application.predicted_cost - before.predicted_cost)
        self._inner(tenant).application_changed(application)
        self._unplaced.add(application.tenant)

    def application_left(self, application: ApplicationFacts) -> None:
        self.application_changed(application)
        known = self._applications.pop(application.application_id, None)
        if known is None:
            return
        tenant = self._tenants[application.tenant]
        tenant.charged += application.predicted_cost - known.charged
        tenant.applications -= 1
        self._inner(tenant).application_left(application)
        self._unplaced.add(application.tenant)
        if not self._applications:
            self._forget(self._reference.drain(self._now_s))
        if application.tenant in self._tenants and tenant.number not in self._reference:
            self._forget([ReferenceFinish(tenant.number, self._now_s)])

    def granted(self, call: CallFacts, replica_id: str) -> None:
        application = self._applications[call.key.application_id]
        self._charge_call(application, call, call.predicted_cost(self._count_cost))
        self._policy_of(application).granted(call, replica_id)

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        application = self._applications[call.key.application_id]
        self._charge_call(application, call, max(application.charges[call.key], self._cost_of(call, output_tokens)))
        self._policy_of(application).progressed(call, output_tokens)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        application = self._applications[call.key.application_id]
        cost = self._cost_of(call, output_tokens)
        self._charge_call(application, call, cost)
        del application.charges[call.key]
        if not finished:
            self._unanswered[call.key] = cost
        self._policy_of(application).ended(call, output_tokens, finished)

    # ---- inside

    def _meet(self, name: str, application: ApplicationFacts) -> _Tenant:
        self._tenant_count += 1
        policy = self._create()
        policy.advance(self._now_s)
        policy.pool_changed(*self._pool)
        tenant = _Tenant(self._tenant_count, application.tenant_weight, policy, self._reference.virtual_time)
        self._tenants[name] = tenant
        self._names[tenant.number] = name
        return tenant

    def _start_anew_if_served(self, tenant: _Tenant) -> None:
        """S = max(V, F_prev): what V passed while the tenant asked for nothing is gone."""
        tenant.start += max(0.0, self._reference.virtual_time - tenant.served_at)

    def _owe(self, tenant: _Tenant, cost: float) -> None:
        """The tenant asks for so much more (or less)."""
        tenant.asked += cost
        self._reference.place(tenant.number, tenant.served_at, tenant.weight)

    def _charge_call(self, application: _Application, call: CallFacts, cost: float) -> None:
        """Let this be what was charged for a call that runs."""
        self._charge(application, cost - application.charges.get(call.key, 0.0))
        application.charges[call.key] = cost

    def _charge(self, application: _Application, cost: float) -> None:
        application.charged += cost
        self._tenants[application.facts.tenant].charged += cost
        self._unplaced.add(application.facts.tenant)

    def _cost_of(self, call: CallFacts, output_tokens: tuple[int, ...]) -> float:
        """What a call has cost that made so much."""
        return self._count_cost(call.prompt_tokens, output_tokens) if any(output_tokens) else 0.0

    def _policy_of(self, application: _Application) -> Policy:
        return self._inner(self._tenants[application.facts.tenant])

    def _inner(self, tenant: _Tenant) -> Policy:
        """A tenant's policy, which knows what time it is."""
        tenant.policy.advance(self._now_s)
        return tenant.policy

    def _place(self, name: str) -> None:
        """Put a tenant where its first application belongs."""
        tenant = self._tenants.get(name)
        key = None if tenant is None else self._inner(tenant).head()
        if tenant is None or key is None:
            self._waiting.discard(name)
        else:
            first = self._applications[key.application_id]
            self._waiting.set(name, tenant.tag(first), first.facts.sequence)

    def _forget(self, finishes: list[ReferenceFinish]) -> None:
        """Forget tenants that the reference has served in full and that have no application."""
        for finish in finishes:
            name = self._names[finish.application]
            if not self._tenants[name].applications:
                del self._tenants[name], self._names[finish.application]


def choose_policy(name: str, settings: CoreSettings) -> Policy:
    """The policy that these settings ask for, under the tenant level unless it shares among tenants by itself.

    Raises ValueError for a name or an option that is not known (`scheduler.policies.create_policy`).
    """
    options = dict(settings.policy_options)
    policy = create_policy(name, options)
    shares_among_tenants = policy.shares_among_flows and settings.flows is Flows.TENANTS
    if shares_among_tenants or not settings.tenant_level:
        return policy
    return TenantLevel(lambda: create_policy(name, options))


def order_of(settings: CoreSettings) -> tuple[object, ...]:
    """What of the settings decides the order of calls, beside the policy's name."""
    return settings.policy_options, settings.flows, settings.tenant_level, settings.tenant_weights
