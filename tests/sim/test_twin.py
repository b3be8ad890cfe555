"""Recorded runs: the same orders come out again, and the recorded traffic under the same policy ends as it did."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.actions import Action, Grant
from scheduler.event_log import LogHeader, event_to_json
from scheduler.events import (
    ApplicationArrived,
    ApplicationCancelled,
    ApplicationClosed,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallReady,
    CallRevealed,
    CallStarted,
    CapacityOffered,
    Event,
    ProgressReported,
    ReplicaJoined,
    Resumption,
)
from scheduler.sim.engine import EngineProfile
from scheduler.sim.simulation import Simulation, SimulationResult, SimulationSettings
from scheduler.sim.twin import THOUGHT_S, LogError, Recording, Replay, workload_from_log
from scheduler.sim.workload import TraceApplication, TraceCall, read_workload, write_application
from tests.scheduling import Bench, application, call, limits
from tests.sim.stepper import Stepper
from tests.sim.test_simulation import CHUNKED, FAST, SMALL, crowd, finishes, run


def thoughtful(seed: int, count: int = 20) -> list[TraceApplication]:
    """A crowd in which every other call is thought about."""
    rng = random.Random(seed)

    def think(one: TraceCall) -> TraceCall:
        return dataclasses.replace(one, delay_s=rng.choice([0.0, round(rng.uniform(0.1, 3.0), 3)]))

    return [dataclasses.replace(one, calls=tuple(map(think, one.calls))) for one in crowd(seed, count)]


def record(
    workload: Sequence[TraceApplication], policy: str = "justitia", engines: Sequence[EngineProfile] = (SMALL,)
) -> tuple[list[str], list[list[Action]], SimulationResult]:
    """A simulated run as a live one would be logged: the lines, the actions and the results."""
    chosen = SimulationSettings(policy=policy, engines=tuple(engines))
    lines = [LogHeader(chosen.core, policy, 1, 0.0).to_json() + "\n"]
    actions: list[list[Action]] = []

    def hear(now_s: float, event: Event, ordered: Sequence[Action]) -> None:
        lines.append(event_to_json(now_s, event) + "\n")
        actions.append(list(ordered))

    return lines, actions, Simulation(workload, chosen, hear=hear).run()


def rerun(
    workload: Sequence[TraceApplication], policy: str = "justitia", engines: Sequence[EngineProfile] = (SMALL,)
) -> dict[str, float]:
    return finishes(run(Simulation, workload, policy, engines))


# ---- thoughts


def chain(delay_s: float) -> TraceApplication:
    first = TraceCall(name="first", prompt_tokens=10, output_tokens=5)
    second = TraceCall(name="second", prompt_tokens=10, output_tokens=5, after=("first",), delay_s=delay_s)
    return TraceApplication(application_id="a", arrival_s=1.0, calls=(first, second))


def test_a_thought_lasts_as_long_as_it_says() -> None:
    call_s = 5 * (0.02 + 0.001) + 10 * 0.0005
    for delay_s in (0.0, 0.001, 7.25):
        (one,) = run(Simulation, [chain(delay_s)]).applications
        assert one.completion_s == pytest.approx(2 * call_s + delay_s, abs=1e-9)


def test_a_thought_before_the_first_call_counts_from_the_arrival() -> None:
    lone = TraceCall(name="c", prompt_tokens=10, output_tokens=5, delay_s=2.0)
    (one,) = run(Simulation, [TraceApplication(application_id="a", arrival_s=1.0, calls=(lone,))]).applications
    assert one.finish_s == pytest.approx(3.0 + 5 * 0.021 + 0.005)


def test_no_bound_is_stated_for_what_thinks() -> None:
    thinking, other = run(Simulation, [chain(2.0)]), run(Simulation, [chain(0.0)])
    assert thinking.applications[0].bound_s is None
    assert other.applications[0].bound_s is not None
    assert thinking.bound_violations == 0


@given(st.integers(0, 10**6), st.sampled_from(["justitia", "vtc", "fcfs", "srtf"]), st.sampled_from([SMALL, CHUNKED]))
@settings(deadline=None, max_examples=25)
def test_jumps_see_thoughts_as_single_steps_do(seed: int, policy: str, profile: EngineProfile) -> None:
    workload = thoughtful(seed, 12)
    jumped, stepped = (run(kind, workload, policy, [profile]) for kind in (Simulation, Stepper))
    assert finishes(jumped) == finishes(stepped)
    assert len(jumped.applications) == 12


def test_busy_engines_stop_for_a_thought() -> None:
    """Two long calls keep two engines busy; what fits only the one that it was not thought on starts there at once."""
    small = dataclasses.replace(SMALL, usable_blocks=18, max_model_len=72)
    slow = dataclasses.replace(SMALL, base_s=0.03)
    second = TraceCall(name="second", prompt_tokens=60, output_tokens=1, after=("first",), delay_s=0.5)
    first = TraceCall(name="first", prompt_tokens=4, output_tokens=1)
    workload = [
        TraceApplication(application_id=name, arrival_s=0.0, calls=(long,))
        for name, long in (
            ("x", TraceCall(name="c", prompt_tokens=4, output_tokens=60)),
            ("y", TraceCall(name="c", prompt_tokens=4, output_tokens=100)),
        )
    ]
    workload.append(TraceApplication(application_id="z", arrival_s=0.01, calls=(first, second)))
    result = run(Simulation, workload, "justitia", [small, slow])
    ended = finishes(result)
    assert 0.5 < ended["z"] < 0.8
    assert ended["x"] > 1
    assert ended["y"] > 2


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=20)
def test_thoughts_are_written_and_read(seed: int) -> None:
    workload = thoughtful(seed, 8)
    assert [one.calls for one in read_workload(map(write_application, workload))] == [one.calls for one in workload]


# ---- replay


@pytest.mark.parametrize("policy", ["justitia", "vtc", "fcfs", "srtf", "lottery", "d2lpm"])
def test_the_same_orders_come_out(policy: str) -> None:
    lines, actions, result = record(thoughtful(3), policy, [SMALL, CHUNKED, FAST])
    replay = Replay(lines)
    assert [list(ordered) for _, _, ordered in replay.steps()] == actions
    assert replay.disagreements == []
    assert replay.events == len(lines) - 1
    assert replay.grants == result.calls + result.preemptions
    assert replay.core.applications == {}
    assert set(replay.limits) == {"r0", "r1", "r2"}


def test_a_run_with_preemptions_replays() -> None:
    lines, actions, result = record(crowd(0, 40, 1.0), "fcfs")
    assert result.preemptions > 0
    replay = Replay(lines)
    assert [list(ordered) for _, _, ordered in replay.steps()] == actions
    assert replay.disagreements == []


def tampered(lines: list[str], kind: str, old: str, new: str) -> list[str]:
    """The first event of a kind that has `old`, with `new` in its place."""
    place = next(n for n, line in enumerate(lines) if f'"event": "{kind}"' in line and old in line)
    return [*lines[:place], lines[place].replace(old, new), *lines[place + 1 :]]


def disagreements(lines: list[str]) -> list[str]:
    replay = Replay(lines)
    for _ in replay.steps():
        pass
    return replay.disagreements


def test_a_lease_that_was_never_granted_is_noticed() -> None:
    lines, _, _ = record(crowd(1), "fcfs")
    (what, *_) = disagreements(tampered(lines, "CallFinished", '"1-1"', '"1-999"'))
    assert what.endswith("CallFinished: lease 1-999 was never granted")
    assert what.startswith("line ")


def test_a_lease_of_another_replica_is_noticed() -> None:
    bench = Logged()
    bench.join("r")
    bench.join("q")
    bench.arrive_ready("a", call())
    (grant,) = bench.offer("q")
    bench.start(grant)
    bench.handle(ProgressReported("q", 1.0, 1, 16, ((grant.lease_id, (1,)),)))
    assert disagreements(bench.lines) == []
    (what,) = disagreements(tampered(bench.lines, "ProgressReported", '"q"', '"r"'))
    assert what.endswith(f"ProgressReported: r holds lease {grant.lease_id}, granted to q")


def test_another_order_is_noticed() -> None:
    """A log under another policy's name: its leases go to other calls, some to other replicas or to none."""
    lines, _, _ = record(crowd(2, 40, 1.0), "fcfs", [SMALL, FAST])
    header = LogHeader.from_json(lines[0])
    other = dataclasses.replace(header, policy="srtf").to_json()
    replay = Replay([other, *lines[1:]])
    try:
        for _ in replay.steps():
            pass
    except LogError:
        return
    assert replay.disagreements


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "line 1: not the beginning of an event log"),
        (["{}"], "line 1: not the beginning of an event log"),
        (['{"format": 1}'], "line 1: not the beginning of an event log"),
        (["text"], "line 1: not the beginning of an event log"),
    ],
)
def test_what_is_no_log_is_refused(lines: list[str], why: str) -> None:
    with pytest.raises(LogError, match=why):
        Replay(lines)


