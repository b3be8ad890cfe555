"""What an ingress holds, and what it gives back to a scheduler that was started anew."""

from __future__ import annotations

import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cluster.held_calls import HeldCalls
from scheduler import invariants
from scheduler.actions import Action, Grant, PublishCallEnd, PublishTag, Refusal, Reject
from scheduler.core import SchedulerCore
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallAdopted,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallLost,
    CallReady,
    CallRevealed,
    CallStarted,
    CapacityOffered,
    Event,
    ProgressReported,
    ReplicaJoined,
    Resumption,
)
from scheduler.lifecycle import CallState
from scheduler.policies import create_policy
from scheduler.settings import CoreSettings
from scheduler.types import CallKey
from tests.scheduling import application, call, limits

FROM_INGRESS = (ApplicationArrived, ApplicationCancelled, ApplicationClosed, CallRevealed, CallReady, CallCancelled)


class World:
    """One core, one ingress that holds what it introduced, and two replicas."""

    def __init__(self) -> None:
        self.core = SchedulerCore(CoreSettings(), create_policy("justitia"), epoch=1)
        self.held = HeldCalls()
        self.now_s = 0.0
        self.grants: dict[str, Grant] = {}
        self.ended: set[CallKey] = set()
        for replica_id in ("r", "s"):
            self.handle(ReplicaJoined(replica_id, limits(blocks=64)))

    def handle(self, event: Event) -> list[Action]:
        self.now_s += 0.5
        if isinstance(event, FROM_INGRESS):
            self.held.note_event(self.now_s, event)
        actions = self.core.handle(self.now_s, event)
        for action in actions:
            self.held.note_action(action)
            if isinstance(action, Grant):
                self.grants[action.lease_id] = action
            if isinstance(action, PublishCallEnd):
                self.ended.add(CallKey(action.application_id, action.call_id))
        return actions

    def successor(self) -> SchedulerCore:
        core = SchedulerCore(CoreSettings(), create_policy("justitia"), epoch=2, virtual_time=self.core.virtual_time)
        for replica_id in ("r", "s"):
            core.handle(0.0, ReplicaJoined(replica_id, limits(blocks=64)))
        for event in self.held.reintroduction(self.now_s):
            core.handle(0.0, event)
            invariants.check(core)
        return core


def live(core: SchedulerCore) -> dict[CallKey, CallState]:
    """Calls that have not ended; one that is being stopped has, for whoever waits."""
    return {
        call_.key: call_.state
        for application_ in core.applications.values()
        for call_ in application_.calls.values()
        if not call_.ended and call_.state is not CallState.STOPPING
    }


def random_life(chance: random.Random, world: World) -> None:
    """Arrivals, readiness, grants, ends, losses and cancellations in any order."""
    core = world.core
    for step in range(chance.randrange(5, 60)):
        calls = [c for a in core.applications.values() for c in a.calls.values()]
        leases = list(core.leases)
        some_call = chance.choice(calls) if calls else None
        some_lease = chance.choice(leases) if leases else "none"
        name = f"a{step}"
        dag = [
            call("c0", 10, 5),
            call("c1", 12, 5, after=["c0"]),
            call("c2", 8, 9),
            call("c3", 3, 3, after=["c1", "c2"]),
        ]
        events: list[Event] = [
            ApplicationArrived(application(name, *dag[: chance.randrange(1, 5)], weight=chance.choice([1.0, 2.0]))),
            CallRevealed("open", call(f"o{step}", 9, 9), application("open", open=True)),
            CapacityOffered(chance.choice("rs"), chance.randrange(1, 4)),
            ProgressReported("r", chance.randrange(200), 1, 0),
            CallStarted(some_lease),
            CallFinished(some_lease, chance.randrange(1, 30), (chance.randrange(1, 20),)),
            CallLost(some_lease, "lost"),
        ]
        if some_call is not None:
            ready = CallReady(*some_call.key, some_call.prompt_tokens + chance.randrange(3), chance.randrange(1, 9))
            events += [ready] * 6
            events.append(CallCancelled(*some_call.key, "gone"))
            if chance.random() < 0.1:
                events.append(ApplicationCancelled(some_call.key.application_id, "gone"))
        event = chance.choice(events)
        world.handle(event)
        if isinstance(event, CallLost) and event.lease_id in world.grants:
            world.held.lose_grant(world.grants[event.lease_id])  # the stream of its answer broke


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_fresh_core_gets_back_what_had_not_ended_in_the_same_order(seed: int) -> None:
    world = World()
    random_life(random.Random(seed), world)
    before, tags = live(world.core), _tags(world.core)
    core = world.successor()
    after = live(core)
    assert set(after) == set(before)
    assert not set(after) & world.ended
    for key, state in before.items():
        if state in (CallState.GRANTED, CallState.RUNNING):
            assert after[key] is CallState.RUNNING
        elif state is CallState.READY:
            assert after[key] is CallState.READY
    tags_after = _tags(core)
    # An open application that the reference has served in full begins anew with whatever it reveals.
    served = {"open"} if tags.get("open", 0.0) <= world.core.virtual_time else set()
    names = [name for name in tags if name in tags_after and name not in served]
    assert sorted(names, key=lambda name: tags[name]) == sorted(names, key=lambda name: tags_after[name])
    _never_granted_twice(core, {key for key, state in after.items() if state is CallState.RUNNING})


