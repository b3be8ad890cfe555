import pytest

from scheduler.gps import MAX_COURSE_POINTS, Course, ReferenceClock, ReferenceFinish


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


def test_the_course_of_virtual_time_can_be_looked_back_on() -> None:
    clock = ReferenceClock()
    clock.place(1, 100.0, 1.0)
    for now_s, service in ((1.0, 0.0), (2.0, 10.0), (5.0, 0.0), (6.0, 0.0), (8.0, 40.0)):
        clock.advance(now_s, service)
    assert clock.reached_at_s(5.0, 9.0) == 1.5
    assert clock.reached_at_s(10.0, 9.0) == 2.0, "the first moment, though V stood there for long"
    assert clock.reached_at_s(30.0, 9.0) == 7.0
    assert clock.reached_at_s(51.0, 9.0) == 9.0, "not yet"
    assert clock.reached_at_s(-1.0, 9.0) == 9.0, "before all that is known"


def test_a_long_course_is_thinned_out_and_keeps_its_ends() -> None:
    course = Course(MAX_COURSE_POINTS)
    for moment in range(3 * MAX_COURSE_POINTS):
        course.note(float(moment), 2.0 * moment)
    assert len(course._values) <= MAX_COURSE_POINTS
    assert course.reached_at_s(1001.0, -1.0) == pytest.approx(500.5)
    last = 3.0 * MAX_COURSE_POINTS - 1
    assert course.reached_at_s(2.0 * last, -1.0) == last