def test_a_wrong_line_is_named_and_a_cut_last_one_ignored() -> None:
    lines, _, _ = record(crowd(1, 5))
    whole = disagreements(lines)
    assert disagreements([*lines, lines[3][:20]]) == whole
    with pytest.raises(LogError, match="line 4: no event"):
        disagreements([*lines[:3], '{"event": "Nothing"}\n', *lines[3:]])
    with pytest.raises(LogError, match=r"line 3: no event"):
        disagreements([*lines[:2], lines[2][:20] + "\n"])


# ---- traffic


@pytest.mark.parametrize("policy", ["justitia", "vtc", "srtf"])
@pytest.mark.parametrize("engines", [(SMALL,), (SMALL, CHUNKED, FAST)], ids=["one", "three"])
def test_the_twin_ends_as_the_run_did(policy: str, engines: Sequence[EngineProfile]) -> None:
    """Without thoughts the workload comes back whole, and with it every finish."""
    workload = crowd(5, 40, 4.0)
    lines, _, result = record(workload, policy, engines)
    twin = list(workload_from_log(lines))
    origin_s = workload[0].arrival_s
    assert [one.arrival_s for one in twin] == pytest.approx([one.arrival_s - origin_s for one in workload])
    assert [one.calls for one in twin] == [one.calls for one in workload]
    assert [(one.tenant, one.weight) for one in twin] == [(one.tenant, one.weight) for one in workload]
    ended = rerun(twin, policy, engines)
    assert ended == pytest.approx({name: at - origin_s for name, at in finishes(result).items()}, abs=1e-6)


