import pytest

from scheduler.gps import ReferenceClock, ReferenceFinish


def test_service_is_shared_by_weight() -> None:
    clock = ReferenceClock()
    assert clock.place(1, 10.0, 1.0)
    assert clock.place(2, 4.0, 3.0)
    assert clock.active_weight == 4.0
    assert clock.advance(1.0, 8.0) == []
    assert clock.virtual_time == 2.0
    assert clock.advance(3.0, 12.0) == [ReferenceFinish(2, pytest.approx(1.0 + 2.0 * 8.0 / 12.0))]
    assert clock.virtual_time == 8.0
    assert 1 in clock
    assert 2 not in clock
    assert len(clock) == 1


def test_a_tag_that_is_reached_is_not_placed() -> None:
    clock = ReferenceClock(50.0)
    assert not clock.place(1, 50.0, 1.0)
    assert not clock.place(1, 49.0, 1.0)
    assert (len(clock), clock.active_weight) == (0, 0.0)


def test_moving_an_application_keeps_its_weight_counted_once() -> None:
    clock = ReferenceClock()
    clock.place(1, 10.0, 2.0)
    clock.place(1, 20.0, 2.0)
    clock.place(2, 5.0, 1.0)
    assert clock.active_weight == 3.0
    assert not clock.place(1, 0.0, 2.0)
    assert clock.active_weight == 1.0
    clock.remove(2)
    clock.remove(2)
    assert clock.active_weight == 0.0


def test_virtual_time_stands_still_with_nobody_to_serve() -> None:
    clock = ReferenceClock(3.0)
    assert clock.advance(1.0, 1000.0) == []
    assert clock.virtual_time == 3.0
    clock.place(1, 5.0, 1.0)
    assert clock.advance(2.0, 1000.0) == [ReferenceFinish(1, 1.0 + 2.0 / 1000)]
    assert clock.virtual_time == 5.0


@pytest.mark.parametrize("service", [0.0, -5.0, float("nan")])
def test_service_that_is_none_moves_nothing(service: float) -> None:
    clock = ReferenceClock()
    clock.place(1, 5.0, 1.0)
    assert clock.advance(1.0, service) == []
    assert clock.virtual_time == 0.0


def test_service_until_counts_only_what_is_served_before_the_tag() -> None:
    clock = ReferenceClock()
    clock.place(1, 10.0, 1.0)
    clock.place(2, 20.0, 2.0)
    clock.place(3, 99.0, 1.0)
    assert clock.service_until(20.0) == 10.0 + 40.0 + 20.0
    assert clock.service_until(0.0) == 0.0
