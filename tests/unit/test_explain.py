import pytest

from scheduler.explain import MOST_AHEAD, explain, overview
from tests.scheduling import Bench, call


def answer(bench: Bench, application_id: str) -> dict[str, object]:
    found = explain(bench.core, application_id)
    assert found is not None
    return found


def test_nobody_explains_a_stranger() -> None:
    assert explain(Bench().core, "nobody") is None


def test_the_overview_counts() -> None:
    bench = Bench()
    bench.join("s")
    bench.join("r", max_sequences=1)
    bench.arrive_ready("a", call("x"), call("y"), weight=2.0)
    bench.start(*bench.offer("r"))
    assert overview(bench.core) == {
        "policy": "justitia",
        "epoch": 1,
        "virtual_time": 0.0,
        "active_weight": 2.0,
        "applications": 1,
        "applications_in_reference": 1,
        "calls_unfinished": 2,
        "calls_waiting": 1,
        "calls_running": 1,
        "audited": 0,
        "bound_violations": 0,
        "pool_tokens": 2048,
        "kv_held_tokens": 10,
        "replicas": ["r", "s"],
    }


def test_why_an_application_waits() -> None:
    bench = Bench()
    bench.arrive_ready("small", call(d=5))
    bench.arrive_ready("large", call(d=50))
    assert answer(bench, "small")["why"] == "no engine replica is there"
    bench.join()
    assert "first in the order" in str(answer(bench, "small")["why"])
    assert answer(bench, "large")["why"] == "1 applications come before it in the order of finish tags"
    assert answer(bench, "large")["ahead"] == [{"application_id": "small", "finish_tag": 65.0}]
    assert answer(bench, "large")["state"] == "queued"
    bench.start(*bench.offer())
    running = answer(bench, "small")
    assert str(running["why"]).startswith("nothing waits")
    assert (running["state"], running["calls_running"], running["calls_waiting"]) == ("running", 1, 0)
    bench.arrive("blocked", call("x"), call("y", after=["x"]))
    assert answer(bench, "blocked")["calls_blocked"] == 2


def test_a_policy_without_tags_says_who_goes_first() -> None:
    bench = Bench("fcfs")
    bench.join()
    bench.arrive_ready("large", call(d=50))
    bench.arrive_ready("small", call(d=5))
    small = answer(bench, "small")
    assert small["why"] == "policy fcfs (calls in order of arrival) has application large go first"
    assert (small["ahead"], small["applications_ahead"], small["first"]) == ([], 0, "large")


def test_other_tenants_are_not_ahead_by_their_tags() -> None:
    bench = Bench()
    bench.join()
    bench.arrive_ready("large", call(d=50), tenant="x")
    bench.arrive_ready("small", call(d=5), tenant="y")
    large = answer(bench, "large")
    assert large["ahead"] == []
    assert str(large["why"]).endswith("has another tenant's application go first")
    assert (large["first"], answer(bench, "small")["first"]) == (None, "small")
    assert "small" not in str(large)


def test_an_application_between_two_calls_is_running() -> None:
    bench = Bench()
    bench.join()
    bench.arrive("a", call("x"), call("y", after=["x"]))
    bench.run_one("a", call("x"))
    assert answer(bench, "a")["state"] == "running"
    assert answer(bench, "a")["served_cost"] == 155.0


def test_only_the_first_ahead_are_named() -> None:
    bench = Bench()
    for number in range(30):
        bench.arrive_ready(f"a{number}", call())
    last = answer(bench, "a29")
    assert last["applications_ahead"] == 29
    assert [one["application_id"] for one in last["ahead"]] == [f"a{n}" for n in range(MOST_AHEAD)]  # type: ignore


def test_the_service_left_is_what_the_reference_must_deliver_and_no_more() -> None:
    """Those with smaller tags leave before, those with larger ones share until then."""
    bench = Bench()
    bench.join()
    bench.arrive_ready("mouse", call(p=0, d=4))  # 10
    bench.arrive_ready("cat", call(p=0, d=8))  # 36
    bench.arrive_ready("elephant", call(p=0, d=40, most=100))  # 820
    left = answer(bench, "cat")["reference_service_left"]
    assert left == 10 + 36 + 36
    bench.serve(float(str(left)) - 1, after_s=1.0)
    assert answer(bench, "cat")["gps_finish_after_s"] is None
    bench.serve(1.0, after_s=1.0)
    assert answer(bench, "cat")["gps_finish_after_s"] == pytest.approx(2.0)
    assert answer(bench, "cat")["reference_service_left"] == 0.0
    assert answer(bench, "cat")["waited_s"] == 2.0
