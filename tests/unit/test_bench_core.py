"""The measurements of `justitia bench core`: they measure what they say, and their promises can be broken."""

from __future__ import annotations

from itertools import islice

import pytest

from scheduler.cost import linear_cost, memory_cost
from scheduler.policies import POLICIES
from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.policies.fcfs import Fcfs
from serve_app.cli import policy_speed
from serve_app.cli.core_speed import _Station, measure_core
from serve_app.cli.policy_speed import TENANT_ROW, Promise, Row, heap_pair_us, measure, promises, rows_to_measure


class Witness(Fcfs):
    """Writes down what it is told."""

    cost = None

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.waiting = self.most_waiting = 0
        self.least_waiting = 10**9

    def add(self, call: CallFacts) -> None:
        super().add(call)
        self.told.append("add")
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)

    def granted(self, call: CallFacts, replica_id: str) -> None:
        self.told.append("granted")
        self.waiting -= 1
        self.least_waiting = min(self.least_waiting, self.waiting)

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        assert output_tokens == (call.true_output_tokens,)
        self.told.append("ended")

    def application_arrived(self, application: ApplicationFacts) -> None:
        self.told.append("arrived")

    def application_left(self, application: ApplicationFacts) -> None:
        assert application.remaining_cost == 0
        self.told.append("left")


def test_a_life_tells_everything_in_order_and_the_queue_keeps_its_length() -> None:
    witnesses: list[Witness] = []

    def create() -> Policy:
        witnesses.append(Witness())
        return witnesses[-1]

    row = measure("witness", create, 0.001, (10, 100))
    assert all(time_us is not None and time_us > 0 for time_us in row.life_us.values())
    assert list(row.life_us) == [10, 100]
    for witness, size in zip(witnesses, (10, 100), strict=True):
        assert witness.told[: 2 * size] == ["arrived", "add"] * size
        assert witness.told[2 * size :][:5] == ["granted", "ended", "left", "arrived", "add"]
        assert (witness.least_waiting, witness.most_waiting) == (size - 1, size)


def test_a_policy_that_is_too_slow_to_fill_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_speed, "FILLING_LIMIT_S", 0.0)
    assert measure("fcfs", Fcfs, 0.001, (10,)).life_us == {10: None}


def test_every_policy_is_measured_and_the_tenant_level_too() -> None:
    rows = rows_to_measure()
    assert set(rows) == {*POLICIES, TENANT_ROW}
    assert [create().name for create in rows_to_measure(["fcfs", TENANT_ROW]).values()] == ["fcfs", "justitia"]


@pytest.mark.parametrize("name", sorted(rows_to_measure()))
def test_every_policy_lives_through_it(name: str) -> None:
    life_us = measure(name, rows_to_measure([name])[name], 0.001, (10,)).life_us[10]
    assert life_us is not None
    assert life_us > 0


def test_lives_are_the_same_each_time_and_in_the_unit_that_is_asked_for() -> None:
    lives = list(islice(policy_speed._lives(memory_cost, 10), 50))
    assert lives == list(islice(policy_speed._lives(memory_cost, 10), 50))
    other = next(policy_speed._lives(linear_cost, 10))
    assert other.call.prompt_tokens == lives[0].call.prompt_tokens
    assert other.arrived.predicted_cost == linear_cost(other.call.prompt_tokens, other.shape.output_tokens)
    tags = [life.arrived.start_tag for life in lives]
    assert tags == sorted(tags)
    assert tags[9] == 0 < tags[11]


def test_promises_compare_with_the_pair_of_the_same_size_and_the_smallest_queue() -> None:
    ratio, growth = promises(Row("justitia", {10: 2.0, 100: 9.0, 1000: None}), {10: 0.1, 100: 0.2, 1000: 0.3})
    assert ratio.measured == pytest.approx(45)
    assert growth.measured == pytest.approx(4.5)
    assert not ratio.holds
    assert not growth.holds
    assert Promise("", 40.0, 40.0).holds


def test_a_heap_pair_takes_time() -> None:
    assert all(time_us > 0 for time_us in heap_pair_us((10, 100), repeats=1).values())


def test_the_whole_core_serves_everyone_who_is_counted() -> None:
    station = _Station(600 / 60, 30, "justitia")
    station.run()
    assert len(station.counted_s) == 30
    assert all(spent_s > 0 for spent_s in station.counted_s.values())
    assert not set(station.counted_s) & set(station.core.applications)


def test_the_figures_of_a_rate() -> None:
    speed = measure_core(1_200, 20)
    assert speed.applications_a_minute == 1_200
    assert 0 < speed.mean_ms <= speed.p99_ms
    assert speed.mean_queue >= 0
    assert speed.replicas == 1