def _tags(core: SchedulerCore) -> dict[str, float]:
    """Finish tags, to the precision that sums in another order leave."""
    return {name: round(application_.finish_tag, 6) for name, application_ in core.applications.items()}


def _never_granted_twice(core: SchedulerCore, adopted: set[CallKey]) -> None:
    for _ in range(30):
        for replica_id in ("r", "s"):
            for action in core.handle(1.0, CapacityOffered(replica_id, 50)):
                if isinstance(action, Grant):
                    assert CallKey(action.application_id, action.call_id) not in adopted
                    core.handle(1.0, CallFinished(action.lease_id, 1, (1,)))


def introduced(world: World) -> list[str]:
    return [type(event).__name__ for event in world.held.reintroduction(world.now_s)]


def granted(world: World) -> Grant:
    world.handle(ApplicationArrived(application("a", call("c"), call("d", after=["c"]))))
    world.handle(CallReady("a", "c", 11, 12))
    (grant,) = [action for action in world.handle(CapacityOffered("r", 1)) if isinstance(action, Grant)]
    return grant


def test_a_call_that_runs_is_adopted_before_it_is_called_ready() -> None:
    world = World()
    granted(world)
    assert introduced(world) == ["ApplicationArrived", "CallAdopted", "CallReady"]


def test_a_call_whose_replica_is_gone_waits_again() -> None:
    world = World()
    granted(world)
    core = SchedulerCore(CoreSettings(), create_policy("justitia"), epoch=2)
    for event in world.held.reintroduction(world.now_s):
        core.handle(0.0, event)
    assert live(core)[CallKey("a", "c")] is CallState.READY


def test_the_numbers_that_were_stated_last_are_given_back() -> None:
    world = World()
    granted(world)
    arrived = world.held.reintroduction(world.now_s)[0]
    assert isinstance(arrived, ApplicationArrived)
    (first, second) = arrived.application.calls
    assert (first.prompt_tokens, first.predicted_output_tokens) == (11, 12)
    assert second.after == ("c",)
    assert arrived.resumes is not None
    assert arrived.resumes.age_s == world.now_s - 1.5


def test_an_ended_call_is_no_dependency_any_more_and_its_true_cost_is_remembered() -> None:
    world = World()
    grant = granted(world)
    world.handle(CallFinished(grant.lease_id, 10, (2, 3)))
    arrived = world.held.reintroduction(world.now_s)[0]
    assert isinstance(arrived, ApplicationArrived)
    assert [spec.after for spec in arrived.application.calls] == [()]
    assert arrived.resumes is not None
    assert arrived.resumes.ended_cost == 2 * 10 + 3 + 3 * 10 + 6


def test_a_cancellation_whose_word_was_lost_is_told_again() -> None:
    world = World()
    granted(world)
    world.held.note_event(9.0, ApplicationCancelled("a", "gone"))
    core = world.successor()
    assert core.applications == {}
    assert introduced(world) == ["ApplicationArrived", "ApplicationCancelled"]


def test_a_cancelled_call_is_adopted_and_stopped_and_never_ready_again() -> None:
    world = World()
    granted(world)
    world.held.note_event(9.0, CallCancelled("a", "c", "gone"))
    assert introduced(world) == ["ApplicationArrived", "CallAdopted", "CallCancelled"]
    assert world.successor().applications["a"].calls["c"].state is CallState.STOPPING


def test_an_application_whose_tag_was_told_to_another_ingress_begins_at_the_present() -> None:
    held = HeldCalls()
    held.note_event(1.0, CallRevealed("open", call("c"), application("open", open=True)))
    (arrived, revealed) = held.reintroduction(2.0)
    assert isinstance(arrived, ApplicationArrived)
    assert isinstance(revealed, CallRevealed)
    assert arrived.resumes is None
    held.note_action(PublishTag("open", 7.0, 9.0, 2.0, "arrival"))
    arrived = held.reintroduction(2.0)[0]
    assert isinstance(arrived, ApplicationArrived)
    assert arrived.resumes is not None
    assert arrived.resumes.start_tag == 7.0