LONGEST_ITERATION_S = 0.11
"""Of SMALL: 6 sequences, and at most two of 50 + 28 tokens that are prefilled as the first admitted."""


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=15)
def test_the_twin_thinks_as_the_run_did(seed: int) -> None:
    """Prompts and arrivals are seen at an iteration's end: a thought comes back within one iteration of itself.

    So finishes are near: on average within a twentieth of the makespan, though a place in the order may change hands.
    """
    workload = thoughtful(seed, 12)
    lines, _, result = record(workload)
    twin = list(workload_from_log(lines))
    thoughts = {(a.application_id, c.name): c.delay_s for a in workload for c in a.calls}
    for one in twin:
        for step in one.calls:
            given_s = thoughts[one.application_id, step.name]
            assert step.delay_s == pytest.approx(given_s, abs=LONGEST_ITERATION_S) if given_s else step.delay_s == 0.0
    ended, before = rerun(twin), finishes(result)
    origin_s = workload[0].arrival_s
    apart = [abs(ended[name] + origin_s - before[name]) for name in before]
    assert sum(apart) / len(apart) <= 0.05 * result.makespan_s


def test_another_policy_serves_the_same_traffic() -> None:
    lines, _, result = record(crowd(6, 40, 1.0), "fcfs")
    twin = list(workload_from_log(lines))
    other = run(Simulation, twin, "srtf")
    assert len(other.applications) == 40
    mean_s = sum(one.completion_s for one in other.applications)
    assert mean_s < sum(one.completion_s for one in result.applications)


class Logged(Bench):
    """A bench that keeps what it is told as lines of a log."""

    def __init__(self, epoch: int = 1, now_s: float = 0.0) -> None:
        super().__init__()
        header = LogHeader(self.core.settings, "justitia", epoch, 0.0)
        self.core = header.create_core()
        self.now_s = now_s
        self.lines = [header.to_json() + "\n"]

    def handle(self, event: Event, *, after_s: float = 0.0) -> list[Action]:
        self.lines.append(event_to_json(self.now_s + after_s, event) + "\n")
        return super().handle(event, after_s=after_s)

    def serve_call(self, seconds: float, p: int = 10, d: Sequence[int] = (10,)) -> None:
        """Grant the head of the order and end it after so many seconds."""
        (grant,) = self.offer()
        self.handle(CallStarted(grant.lease_id))
        self.handle(CallFinished(grant.lease_id, p, tuple(d)), after_s=seconds)


def reveal(bench: Bench, name: str, *after: str, after_s: float = 0.0) -> None:
    bench.handle(CallRevealed("agent", call(name, after=after)), after_s=after_s)
    bench.handle(CallReady("agent", name, 10, 10, (7, 8)))


def test_an_open_application_becomes_a_graph_with_thoughts() -> None:
    """Two calls at once, a thought of 2 s, a third call; what a client gave up is left out."""
    bench = Logged(now_s=500.0)
    bench.join()
    opens = application("agent", open=True, tenant="acme", application_type="loop")
    bench.handle(CallRevealed("agent", call("a"), opens))
    bench.handle(CallReady("agent", "a", 10, 10))
    reveal(bench, "b", after_s=0.01)
    bench.serve_call(1.0, d=(7,))
    bench.serve_call(1.0, p=12, d=(9,))
    reveal(bench, "c", after_s=2.0)
    reveal(bench, "given-up")
    bench.handle(CallCancelled("agent", "given-up", "client left"))
    bench.serve_call(1.0, d=(3, 5))
    bench.handle(ApplicationClosed("agent"))
    recording = Recording()
    (one,) = recording.traffic_of(bench.lines)
    assert (one.application_id, one.tenant, one.application_type, one.arrival_s) == ("agent", "acme", "loop", 0.0)
    a, b, c = one.calls
    assert (a.after, a.delay_s, a.output_tokens) == ((), 0.0, 7)
    assert (b.after, b.delay_s, b.prompt_tokens, b.prefix) == ((), 0.0, 12, (7, 8))
    assert (set(c.after), c.delay_s) == ({"a", "b"}, pytest.approx(2.0))
    assert (c.sequences, c.output_tokens) == (2, 5)
    assert str(recording.left_out) == "1 calls (1 cancelled), 0 applications without a finished call"


