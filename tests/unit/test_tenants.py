"""The tenant level step by step: accounts, tags, and what is kept."""

from __future__ import annotations

import pytest

from scheduler.actions import Grant
from scheduler.events import (
    ApplicationCancelled,
    CallAdopted,
    CallCancelled,
    CallLost,
    CallRevealed,
    CallStopped,
    ProgressReported,
    SettingsChanged,
)
from scheduler.policies import POLICIES
from scheduler.policies.contract import ApplicationFacts, CallFacts
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.justitia import Justitia
from scheduler.settings import CoreSettings, Flows
from scheduler.tenants import TenantLevel, choose_policy, order_of
from scheduler.types import CallKey, CallSpec
from tests.crowd import run_crowd
from tests.scheduling import Bench, call, clean_state


def level_of(bench: Bench) -> TenantLevel:
    assert isinstance(bench.core.policy, TenantLevel)
    return bench.core.policy


def account(bench: Bench, tenant: str) -> float:
    """A of a tenant."""
    known = level_of(bench)._tenants[tenant]
    return known.start + known.charged / known.weight


def balanced(bench: Bench) -> bool:
    """What a tenant asked for less what it was charged is what its applications have left to be charged."""
    level = level_of(bench)
    left = dict.fromkeys(level._tenants, 0.0)
    for application in level._applications.values():
        left[application.facts.tenant] += application.facts.predicted_cost - application.charged
        assert len(application.charges) <= len(bench.core.leases)
    return all(known.asked - known.charged == left[name] for name, known in level._tenants.items())


def order(bench: Bench) -> list[str]:
    """Applications in the order in which single grants take them."""
    granted = []
    while grants := bench.offer():
        granted.append(grants[0].application_id)
    return granted


# ---- the order


def test_a_tenant_with_many_applications_has_a_share_and_not_as_many_shares() -> None:
    bench = Bench()
    bench.join()
    for number in range(3):
        bench.arrive_ready(f"many{number}", call(), tenant="many")
    bench.arrive_ready("few", call(), tenant="few")
    assert order(bench) == ["many0", "few", "many1", "many2"]


def test_weights_are_the_tenants() -> None:
    """A tenant of weight 2 has two applications granted for one of the other's; an application's own weight orders it
    among its tenant's only."""
    bench = Bench(tenant_weights=(("heavy", 2.0),))
    bench.join()
    for number in range(4):
        bench.arrive_ready(f"h{number}", call(), tenant="heavy")
    for number in range(2):
        bench.arrive_ready(f"l{number}", call(), tenant="light", weight=[1.0, 100.0][number])
    assert order(bench) == ["h0", "h1", "l1", "h2", "h3", "l0"]


def test_an_application_that_has_begun_keeps_its_tag() -> None:
    bench = Bench()
    bench.join()
    bench.arrive_ready("a", *[call(str(number), p=10, d=10) for number in range(3)], tenant="s")
    bench.arrive_ready("b", *[call(str(number), p=10, d=10) for number in range(3)], tenant="t")
    assert order(bench) == ["a", "a", "a", "b", "b", "b"]


def test_a_tenants_own_order_is_its_policys() -> None:
    bench = Bench("fcfs")
    bench.join()
    bench.arrive_ready("large", call(d=30), tenant="s")
    bench.arrive_ready("small", call(d=2), tenant="s")
    bench.arrive_ready("other", call(d=20), tenant="t")
    assert order(bench) == ["other", "large", "small"]


def test_the_preferred_replica_and_the_priority_of_a_lone_tenant_are_its_policys() -> None:
    class Choosy(Fcfs):
        def preferred_replica(self, key: CallKey) -> str | None:
            return f"for {key.call_id}"

    level = TenantLevel(Choosy)
    level.application_arrived(facts("a", 1, "s", 50.0))
    level.add(waiting("a", 1, "s", 50.0))
    assert level.preferred_replica(CallKey("a", "c")) == "for c"
    assert level.priority(waiting("a", 1, "s", 50.0)) == 1
    level.application_arrived(facts("b", 2, "t", 70.0))
    level.add(waiting("b", 2, "t", 70.0))
    assert level.priority(waiting("a", 1, "s", 50.0)) == 50
    assert level.priority(waiting("b", 2, "t", 70.0)) == 70
    assert level.rank(waiting("b", 2, "t", 70.0)) == 70.0
    assert level.tenant_count() == 2


