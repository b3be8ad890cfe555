import pytest

from scheduler.actions import Refusal
from scheduler.applications import Application
from scheduler.capacity import Replica
from scheduler.cost import memory_cost
from scheduler.events import CallRevealed
from scheduler.refusals import Gate
from scheduler.settings import CoreSettings
from scheduler.types import ApplicationSpec, CallSpec
from tests.scheduling import application, call, limits


def gate(*specs: ApplicationSpec, replicas: dict[str, int] | None = None, **settings: int) -> Gate:
    """A gate beside these applications, and replicas of so many blocks of 16 tokens."""
    running = {spec.application_id: Application(spec, i, 0.0, 0.0, memory_cost) for i, spec in enumerate(specs)}
    engines = {name: Replica(name, limits(blocks=blocks), 0.0) for name, blocks in (replicas or {}).items()}
    return Gate(CoreSettings(**settings), running, engines)


def reason(refused: tuple[Refusal, str] | None) -> tuple[Refusal, str]:
    assert refused is not None
    return refused


OPEN = application("o", call("x"), open=True)


def test_what_is_in_order_is_not_refused() -> None:
    one = gate(OPEN, replicas={"r": 10})
    assert one.application_refused(application("a", call("x"), call("y", after=["x"])), 0) is None
    assert one.application_refused(application("a", open=True), 0) is None
    assert one.call_refused(CallRevealed("o", call("y", after=["x"])), 1) is None
    assert one.call_refused(CallRevealed("new", call("y"), application("new", open=True)), 1) is None


@pytest.mark.parametrize(
    ("spec", "refusal", "words"),
    [
        (application("o", call()), Refusal.DUPLICATE_ID, "application 'o' is already running"),
        (application("a"), Refusal.INVALID, "without calls must be open"),
        (application("a", call("x"), call("x")), Refusal.INVALID, "two calls have the same id"),
        (application("a", call("x", after=["x"])), Refusal.INVALID, "cycle: x"),
        (application("a", call("ok"), call("x", 160)), Refusal.CANNOT_FIT, "call 'x' cannot fit: its prompt has 160"),
    ],
)
def test_applications_that_may_not_enter(spec: ApplicationSpec, refusal: Refusal, words: str) -> None:
    found, message = reason(gate(OPEN, replicas={"r": 10}).application_refused(spec, 0))
    assert found is refusal
    assert words in message


def test_a_call_that_fits_nowhere_is_told_the_limit() -> None:
    one = gate(replicas={"small": 2, "large": 49})
    assert one.largest_prompt_tokens == 783
    assert one.can_ever_fit(783)
    assert not one.can_ever_fit(784)
    _, message = reason(one.application_refused(application("a", call("x", 1002)), 0))
    assert "no replica can run more than 783" in message


def test_while_there_is_no_replica_nobody_is_too_large() -> None:
    assert gate().can_ever_fit(10**9)
    assert gate().largest_prompt_tokens == 0


@pytest.mark.parametrize(
    ("revealed", "refusal", "words"),
    [
        (CallRevealed("nobody", call("x")), Refusal.UNKNOWN_APPLICATION, "no application 'nobody'"),
        (CallRevealed("s", call("y")), Refusal.APPLICATION_CLOSED, "'s' takes no more calls"),
        (CallRevealed("o", call("x")), Refusal.DUPLICATE_ID, "call 'x' is already known"),
        (CallRevealed("o", call("y", after=["z"])), Refusal.INVALID, "comes after an unknown call"),
        (CallRevealed("o", call("y", after=["y"])), Refusal.INVALID, "comes after an unknown call"),
        (CallRevealed("o", call("y", 1000)), Refusal.CANNOT_FIT, "call 'y' cannot fit"),
        (CallRevealed("n", call("y"), application("m", open=True)), Refusal.INVALID, "under its own name"),
        (CallRevealed("n", call("y"), application("n", call("y"), open=True)), Refusal.INVALID, "without calls"),
        (CallRevealed("n", call("y", after=["x"]), application("n", open=True)), Refusal.INVALID, "an unknown call"),
    ],
)
def test_calls_that_may_not_enter(revealed: CallRevealed, refusal: Refusal, words: str) -> None:
    found, message = reason(gate(OPEN, application("s", call()), replicas={"r": 10}).call_refused(revealed, 1))
    assert found is refusal
    assert words in message


def test_limits_on_how_much_waits() -> None:
    two: tuple[CallSpec, CallSpec] = (call("p"), call("q"))
    one = gate(OPEN, max_calls=3)
    assert one.application_refused(application("a", *two), 1) is None
    found, message = reason(one.application_refused(application("a", *two), 2))
    assert found is Refusal.BUSY
    assert "2 calls are waiting or running, at most 3" in message
    assert one.call_refused(CallRevealed("o", call("y")), 2) is None
    assert reason(one.call_refused(CallRevealed("o", call("y")), 3))[0] is Refusal.BUSY


def test_at_the_limit_of_applications_those_that_run_go_on() -> None:
    one = gate(OPEN, max_applications=1)
    found, message = reason(one.application_refused(application("a", call()), 1))
    assert found is Refusal.BUSY
    assert "1 applications are running, the most allowed" in message
    opens = CallRevealed("new", call("y"), application("new", open=True))
    assert reason(one.call_refused(opens, 1))[0] is Refusal.BUSY
    assert one.call_refused(CallRevealed("o", call("y")), 1) is None
