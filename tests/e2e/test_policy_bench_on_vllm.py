"""Prompts and answers of `justitia bench policies` on real vLLM: as long as in the trace, though nobody is told."""

from __future__ import annotations

import pytest

from scheduler.sim.workload import TraceApplication, TraceCall
from serve_app.policy_bench.deployment import engine_settings, length_rule
from serve_app.policy_bench.replay import replay
from tests.vllm_service import ENGINE, MODEL, Service

pytestmark = [pytest.mark.vllm, pytest.mark.ray, pytest.mark.timeout(300)]


async def test_answers_end_where_the_trace_says_and_dependencies_are_kept(service: Service) -> None:
    rule = length_rule({**engine_settings(simulated=False), "max_model_len": ENGINE["max_model_len"]})
    assert (rule.model, rule.end_token_id is None) == (MODEL, False)
    lengths = {"one": (40, 1), "two": (333, 2), "three": (70, 37)}
    first = tuple(TraceCall(name=name, prompt_tokens=p, output_tokens=d) for name, (p, d) in lengths.items())
    twice = TraceCall(name="twice", prompt_tokens=60, output_tokens=9, sequences=2)
    then = TraceCall(name="then", prompt_tokens=500, output_tokens=20, after=(*lengths, "twice"))
    traces = [
        TraceApplication(
            application_id=f"bench-{number}",
            arrival_s=0.2 * number,
            prompt="Naïve {{one}}?",
            calls=(*first, twice, then),
        )
        for number in range(3)
    ]
    outcomes = await replay(service.url, traces, rule, 120.0, lambda _: None)
    assert [one.error for one in outcomes] == [None] * 3
    recording = service.recording()
    for trace in traces:
        granted = [grant.call_id for grant in recording.grants_of({trace.application_id})]
        assert sorted(granted) == ["one", "then", "three", "twice", "two"]
        assert granted[-1] == "then"
    service.wait_until_idle(10)