def test_a_policy_without_the_level_knows_no_tenants_but_one() -> None:
    policy = Justitia()
    for number, tenant in enumerate(("s", "t")):
        policy.add(waiting(f"a{number}", number, tenant, 50.0))
    assert policy.tenant_count() == 1


def facts(name: str, sequence: int, tenant: str, cost: float) -> ApplicationFacts:
    return ApplicationFacts(
        application_id=name, sequence=sequence, flow=name, tenant=tenant, predicted_cost=cost, remaining_cost=cost
    )


def waiting(name: str, ready: int, tenant: str, cost: float) -> CallFacts:
    return CallFacts(key=CallKey(name, "c"), application=facts(name, ready, tenant, cost), ready_sequence=ready)


def test_time_alone_may_change_whose_turn_it_is() -> None:
    """Under a policy that ages, each tenant's first application may become another one."""

    class Aging(Fcfs):
        ages = True
        late = False

        def advance(self, now_s: float) -> None:
            self.late = now_s > 10

        def head(self) -> CallKey | None:
            keys = sorted(self._waiting)
            return None if not keys else keys[-1 if self.late else 0]

    level = TenantLevel(Aging)
    for number, (name, tenant, cost) in enumerate([("a", "s", 50.0), ("b", "s", 90.0), ("c", "t", 70.0)]):
        level.application_arrived(facts(name, number, tenant, cost))
        level.add(waiting(name, number, tenant, cost))
    assert level.head() == CallKey("a", "c")
    level.advance(11.0)
    assert level.head() == CallKey("c", "c")


def test_equal_tenants_and_strangers() -> None:
    level = TenantLevel(Justitia)
    level.remove(CallKey("nobody", "c"))
    level.application_changed(facts("nobody", 1, "s", 1.0))
    level.application_left(facts("nobody", 1, "s", 1.0))
    assert level.head() is None
    for number in (3, 1, 2):
        level.application_arrived(facts(f"a{number}", number, f"t{number}", 5.0))
        level.add(waiting(f"a{number}", number, f"t{number}", 5.0))
    taken = []
    while (key := level.head()) is not None:
        taken.append(key.application_id)
        level.remove(key)
    assert taken == ["a1", "a2", "a3"]


# ---- the account


def running_call() -> tuple[Bench, Grant]:
    """A call of ten prompt tokens, predicted to make ten (155 token-iterations), beside one that waits."""
    bench = Bench()
    bench.join()
    bench.arrive_ready("a", call("1"), call("2"), tenant="t")
    (grant,) = bench.offer()
    bench.start(grant)
    return bench, grant


def progress(bench: Bench, grant: Grant, made: int) -> None:
    bench.handle(ProgressReported("r", 0.0, 1, 0, ((grant.lease_id, (made,)),)))


@pytest.mark.parametrize(("made", "cost"), [(5, 155), (10, 155), (20, 410)])
def test_what_a_call_makes_beyond_its_prediction_is_charged_as_it_is_seen(made: int, cost: float) -> None:
    bench, grant = running_call()
    progress(bench, grant, made)
    assert account(bench, "t") == cost
    bench.finish(grant, 10, (12,))
    assert account(bench, "t") == 198
    assert balanced(bench)


def test_an_application_that_ends_is_settled_at_its_true_cost() -> None:
    """The prompt had one token more than was said."""
    bench = Bench()
    bench.join()
    bench.arrive_ready("a", call(), tenant="t")
    bench.arrive_ready("b", call(), tenant="t")
    (grant,) = bench.offer()
    bench.finish(grant, 11, (10,))
    assert account(bench, "t") == 165
    assert balanced(bench)


