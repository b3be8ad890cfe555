from scheduler.admission import Holding, projected_peak_tokens


def test_no_calls_hold_nothing() -> None:
    assert projected_peak_tokens([], 16) == 0


def test_one_call_peaks_at_its_end() -> None:
    assert projected_peak_tokens([Holding(10, 5, 2)], 1) == 2 * 15


def test_calls_in_different_phases_never_hold_their_maxima_together() -> None:
    """Reserving would ask for 110 + 101 tokens; the first has gone before the second grows."""
    ending, beginning = Holding(100, 10, 1), Holding(1, 100, 1)
    assert projected_peak_tokens([ending, beginning], 1) == 110 + 11
    assert projected_peak_tokens([beginning, ending], 1) == 110 + 11


def test_a_sequence_is_counted_in_blocks() -> None:
    assert projected_peak_tokens([Holding(1, 1, 3)], 16) == 3 * 16
    assert projected_peak_tokens([Holding(15, 1, 3)], 16) == 3 * 16
    assert projected_peak_tokens([Holding(16, 1, 3)], 16) == 3 * 32
