"""The projected peak against a simulation that takes every step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.admission import Holding, projected_peak_tokens
from scheduler.capacity import Replica
from tests.scheduling import limits

holdings = st.builds(Holding, st.integers(0, 90), st.integers(1, 50), st.integers(1, 4))
holding_lists = st.lists(holdings, max_size=7)
block_sizes = st.sampled_from([1, 2, 16, 32])


def stepwise_peak_tokens(held: list[Holding], block: int) -> int:
    """The most blocks in use after any iteration, each sequence in whole blocks until it has made its last token."""
    most = max((holding.rest_tokens for holding in held), default=0)
    return max(
        (
            sum(h.sequences * -(-(h.held_tokens + step) // block) * block for h in held if h.rest_tokens >= step)
            for step in range(most + 1)
        ),
        default=0,
    )


@given(holding_lists, block_sizes)
def test_the_peak_is_that_of_single_steps(held: list[Holding], block: int) -> None:
    assert projected_peak_tokens(held, block) == stepwise_peak_tokens(held, block)


@given(st.lists(holdings, max_size=12), block_sizes, st.integers(4, 60))
def test_what_was_admitted_together_stays_within_the_pool(calls: list[Holding], block: int, blocks: int) -> None:
    replica = Replica("r", limits(blocks=blocks, block_tokens=block, max_sequences=9), watermark=0.05)
    for number, holding in enumerate(calls):
        if replica.fits(holding):
            replica.hold(str(number), holding)
    held = list(replica.holdings.values())
    if len(held) > 1:
        assert stepwise_peak_tokens(held, block) <= replica.admissible_tokens <= 0.95 * blocks * block
        assert replica.sequences <= 9
    assert held or not calls


@given(holding_lists, holdings, block_sizes)
def test_one_more_call_never_lowers_the_peak(held: list[Holding], more: Holding, block: int) -> None:
    assert projected_peak_tokens([*held, more], block) >= projected_peak_tokens(held, block)