def test_a_call_that_was_lost_costs_nothing_until_it_runs_again() -> None:
    bench, grant = running_call()
    progress(bench, grant, 7)
    bench.handle(CallLost(grant.lease_id, "the connection broke"))
    assert account(bench, "t") == 0
    assert [again.call_id for again in bench.offer()] == ["1"]
    assert account(bench, "t") == 155
    assert balanced(bench)


def test_what_was_made_of_a_cancelled_call_stays_charged() -> None:
    bench, grant = running_call()
    bench.handle(CallCancelled("a", "1", "the client left"))
    bench.handle(CallStopped(grant.lease_id, 10, (4,)))
    assert account(bench, "t") == 50
    assert balanced(bench)


def test_a_grant_that_was_taken_back_unused_costs_nothing() -> None:
    bench = Bench()
    bench.join()
    bench.arrive_ready("a", call(), tenant="t")
    bench.arrive_ready("b", call(), tenant="t")
    bench.offer()
    bench.handle(ApplicationCancelled("a", "the client left"))
    assert account(bench, "t") == 0
    assert balanced(bench)


def test_an_adopted_call_that_never_waited_is_charged() -> None:
    """It counts at once against what else its tenant has waiting."""
    bench = Bench()
    bench.join()
    bench.arrive("running", call("1", p=10, d=40), tenant="s")
    bench.arrive_ready("a", call(), tenant="s")
    bench.arrive_ready("b", call(), tenant="t")
    assert bench.core.policy.head() == CallKey("a", "c")
    bench.handle(CallAdopted("running", "1", "r", "0-1"))
    assert bench.core.policy.head() == CallKey("b", "c")
    assert balanced(bench)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["justitia", "fcfs"])
def test_asked_less_charged_is_what_is_left(policy: str, seed: int) -> None:
    """In a random crowd with losses, at every grant."""
    checks = []
    bench = run_crowd(policy, seed, lambda bench, grant: checks.append(balanced(bench)))
    assert all(checks)
    assert len(checks) > 20
    assert level_of(bench)._tenants == {}


# ---- asking for nothing saves up nothing


@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e3])
def test_an_open_application_that_idles_saves_up_nothing(weight: float) -> None:
    """Whatever its own weight, what it reveals after its tenant was served in full starts at the present V."""
    bench, busy = Bench(), call(p=10, d=50)
    bench.join()
    bench.arrive_ready("idle", call("first"), tenant="s", weight=weight, open=True)
    bench.finish(bench.offer()[0])
    for number in range(20):
        bench.arrive_ready(f"b{number}", busy, tenant="t")
        bench.finish(bench.offer()[0], 10, (50,))
        bench.serve(1775)
        bench.arrive_ready(f"next{number}", busy, tenant="t")
    reveal(bench, "idle", call("second", p=10, d=60))
    assert account(bench, "s") == level_of(bench)._reference.virtual_time
    assert order(bench)[0] != "idle"
    assert balanced(bench)


def reveal(bench: Bench, name: str, spec: CallSpec) -> None:
    bench.handle(CallRevealed(name, spec))
    bench.ready(name, spec)


def test_a_tenant_that_the_reference_has_not_served_in_full_is_owed_the_rest() -> None:
    """It comes back before that: F goes on from where it was, not from V."""
    bench = Bench()
    bench.join()
    bench.arrive_ready("stays", call(p=10, d=60), tenant="s")
    bench.arrive_ready("a", call(), tenant="t")
    (grant,) = bench.offer()
    bench.finish(grant)
    bench.serve(100)
    bench.arrive_ready("b", call(), tenant="t")
    assert account(bench, "t") == 155
    assert level_of(bench)._reference.virtual_time == 50