def test_a_shared_application_that_another_ingress_gave_back_first_stays_held() -> None:
    held = HeldCalls()
    held.note_event(1.0, CallRevealed("open", call("c"), application("open", open=True)))
    held.note_event(1.0, ApplicationArrived(application("mine", call("c"))))
    for name in ("open", "mine"):
        held.note_action(Reject(name, None, Refusal.DUPLICATE_ID, "is already running"))
    assert list(held.applications) == ["open"]


def test_an_open_application_keeps_its_tag_age_and_cost_between_two_calls_until_it_has_ended() -> None:
    world = World()
    world.handle(CallRevealed("open", call("c"), application("open", open=True)))
    arrival_s = world.now_s
    world.handle(CallReady("open", "c", 10, 10))
    (grant,) = [action for action in world.handle(CapacityOffered("r", 1)) if isinstance(action, Grant)]
    world.handle(CallFinished(grant.lease_id, 10, (4,)))
    (arrived,) = world.held.reintroduction(world.now_s)
    assert isinstance(arrived, ApplicationArrived)
    assert arrived.resumes == Resumption(0.0, world.now_s - arrival_s, 10 * 4 + 4 * 5 / 2)
    assert _tags(world.successor()) == _tags(world.core) != {}
    world.handle(ApplicationClosed("open"))
    assert world.held.applications == {}


def test_an_open_application_that_others_are_told_of_is_dropped_with_its_last_call() -> None:
    for refused_first in (True, False):
        held = HeldCalls()
        held.note_event(1.0, CallRevealed("open", call("c"), application("open", open=True)))
        held.note_action(PublishTag("open", 7.0, 9.0, 2.0, "arrival"))
        ends: list[Action] = [
            Reject("open", None, Refusal.DUPLICATE_ID, "is already running"),
            PublishCallEnd("open", "c", "finished", "", 1, (1,)),
        ]
        for action in ends if refused_first else reversed(ends):
            held.note_action(action)
        assert held.applications == {}


def test_a_call_that_opened_the_application_anew_outlives_the_word_of_its_first_end() -> None:
    world = World()
    opens = application("open", open=True)
    world.handle(CallRevealed("open", call("c"), opens))
    world.handle(CallCancelled("open", "c", "gone"))
    actions = world.core.handle(world.now_s, ApplicationClosed("open"))
    world.held.note_event(world.now_s, CallRevealed("open", call("d"), opens))
    for action in actions:
        world.held.note_action(action)
    arrived, revealed = world.held.reintroduction(world.now_s)
    assert isinstance(arrived, ApplicationArrived)
    assert (arrived.resumes, arrived.application.open) == (None, True)
    assert revealed == CallRevealed("open", call("d"))


def test_giving_everything_up_cancels_what_is_held_and_leaves_open_applications_to_others() -> None:
    held = HeldCalls()
    for name in ("c", "d"):
        held.note_event(1.0, CallRevealed("open", call(name), application("open", open=True)))
    for name in ("a", "b"):
        held.note_event(1.0, ApplicationArrived(application(name, call("c"))))
    held.note_event(2.0, CallCancelled("open", "d", "gone"))
    held.note_event(2.0, ApplicationCancelled("b", "gone"))
    events = held.cancellations("why")
    assert events == [CallCancelled("open", "c", "why"), ApplicationCancelled("a", "why")]
    for event in events:
        held.note_event(3.0, event)
    assert held.cancellations("why") == []


def test_nothing_is_held_of_what_is_over() -> None:
    held = HeldCalls()
    held.note_event(1.0, CallRevealed("open", call("c"), application("open", open=True)))
    held.note_event(1.0, CallRevealed("open", call("d"), application("open", open=True)))
    held.note_event(1.0, ApplicationClosed("open"))
    held.note_action(Reject("open", "c", Refusal.BUSY, "full"))
    held.note_action(PublishCallEnd("open", "d", "finished", "", 1, (1,)))
    assert held.applications == {}


def test_a_lost_grant_is_forgotten_unless_a_later_one_came() -> None:
    world = World()
    first = granted(world)
    later = Grant("s", "a", "c", "1-9", 1, 0)
    world.held.note_action(later)
    world.held.lose_grant(first)
    assert CallAdopted("a", "c", "s", "1-9") in world.held.reintroduction(9.0)
    world.held.lose_grant(later)
    assert introduced(world) == ["ApplicationArrived", "CallReady"]
    world.held.note_event(9.0, CallFailed("1-9", "an event that concerns no name"))