def test_a_chain_of_an_open_application_stays_a_chain() -> None:
    bench = Logged()
    bench.join()
    bench.handle(CallRevealed("agent", call("c0"), application("agent", open=True)))
    bench.handle(CallReady("agent", "c0", 10, 10))
    bench.serve_call(1.0)
    for number in range(1, 5):
        reveal(bench, f"c{number}", after_s=0.5 if number % 2 else THOUGHT_S / 2)
        bench.serve_call(1.0)
    bench.handle(ApplicationClosed("agent"))
    (one,) = workload_from_log(bench.lines)
    assert [step.after for step in one.calls] == [(), ("c0",), ("c1",), ("c2",), ("c3",)]
    assert [step.delay_s for step in one.calls] == pytest.approx([0.0, 0.5, 0.0, 0.5, 0.0])


def test_what_failed_or_never_ended_is_left_out() -> None:
    bench = Logged()
    bench.join()
    bench.arrive_ready("fails", call("x"))
    (grant,) = bench.offer()
    bench.handle(CallStarted(grant.lease_id))
    bench.handle(CallFailed(grant.lease_id, "refused"))
    bench.arrive_ready("cancelled", call("x"))
    bench.handle(ApplicationCancelled("cancelled", "enough"))
    bench.arrive_ready("half", call("done"), call("never", after=("done",)))
    bench.serve_call(1.0)
    recording = Recording()
    twin = [*recording.traffic_of(bench.lines), *recording.take_rest()]
    assert [one.application_id for one in twin] == ["half"]
    assert [step.name for step in twin[0].calls] == ["done"]
    assert recording.left_out.applications == 2
    assert recording.left_out.calls == {"failed": 1, "cancelled": 1, "unfinished": 1}


def test_a_refused_application_is_no_traffic() -> None:
    bench = Logged()
    bench.join()
    bench.arrive_ready("a", call("x"))
    bench.arrive("a", call("x"), call("y"))
    bench.serve_call(1.0)
    (one,) = workload_from_log(bench.lines)
    assert [step.name for step in one.calls] == ["x"]


def test_an_id_that_is_used_again_is_another_application() -> None:
    bench = Logged()
    bench.join()
    for _ in range(2):
        bench.arrive_ready("a", call("x"))
        bench.serve_call(1.0)
    first, second = workload_from_log(bench.lines)
    assert (first.application_id, second.application_id) == ("a", "a#2")
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.0)


def test_an_application_goes_on_in_the_next_epoch() -> None:
    """The first epoch ends one of two calls; the second takes the application back, on a clock that began anew."""
    first = Logged(epoch=1, now_s=100.0)
    first.join()
    first.arrive_ready("a", call("x"), call("y", after=("x",)))
    first.serve_call(1.0)
    second = Logged(epoch=2, now_s=3.0)
    second.handle(ReplicaJoined("r", limits()))
    spec = application("a", call("y"))
    second.handle(ApplicationArrived(spec, Resumption(0.0, 1.5, 0.0)))
    second.handle(CallReady("a", "y", 10, 10))
    second.serve_call(1.0, d=(20,))
    recording = Recording()
    twin = [*recording.traffic_of(first.lines), *recording.traffic_of(second.lines), *recording.take_rest()]
    (one,) = twin
    assert [(step.name, step.after, step.output_tokens) for step in one.calls] == [("x", (), 10), ("y", ("x",), 20)]
    assert recording.left_out.calls.total() == 0


def test_applications_come_in_order_of_arrival() -> None:
    bench = Logged()
    bench.join()
    for name in ("a", "b", "c"):
        bench.arrive("late" if name == "a" else name, call("x"))
        bench.now_s += 1.0
    for name in ("c", "b", "late"):
        bench.handle(CallReady(name, "x", 10, 10))
        bench.serve_call(0.5)
    twin = list(workload_from_log(bench.lines))
    assert [(one.application_id, one.arrival_s) for one in twin] == [("late", 0.0), ("b", 1.0), ("c", 2.0)]


def test_offers_that_nobody_takes_are_no_traffic() -> None:
    bench = Logged()
    bench.join()
    bench.handle(CapacityOffered("r", 4))
    assert list(workload_from_log(bench.lines)) == []
    assert not [one for one in bench.actions if isinstance(one, Grant)]
