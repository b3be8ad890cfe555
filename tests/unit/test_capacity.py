from scheduler.admission import Holding
from scheduler.capacity import Replica
from tests.scheduling import limits


def replica(**engine: int) -> Replica:
    return Replica("r", limits(**engine), watermark=0.05)


def test_numbers_of_the_ledger() -> None:
    one = replica(blocks=100, block_tokens=16)
    assert one.limits.pool_tokens == 1600
    assert one.admissible_tokens == 1520
    one.holdings = {"x": Holding(10, 5, 3), "y": Holding(4, 1, 1)}
    assert (one.held_tokens, one.sequences) == (34, 4)


def test_a_prompt_needs_room_for_itself_and_one_token() -> None:
    assert replica(blocks=4, block_tokens=16).can_ever_hold(63)
    assert not replica(blocks=4, block_tokens=16).can_ever_hold(64)
    assert replica(max_model_len=50).can_ever_hold(49)
    assert not replica(max_model_len=50).can_ever_hold(50)


def test_an_empty_replica_takes_anything_and_a_second_call_must_fit() -> None:
    one = replica(blocks=10, block_tokens=10, max_sequences=4)
    assert one.fits(Holding(500, 500, 64))
    one.holdings["x"] = Holding(30, 10, 1)
    assert one.fits(Holding(10, 10, 1))
    assert not one.fits(Holding(40, 10, 1))
    assert not one.fits(Holding(1, 1, 4)), "five sequences in four slots"


def test_what_nobody_explains_counts_against_admission() -> None:
    one = replica(blocks=10, block_tokens=10)
    one.holdings = {"x": Holding(15, 5, 1), "granted": Holding(20, 5, 1)}
    one.observe(60, {"x"})
    assert one.foreign_tokens == 40
    assert not one.fits(Holding(1, 1, 1))
    one.observe(20, {"x"})
    assert one.foreign_tokens == 0
    assert one.fits(Holding(1, 1, 1))
    one.observe(0, {"x", "granted"})
    assert one.foreign_tokens == 0
