"""Named engines against what others measured, the arithmetic by hand, lists and files of engines."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.engines import (
    ENGINES,
    PUBLISHED,
    EngineError,
    Published,
    parse_engines,
    parse_profile,
    write_profile,
)
from scheduler.sim.roofline import (
    A100_40GB,
    A100_80GB,
    BANDWIDTH_SHARE,
    H100_80GB,
    LLAMA2_7B,
    LLAMA2_13B,
    LLAMA3_8B,
    SEQUENCE_OVERHEAD_S,
    V100_32GB,
    kv_pool_blocks,
    modern_profile,
    steady_tokens_per_s,
)
from scheduler.sim.simulation import Simulation, SimulationSettings, engine_admission
from scheduler.sim.workload import TraceApplication, TraceCall

WITHIN = 0.15
"""Of every published throughput."""


# ---- against published numbers


@pytest.mark.parametrize("run", PUBLISHED, ids=lambda run: f"{run.model.name}-{run.batch}-{run.prompt_tokens}")
def test_the_arithmetic_is_near_what_was_measured(run: Published) -> None:
    profile = modern_profile(run.card, run.model, context_tokens=run.context_tokens)
    ours = steady_tokens_per_s(profile, run.batch, run.prompt_tokens, run.output_tokens)
    assert ours == pytest.approx(run.tokens_per_s, rel=WITHIN)


def test_the_simulator_serves_what_the_arithmetic_says() -> None:
    """A closed batch in the simulator itself: 64 sequences of 128 + 512 tokens on an A100."""
    batch, prompt_tokens, output_tokens = 64, 128, 512
    profile = modern_profile(A100_80GB, LLAMA2_7B, max_sequences=batch)
    call = TraceCall(name="c", prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    workload = [TraceApplication(application_id=f"a{n}", arrival_s=0.0, calls=(call,)) for n in range(batch * 8)]
    settings = SimulationSettings(policy="fcfs", core=engine_admission(), engines=(profile,))
    result = Simulation(workload, settings).run()
    simulated = result.output_tokens / result.makespan_s
    assert simulated == pytest.approx(steady_tokens_per_s(profile, batch, prompt_tokens, output_tokens), rel=0.05)


def test_prefill_takes_what_tensorrt_llm_and_lmdeploy_say() -> None:
    """2,048 tokens of a 7B model on an A100: 133 ms and 139 ms; of a 13B model 242 ms."""
    assert 2048 * ENGINES["a100-llama7b"].per_prefill_token_s == pytest.approx(0.136, rel=0.05)
    assert 2048 * modern_profile(A100_80GB, LLAMA2_13B).per_prefill_token_s == pytest.approx(0.242, rel=0.1)


def test_kv_slots_of_the_vllm_paper() -> None:
    """OPT-13B (as large as LLaMA-13B) on an A100-40GB: 15.7 thousand tokens; 800 KB each (SOSP'23, table 1)."""
    assert LLAMA2_13B.kv_bytes_per_token == 800 * 1024
    assert kv_pool_blocks(A100_40GB, LLAMA2_13B) * 16 == pytest.approx(15_700, rel=WITHIN)


def test_half_precision_is_slower_than_tensorrt_llm_in_fp8() -> None:
    """Llama-3.1-8B on an H100 in FP8 (TensorRT-LLM v1.0): 3,450 tokens/s of 2048 + 128, 22,714 of 128 + 2048."""
    prefilling = steady_tokens_per_s(modern_profile(H100_80GB, LLAMA3_8B, context_tokens=2112), 256, 2048, 128)
    decoding = steady_tokens_per_s(modern_profile(H100_80GB, LLAMA3_8B, context_tokens=1152), 256, 128, 2048)
    assert 0.4 * 3_450 < prefilling < 3_450
    assert 0.4 * 22_714 < decoding < 22_714


# ---- by hand


def test_the_arithmetic_by_hand() -> None:
    profile = ENGINES["a100-llama8b"]
    assert LLAMA3_8B.kv_bytes_per_token == 32 * 8 * 128 * 2 * 2 == 131_072
    pool_bytes = 80 * 2**30 * 0.9 - 1.5 * 2**30 - 16.06e9
    assert profile.usable_blocks == int(pool_bytes / (16 * 131_072))
    assert profile.base_s == pytest.approx(16.06e9 / (2039e9 * 0.75))
    assert profile.per_sequence_s == pytest.approx(1024 * 131_072 / (2039e9 * 0.75) + 20e-6)
    assert profile.per_prefill_token_s == pytest.approx(2 * 8.03e9 / (312e12 * 0.65))
    assert profile.prefix_cache_blocks * 64 <= profile.pool_tokens < (profile.prefix_cache_blocks + 1) * 64


def test_four_cards_read_four_times_as_fast_but_wait_for_each_other() -> None:
    profile = ENGINES["v100x4-llama13b"]
    reading_s = 26.04e9 / (4 * 900e9 * BANDWIDTH_SHARE)
    assert profile.base_s == pytest.approx(reading_s + 80 * 30e-6)
    one_card_s = 1024 * LLAMA2_13B.kv_bytes_per_token / (900e9 * BANDWIDTH_SHARE)
    assert profile.per_sequence_s - SEQUENCE_OVERHEAD_S == pytest.approx(one_card_s / 4)


def test_a_model_that_leaves_no_memory_is_refused() -> None:
    huge = dataclasses.replace(LLAMA2_13B, parameters=16e9)
    with pytest.raises(ValueError, match=r"leaves no memory for KV on 1 × V100"):
        kv_pool_blocks(V100_32GB, huge)


def test_modern_engines_are_faster_and_larger_than_the_reference() -> None:
    modern = {name: profile for name, profile in ENGINES.items() if name != "reference"}
    assert set(modern) == {"a100-llama7b", "a100-llama8b", "h100-llama8b", "v100x4-llama13b"}
    assert ENGINES["reference"] is REFERENCE
    for profile in modern.values():
        assert profile.chunked_prefill
        assert profile.prefix_cache_blocks > 0
        assert profile.pool_tokens > 10 * REFERENCE.pool_tokens
        assert profile.base_s < REFERENCE.base_s
    a100, h100 = modern["a100-llama8b"], modern["h100-llama8b"]
    assert h100.base_s < a100.base_s
    assert h100.per_prefill_token_s < a100.per_prefill_token_s / 2


# ---- lists and files


def test_a_list_of_engines() -> None:
    asked: list[str] = []

    def load(name: str) -> EngineProfile:
        asked.append(name)
        return ENGINES.get(name, REFERENCE)

    chosen = parse_engines("a100-llama7bx2, v100x4-llama13b,own.jsonx3", load)
    assert asked == ["a100-llama7b", "v100x4-llama13b", "own.json"]
    assert chosen == (ENGINES["a100-llama7b"],) * 2 + (ENGINES["v100x4-llama13b"],) + (REFERENCE,) * 3


@pytest.mark.parametrize("names", ["referencex0", "referencex1001"])
def test_a_number_of_engines_has_limits(names: str) -> None:
    with pytest.raises(EngineError, match="from 1 to 1000 engines"):
        parse_engines(names, lambda name: REFERENCE)


@given(
    st.builds(
        EngineProfile,
        block_tokens=st.integers(1, 128),
        usable_blocks=st.integers(1, 10**6),
        base_s=st.floats(0, 10),
        per_sequence_s=st.floats(0, 1),
        chunked_prefill=st.booleans(),
        prefix_cache_blocks=st.integers(0, 10**6),
    )
)
def test_a_profile_is_read_as_it_was_written(profile: EngineProfile) -> None:
    assert parse_profile(write_profile(profile)) == profile


def test_missing_fields_are_the_reference_engines() -> None:
    assert parse_profile('{"usable_blocks": 5}') == dataclasses.replace(REFERENCE, usable_blocks=5)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ("[]", "described by a JSON object"),
        ('{"blocks": 5}', "no field 'blocks'; known: block_tokens, usable_blocks"),
        ('{"usable_blocks": 5.0}', "usable_blocks must be an integer, got 5.0"),
        ('{"usable_blocks": true}', "usable_blocks must be an integer, got true"),
        ('{"base_s": "fast"}', 'base_s must be a number, got "fast"'),
        ('{"chunked_prefill": 1}', "chunked_prefill must be true or false, got 1"),
        ('{"usable_blocks": 0}', "usable_blocks must be at least 1, got 0"),
        ('{"base_s": -1}', "base_s must be finite and not negative"),
        (json.dumps({"base_s": float("inf")}), "base_s must be finite and not negative"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, what: str) -> None:
    with pytest.raises(EngineError) as refused:
        parse_profile(text)
    assert what in str(refused.value)