def test_a_tenant_that_was_forgotten_starts_at_v() -> None:
    bench = Bench()
    bench.join()
    bench.arrive_ready("stays", call(p=10, d=60), tenant="s")
    bench.arrive_ready("a", call(), tenant="t")
    bench.finish(bench.offer()[0])
    bench.serve(1000)
    assert list(level_of(bench)._tenants) == ["s"]
    bench.arrive_ready("b", call(), tenant="t")
    assert account(bench, "t") == level_of(bench)._reference.virtual_time == 845


# ---- what is kept


def test_cancelled_calls_of_an_open_application_leave_nothing_behind() -> None:
    bench = Bench(check_each=False)
    bench.join()
    bench.arrive("open", open=True, tenant="t")
    for number in range(300):
        reveal(bench, "open", call(str(number)))
        (grant,) = bench.offer()
        bench.start(grant)
        bench.handle(CallCancelled("open", str(number), "the client left"))
        bench.handle(CallStopped(grant.lease_id, 10, (3,)))
    level = level_of(bench)
    assert level._applications["open"].charges == {}
    assert len(level._unanswered) <= 1
    assert account(bench, "t") >= 300 * 36
    assert balanced(bench)


def test_the_pool_is_told_to_tenants_that_are_there_and_to_those_that_come() -> None:
    told = []

    class Listening(Fcfs):
        def pool_changed(self, pool_tokens: int, sequences: int) -> None:
            told.append((pool_tokens, sequences))

    level = TenantLevel(Listening)
    level.application_arrived(facts("a", 1, "s", 1.0))
    level.pool_changed(100, 4)
    level.application_arrived(facts("b", 2, "t", 1.0))
    assert told == [(0, 0), (100, 4), (100, 4)]


# ---- how it is chosen


@pytest.mark.parametrize("before", [CoreSettings(tenant_level=False), CoreSettings()])
def test_it_takes_over_while_calls_wait_and_run(before: CoreSettings) -> None:
    """Accounts start at zero, with what runs charged; shares are counted from there, and at the end all is settled."""
    bench = Bench(tenant_level=before.tenant_level)
    bench.join(max_sequences=2)
    for number in range(4):
        bench.arrive_ready(f"a{number}", call("1"), call("2"), tenant=f"t{number % 2}")
    running = bench.offer(grants=2)
    bench.start(*running)
    progress(bench, running[0], 4)
    bench.handle(SettingsChanged(CoreSettings(tenant_weights=(("t0", 2.0),)), "justitia"))
    assert balanced(bench)
    for _ in range(8):
        bench.finish(running.pop(0))
        assert not bench.core.applications or balanced(bench)
        running += bench.offer(grants=2)
    clean_state(bench.core)
    assert level_of(bench)._tenants == {}


def test_it_says_of_itself_what_its_policy_does() -> None:
    class Lottery(Fcfs):
        left_to_chance = ages = orders_by_tag = True

    level = TenantLevel(Lottery)
    assert (level.left_to_chance, level.ages, level.orders_by_tag) == (True, True, True)
    assert (level.name, level.summary, level.needs, level.cost) == (Fcfs.name, Fcfs.summary, Fcfs.needs, None)


def test_it_stands_above_all_but_what_shares_among_tenants_unless_it_is_switched_off() -> None:
    assert isinstance(choose_policy("fcfs", CoreSettings()), TenantLevel)
    assert isinstance(choose_policy("fcfs", CoreSettings(tenant_level=False)), Fcfs)
    sharing = next(name for name in POLICIES if POLICIES[name].shares_among_flows)
    assert isinstance(choose_policy(sharing, CoreSettings()), TenantLevel)
    assert type(choose_policy(sharing, CoreSettings(flows=Flows.TENANTS))) is POLICIES[sharing]
    with pytest.raises(ValueError, match="no policy 'lifo'"):
        choose_policy("lifo", CoreSettings())


def test_settings_that_change_the_order_are_told_apart() -> None:
    assert order_of(CoreSettings()) == order_of(CoreSettings(watermark=0.2))
    assert order_of(CoreSettings()) != order_of(CoreSettings(tenant_weights=(("t", 2.0),)))
    assert order_of(CoreSettings()) != order_of(CoreSettings(tenant_level=False))
