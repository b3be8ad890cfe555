"""Tenants that try to get more than their share, each trick with a bound on what it brings.

Two yardsticks, both in seconds of the closed loop (an iteration takes one):

- What others lose. The fluid system shares by weight what the engine truly delivered, and in it the adversary always
  has work: no honest tenant could cost the others more. A tenant finishes within two of the longest true calls of
  that (`LATE`), whatever the adversary does. The reason is that of the bound for applications: calls are granted in
  the order of tags, a tag is start + cost/weight in virtual time, and what was begun when a tenant's turn came is
  waited for at most once when it comes and once when its last call runs.
- What the adversary gains: its completion against that of the same work, honestly asked for at the same moment by a
  tenant that was not there before. At most two longest calls (`EARLY`): calls that were begun are not
  taken back, and a trick may shift by as much when the engine has room. A lie about lengths brings more, once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from scheduler.events import ApplicationCancelled, ApplicationClosed, CallReady, CallRevealed, Event
from scheduler.types import ApplicationSpec, CallSpec
from tests.property.fluid_gps import Job
from tests.property.scripted_loop import ScriptedLoop
from tests.scheduling import Bench, application, call, clean_state

LONGEST = 12
LATE = 2 * LONGEST
EARLY = 2 * LONGEST
ENDLESS = 10**9

few = settings(max_examples=6, deadline=None)  # whole simulations
randoms = st.integers(0, 2**32).map(random.Random)


@dataclass
class Story:
    """Who asks for what and when; the adversary is the tenant `rival`."""

    arrivals: list[tuple[int, ApplicationSpec]] = field(default_factory=list)
    script: list[tuple[int, Event]] = field(default_factory=list)
    truth: dict[tuple[str, str], int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=lambda: {"rival": 1.0})
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def asks(self, second: int, *calls: CallSpec, tenant: str = "rival", **fields: object) -> str:
        """An application arrives with these calls; returns its id."""
        name = self.name()
        self.arrivals.append((second, application(name, *calls, tenant=tenant, **fields)))
        return name

    def reveals(self, second: int, name: str, spec: CallSpec) -> None:
        ready = CallReady(name, spec.call_id, spec.prompt_tokens, spec.predicted_output_tokens)
        self.script += [(second, CallRevealed(name, spec)), (second, ready)]

    def cancels(self, second: int, name: str) -> None:
        self.script.append((second, ApplicationCancelled(name, "the client left")))

    def play(self) -> ScriptedLoop:
        """All of it, on one replica, to its end."""
        bench = Bench(check_each=False, tenant_weights=tuple(self.weights.items()))
        bench.join()
        in_order = sorted(self.arrivals, key=lambda item: item[0])
        loop = ScriptedLoop(bench, in_order, self.truth, script=self.script, check_each=False)
        loop.run()
        clean_state(bench.core)
        return loop


@dataclass
class Victims:
    """One to three tenants, each with one large or with many small applications that come at once."""

    story: Story
    rng: random.Random
    jobs: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.story.weights["rival"] = self.rng.choice([0.5, 1.0, 2.0])
        for number in range(self.rng.randint(1, 3)):
            tenant, second, cost = f"v{number}", self.rng.randint(0, 20), 0
            self.story.weights[tenant] = self.rng.choice([0.5, 1.0, 2.0])
            applications, most = self.rng.choice([(1, 40), (3, 10), (25, 2)])
            for _ in range(applications):
                calls = some_calls(self.rng, self.rng.randint(1, most))
                self.story.asks(second, *calls, tenant=tenant)
                cost += sum(map(memory, calls))
            self.jobs[tenant] = Job(second, cost, self.story.weights[tenant])

    def lateness_s(self, loop: ScriptedLoop) -> float:
        """By how much the worst of them finished later than beside a rival that always has work."""
        fair = loop.fair_finishes_s([*self.jobs.values(), Job(0, ENDLESS, self.story.weights["rival"])])
        return max(loop.finish_s(tenant) - fair_s for tenant, fair_s in zip(self.jobs, fair, strict=False))


def some_calls(rng: random.Random, count: int) -> list[CallSpec]:
    return [call(str(number), rng.randint(1, 40), rng.randint(1, LONGEST)) for number in range(count)]


def memory(spec: CallSpec) -> int:
    """KV token-time, by addition."""
    return sum(spec.prompt_tokens + step for step in range(1, spec.predicted_output_tokens + 1))


def played_against(rng: random.Random, trick: Callable[[Story, random.Random], None]) -> float:
    """How late the worst victim of a trick was."""
    story = Story()
    victims = Victims(story, rng)
    trick(story, rng)
    return victims.lateness_s(story.play())


# ---- what others lose


@few
@given(randoms)
def test_minting_ids(rng: random.Random) -> None:
    """Three applications of one call every second, each under an id of its own. Bound: `LATE`."""

    def mint(story: Story, rng: random.Random) -> None:
        for second in range(40):
            for _ in range(3):
                story.asks(second, *some_calls(rng, 1))

    assert played_against(rng, mint) <= LATE


@few
@given(randoms)
def test_cancelling_and_asking_again(rng: random.Random) -> None:
    """Thirty calls a second, and those of some seconds ago are cancelled, wherever they are. Bound: `LATE`.

    What was made of a cancelled call stays charged, and the reference is told only of what was not made.
    """

    def cancel(story: Story, rng: random.Random) -> None:
        names = [story.asks(second, *some_calls(rng, 30)) for second in range(25)]
        for second, name in enumerate(names):
            story.cancels(second + rng.randint(1, 4), name)

    assert played_against(rng, cancel) <= LATE


@few
@given(randoms, st.booleans())
def test_announcing_elephants_as_mice(rng: random.Random, each_its_own: bool) -> None:
    """Every call is said to make one token and makes twelve, in one application or in one each. Bound: `LATE`.

    A call is charged as it is seen to make more, so that only those begun in its first iterations are too many.
    """

    def lie(story: Story, rng: random.Random) -> None:
        for second in range(0, 36, 3):
            liars = [call(str(n), rng.randint(1, 40), 1, most=LONGEST) for n in range(12)]
            for calls in [[liar] for liar in liars] if each_its_own else [liars]:
                name = story.asks(second, *calls)
                story.truth |= {(name, liar.call_id): LONGEST for liar in calls}

    assert played_against(rng, lie) <= LATE


@few
@given(randoms, st.sampled_from([1e-3, 1.0, 1e3]))
def test_idling_then_bursting(rng: random.Random, weight: float) -> None:
    """An application is kept open with one call, so that its tenant is not forgotten, and reveals eighty at once
    after some time; its own weight, which is no tenant's, makes no difference. Bound: `LATE`.
    """

    def burst(story: Story, rng: random.Random) -> None:
        name = story.asks(0, call("0", 5, 2), open=True, weight=weight)
        for second in (15, 30):
            for number in range(80):
                story.reveals(second, name, call(f"{second}-{number}", rng.randint(1, 40), rng.randint(1, LONGEST)))
        story.script.append((31, ApplicationClosed(name)))

    assert played_against(rng, burst) <= LATE


# ---- what the adversary gains


def finish_of_rival(others: Sequence[tuple[int, ApplicationSpec]], trick: Callable[[Story], object]) -> float:
    story = Story(arrivals=list(others))
    trick(story)
    return story.play().finish_s("rival")


@st.composite
def backlogs(draw: st.DrawFn) -> list[tuple[int, ApplicationSpec]]:
    """Two other tenants with many small applications, for longer than the tricks last; all calls are equal."""
    return [
        (0, application(f"{tenant}{number}", call("1", 20, 10), call("2", 20, 10), tenant=tenant))
        for tenant in "st"
        for number in range(draw(st.integers(25, 45)))
    ]


def work(count: int, prefix: str = "") -> list[CallSpec]:
    return [call(f"{prefix}{number}", 20, 10) for number in range(count)]


@few
@given(backlogs(), st.sampled_from([2, 5, 10, 30]), st.integers(5, 25))
def test_minting_and_splitting_finish_no_earlier(
    others: list[tuple[int, ApplicationSpec]], pieces: int, second: int
) -> None:
    """Bound: `EARLY`."""
    honest = finish_of_rival(others, lambda story: story.asks(second, *work(30)))
    split = finish_of_rival(
        others, lambda story: [story.asks(second, *work(30 // pieces)) for _ in range(pieces)] and None
    )
    assert split >= honest - EARLY


@few
@given(backlogs(), st.integers(5, 25), st.sampled_from([1e-3, 1.0]))
def test_having_idled_brings_nothing(others: list[tuple[int, ApplicationSpec]], second: int, weight: float) -> None:
    """What an open application reveals after some time, against a tenant that comes at that moment. Bound: `EARLY`."""

    def idle(story: Story) -> None:
        name = story.asks(0, call("first", 5, 2), open=True, weight=weight)
        for spec in work(30):
            story.reveals(second, name, spec)
        story.script.append((second, ApplicationClosed(name)))

    honest = finish_of_rival(others, lambda story: story.asks(second, *work(30)))
    assert finish_of_rival(others, idle) >= honest - EARLY


@few
@given(backlogs(), st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_having_cancelled_brings_nothing(others: list[tuple[int, ApplicationSpec]], waits: list[int]) -> None:
    """The last of several attempts, against a tenant that comes when that was made. Bound: `EARLY`."""

    def cancel(story: Story) -> None:
        second = 10
        for wait in waits:
            name = story.asks(second, *work(30))
            second += wait
            story.cancels(second, name)
        story.asks(second, *work(30))

    honest = finish_of_rival(others, lambda story: story.asks(10 + sum(waits), *work(30)))
    assert finish_of_rival(others, cancel) >= honest - EARLY


@few
@given(backlogs(), st.integers(1, 9))
def test_an_elephant_announced_as_a_mouse_finishes_no_earlier(
    others: list[tuple[int, ApplicationSpec]], announced: int
) -> None:
    """Calls of ten tokens are announced as shorter, and a total of 1 is claimed for them. Bound: three longest calls.

    What fits into the engine at once is begun before the first of it is seen to last longer; at a third of the engine,
    which is the tenant's share beside two others, that would have taken three times as long. All after that is charged
    for what runs.
    """

    def lie(story: Story) -> None:
        short = [call(str(number), 20, announced, most=16) for number in range(60)]
        name = story.asks(10, *short, predicted_cost=1.0)
        story.truth |= {(name, spec.call_id): 10 for spec in short}

    honest = finish_of_rival(others, lambda story: story.asks(10, *work(60)))
    assert finish_of_rival(others, lie) >= honest - 3 * LONGEST


# ---- all tricks at once


class Rival(RuleBasedStateMachine):
    """Any mixture of the tricks, some seconds apart. Bound for the others: `LATE`."""

    @initialize(rng=randoms)
    def begin(self, rng: random.Random) -> None:
        self.rng = rng
        self.second = 0
        self.story = Story()
        self.victims = Victims(self.story, rng)
        self.open = self.story.asks(0, call("0", 5, 2), open=True, weight=rng.choice([1e-3, 1.0]))
        self.mine: list[str] = []

    @rule(by=st.integers(1, 20))
    def wait(self, by: int) -> None:
        self.second = min(self.second + by, 80)

    @rule(count=st.integers(1, 5), calls=st.sampled_from([1, 6, 30]))
    def mint(self, count: int, calls: int) -> None:
        self.mine += [self.story.asks(self.second, *some_calls(self.rng, calls)) for _ in range(count)]

    @rule(calls=st.sampled_from([1, 12]))
    def lie(self, calls: int) -> None:
        name = self.story.asks(self.second, *[call(str(n), 20, 1, most=LONGEST) for n in range(calls)])
        self.story.truth |= {(name, str(number)): LONGEST for number in range(calls)}
        self.mine.append(name)

    @rule(pick=st.integers(0, 100))
    def cancel(self, pick: int) -> None:
        if self.mine:
            self.story.cancels(self.second, self.mine[pick % len(self.mine)])

    @rule(calls=st.sampled_from([1, 40]))
    def reveal(self, calls: int) -> None:
        for spec in some_calls(self.rng, calls):
            self.story.count += 1
            late = call(f"late{self.story.count}", spec.prompt_tokens, spec.predicted_output_tokens)
            self.story.reveals(self.second, self.open, late)

    def teardown(self) -> None:
        if not hasattr(self, "story"):
            return
        self.story.script.append((self.second, ApplicationClosed(self.open)))
        assert self.victims.lateness_s(self.story.play()) <= LATE


TestRival = Rival.TestCase
TestRival.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
