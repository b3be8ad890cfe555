"""The engine model: traces worked out by hand, and its laws on random work."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from scheduler.sim.engine import REFERENCE, BatchEngine, EngineProfile, IterationOutcome

SMALL = EngineProfile(
    block_tokens=4,
    usable_blocks=4,
    max_sequences=8,
    prefill_tokens_per_iteration=10,
    base_s=1.0,
    per_sequence_s=0.1,
    per_prefill_token_s=0.01,
    max_model_len=16,
)
WIDE = dataclasses.replace(SMALL, usable_blocks=100, max_model_len=400)


def run_out(engine: BatchEngine, steps: int = 100_000) -> list[IterationOutcome]:
    outcomes = []
    while not engine.idle:
        outcomes.append(engine.step())
        assert len(outcomes) <= steps
    return outcomes


def test_the_reference_is_the_design_s_engine() -> None:
    assert REFERENCE.pool_tokens == 7344
    assert REFERENCE.duration_s(10, 500) == pytest.approx(0.022 + 0.0012 + 0.05)
    assert (REFERENCE.max_sequences, REFERENCE.prefill_tokens_per_iteration) == (256, 2048)


def test_one_sequence_by_hand() -> None:
    engine = BatchEngine(SMALL)
    engine.add("a", prompt_tokens=3, output_tokens=3)
    first, second, third = run_out(engine)
    assert first == IterationOutcome(pytest.approx(1.13), 4, ("a",), (), ())
    assert second == IterationOutcome(pytest.approx(1.1), 5, ("a",), (), ())
    assert third == IterationOutcome(pytest.approx(1.1), 6, ("a",), ("a",), ())
    assert engine.used_blocks == 0


def test_service_over_a_life_is_the_cost_of_the_call() -> None:
    engine = BatchEngine(REFERENCE)
    engine.add("a", 100, 37)
    served = sum(outcome.served_token_iterations for outcome in run_out(engine))
    assert served == 100 * 37 + 37 * 38 // 2


def test_a_sequence_takes_a_block_when_its_next_token_needs_one() -> None:
    engine = BatchEngine(SMALL)
    engine.add("a", 3, 8)
    used = []
    while not engine.idle:
        engine.step()
        used.append(engine.used_blocks)
    assert used == [1, 2, 2, 2, 2, 3, 3, 0]


def test_admission_stops_at_the_first_that_does_not_fit() -> None:
    engine = BatchEngine(SMALL)
    engine.add("large", 9, 2)
    engine.add("larger", 8, 2)
    engine.add("small", 1, 1)
    engine.step()
    assert engine.running == ("large",)
    assert engine.waiting == ("larger", "small")


def test_admission_keeps_to_the_prefill_budget() -> None:
    engine = BatchEngine(WIDE)
    for name, prompt_tokens in (("a", 6), ("b", 4), ("c", 1)):
        engine.add(name, prompt_tokens, 5)
    first = engine.step()
    assert first.produced == ("a", "b")
    assert first.duration_s == pytest.approx(1 + 0.2 + 0.10)
    assert engine.step().produced == ("a", "b", "c")


def test_a_prefill_beyond_the_budget_is_admitted_only_first() -> None:
    engine = BatchEngine(WIDE)
    for name, prompt_tokens in (("a", 1), ("huge", 30), ("b", 1)):
        engine.add(name, prompt_tokens, 5)
    assert engine.step().produced == ("a",)
    assert engine.step().produced == ("a", "huge")
    assert engine.step().produced == ("a", "huge", "b")


def test_admission_keeps_to_the_number_of_sequences() -> None:
    engine = BatchEngine(dataclasses.replace(WIDE, max_sequences=2))
    for name in "abc":
        engine.add(name, 1, 2)
    assert engine.step().produced == ("a", "b")
    assert engine.step().finished == ("a", "b")
    assert engine.step().produced == ("c",)


def test_the_order_is_priority_then_arrival() -> None:
    engine = BatchEngine(dataclasses.replace(WIDE, max_sequences=1))
    for name, priority in (("late", 2), ("first", 1), ("second", 1), ("urgent", -5)):
        engine.add(name, 1, 1, priority)
    finished = [outcome.finished[0] for outcome in run_out(engine)]
    assert finished == ["urgent", "first", "second", "late"]


def test_the_last_in_order_is_preempted_and_keeps_its_place() -> None:
    """Two sequences of two blocks fill the pool; a's third block is b's."""
    engine = BatchEngine(SMALL)
    engine.add("b", 5, 6, priority=2)
    engine.add("a", 5, 6, priority=1)
    outcomes = [engine.step() for _ in range(3)]
    assert [outcome.preempted for outcome in outcomes] == [(), (), ()]
    engine.add("c", 1, 1, priority=3)
    fourth = engine.step()
    assert fourth.preempted == ("b",)
    assert fourth.produced == ("a",)
    assert fourth.duration_s == pytest.approx(1.2), "the duration counts the whole batch"
    assert fourth.served_token_iterations == 2 * (5 + 3 + 1)
    assert engine.waiting == ("b", "c")
    fifth, sixth = engine.step(), engine.step()
    assert fifth.produced == ("a",), "b needs three blocks and bars c"
    assert sixth.finished == ("a",)
    seventh = engine.step()
    assert seventh.produced == ("b", "c")
    assert seventh.duration_s == pytest.approx(1 + 0.2 + 0.01 * (5 + 3 + 1)), "recomputed: prompt and made tokens"
    assert engine.done_tokens("b") == 4


def test_a_sequence_that_is_itself_the_last_is_preempted() -> None:
    engine = BatchEngine(SMALL)
    engine.add("a", 7, 3)
    engine.add("b", 2, 5)
    assert engine.step().produced == ("a", "b")
    second = engine.step()
    assert second.preempted == ()
    third = engine.step()
    assert third.finished == ("a",)


def test_abort_frees_blocks_and_places() -> None:
    engine = BatchEngine(SMALL)
    engine.add("a", 8, 3)
    engine.add("b", 8, 3)
    engine.step()
    assert (engine.running, engine.waiting) == (("a",), ("b",))
    assert engine.abort("a")
    assert engine.used_blocks == 0
    assert engine.step().produced == ("b",)
    assert engine.abort("b")
    assert engine.idle
    assert not engine.abort("b")


def test_what_can_never_run_is_refused() -> None:
    engine = BatchEngine(SMALL)
    engine.add("a", 8, 8)
    for arguments in (("a", 1, 1), ("b", 8, 9), ("b", 1, 0), ("b", -1, 1)):
        with pytest.raises(ValueError, match=r"."):
            engine.add(*arguments)
    assert engine.waiting == ("a",)


def test_an_idle_engine_has_no_iteration() -> None:
    with pytest.raises(RuntimeError):
        BatchEngine().step()


@pytest.mark.parametrize(
    "wrong", [{"usable_blocks": 0}, {"base_s": -1.0}, {"per_sequence_s": float("nan")}, {"max_sequences": 0}]
)
def test_a_profile_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        dataclasses.replace(SMALL, **wrong)


@pytest.mark.parametrize("seed", range(20))
def test_laws_on_random_work(seed: int) -> None:
    """Blocks are conserved, the first in order never gives way, and every sequence makes all its tokens."""
    random = Random(seed)
    profile = dataclasses.replace(SMALL, usable_blocks=random.randint(8, 40), max_model_len=32)
    engine = BatchEngine(profile)
    wanted = {number: (random.randint(0, 16), random.randint(1, 16)) for number in range(60)}
    order = {number: (random.randint(0, 5), number) for number in wanted}
    made = dict.fromkeys(wanted, 0)
    coming = list(wanted)
    aborted: set[int] = set()
    while coming or not engine.idle:
        for number in [coming.pop(0) for _ in range(min(len(coming), random.randint(0, 3)))]:
            engine.add(number, *wanted[number], priority=order[number][0])
        if random.random() < 0.1 and engine.running:
            victim = random.choice(engine.running)
            engine.abort(victim)
            aborted.add(victim)
        if engine.idle:
            continue
        outcome = engine.step()
        for number in outcome.produced:
            made[number] += 1
        assert outcome.produced
        assert set(outcome.finished) <= set(outcome.produced)
        assert not set(outcome.preempted) & set(outcome.produced)
        assert list(outcome.produced) == sorted(outcome.produced, key=order.get)
        assert all(order[number] > order[outcome.produced[-1]] for number in outcome.preempted)
        held = [wanted[number][0] + made[number] for number in engine.running]
        assert engine.used_blocks == sum(profile.blocks_of(tokens) for tokens in held) <= profile.usable_blocks
    assert engine.used_blocks == 0
    assert all(made[number] == wanted[number][1] for number in wanted if number not in aborted)
