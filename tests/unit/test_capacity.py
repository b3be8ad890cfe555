from random import Random

from scheduler.admission import Holding, projected_peak_tokens
from scheduler.capacity import Replica
from tests.scheduling import limits


def replica(**engine: int) -> Replica:
    return Replica("r", limits(**engine), watermark=0.05)


def test_numbers_of_the_ledger() -> None:
    one = replica(blocks=100, block_tokens=16)
    assert one.limits.pool_tokens == 1600
    assert one.admissible_tokens == 1520
    one.hold("x", Holding(10, 5, 3))
    one.hold("y", Holding(4, 1, 1))
    assert (one.held_tokens, one.sequences) == (34, 4)
    one.hold("y", Holding(6, 1, 2))
    one.strike("x")
    one.strike("stranger")
    assert (one.held_tokens, one.sequences, list(one.holdings)) == (12, 2, ["y"])


def test_a_prompt_needs_room_for_itself_and_one_token() -> None:
    assert replica(blocks=4, block_tokens=16).can_ever_hold(63)
    assert not replica(blocks=4, block_tokens=16).can_ever_hold(64)
    assert replica(max_model_len=50).can_ever_hold(49)
    assert not replica(max_model_len=50).can_ever_hold(50)


def test_an_empty_replica_takes_anything_and_a_second_call_must_fit() -> None:
    one = replica(blocks=10, block_tokens=10, max_sequences=4)
    assert one.fits(Holding(500, 500, 64))
    one.hold("x", Holding(30, 10, 1))
    assert one.fits(Holding(10, 10, 1))
    assert not one.fits(Holding(60, 10, 1))
    assert not one.fits(Holding(1, 1, 4)), "five sequences in four slots"


def test_what_nobody_explains_counts_against_admission() -> None:
    one = replica(blocks=10, block_tokens=10)
    one.hold("x", Holding(15, 5, 1))
    one.hold("granted", Holding(20, 5, 1))
    one.observe(60, {"x"})
    assert one.foreign_tokens == 40
    assert not one.fits(Holding(1, 1, 1))
    one.observe(20, {"x"})
    assert one.foreign_tokens == 0
    assert one.fits(Holding(1, 1, 1))
    one.observe(0, {"x", "granted"})
    assert one.foreign_tokens == 0


def test_a_second_look_says_the_same_and_the_sums_follow_the_ledger() -> None:
    random = Random(5)
    one = replica(blocks=40, block_tokens=10, max_sequences=20)
    refused = 0
    for number in range(2_000):
        call = Holding(random.randint(0, 60), random.randint(1, 40), random.randint(1, 3))
        peak = projected_peak_tokens([*one.holdings.values(), call], 10)
        slots = one.sequences + call.sequences <= 20
        expected = not one.holdings or (slots and peak + one.foreign_tokens <= one.admissible_tokens)
        assert [one.fits(call), one.fits(call)] == [expected, expected]
        refused += not expected
        if expected:
            one.hold(str(number), call)
        elif random.random() < 0.5:
            one.strike(random.choice(list(one.holdings)))
        one.foreign_tokens = random.choice([0, 0, 50])
        one.watermark = random.choice([0.0, 0.05, 0.2])
        assert one.held_tokens == sum(h.sequences * h.held_tokens for h in one.holdings.values())
        assert one.sequences == sum(h.sequences for h in one.holdings.values())
    assert 100 < refused < 1_900
