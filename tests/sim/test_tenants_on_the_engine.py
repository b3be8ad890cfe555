"""Two tenants on the reference engine: how long a large one runs must not follow how many small ones others send."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.settings import CoreSettings
from scheduler.sim.engine import REFERENCE
from scheduler.sim.prediction import Oracle
from scheduler.sim.simulation import Simulation, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall

TIMES_ALONE = 2.2
WHOLE_TIME = (("cost", "profile"),)


def elephant() -> TraceApplication:
    """Thirty parts and the whole of them: more than the memory holds at once."""
    parts = [TraceCall(name=f"part{n}", prompt_tokens=900, output_tokens=250) for n in range(30)]
    whole = TraceCall(name="whole", prompt_tokens=2000, output_tokens=400, after=tuple(part.name for part in parts))
    return TraceApplication(
        application_id="elephant", application_type="large", arrival_s=0.0, calls=(*parts, whole), tenant="theirs"
    )


def mouse(number: int, prompt_tokens: int, output_tokens: int) -> TraceApplication:
    """Four calls one after another, one application a second."""
    calls = [
        TraceCall(
            name=f"step{n}",
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            after=(f"step{n - 1}",) if n else (),
        )
        for n in range(4)
    ]
    return TraceApplication(
        application_id=f"mouse{number}", application_type="small", arrival_s=1.0 + number, calls=tuple(calls)
    )


def elephants_seconds(mice: list[TraceApplication], **core: object) -> float:
    settings = SimulationSettings(policy="justitia", core=replace(CoreSettings(), **core), engines=(REFERENCE,))  # type: ignore[arg-type]
    results = Simulation([elephant(), *mice], settings, Oracle()).run().applications
    (seconds,) = [one.completion_s for one in results if one.application_id == "elephant"]
    return seconds


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "core"),
    [(150, 120, {}), (1100, 20, {"policy_options": WHOLE_TIME})],
    ids=["mice that mostly decode", "mice that mostly prefill, prefill counted"],
)
def test_an_elephants_time_is_flat_and_near_twice_its_time_alone(
    prompt_tokens: int, output_tokens: int, core: dict[str, object]
) -> None:
    alone, some, many = (
        elephants_seconds([mouse(number, prompt_tokens, output_tokens) for number in range(count)], **core)
        for count in (0, 90, 150)
    )
    assert some == many
    assert 1.2 * alone < some <= TIMES_ALONE * alone


def test_kv_token_time_does_not_see_what_prefill_costs_others() -> None:
    """Equal shares of the memory held: with mice that mostly prefill the elephant has less than half of the time."""
    mice = [mouse(number, 1100, 20) for number in range(150)]
    assert elephants_seconds(mice) > TIMES_ALONE * elephants_seconds([])
