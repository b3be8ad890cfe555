"""Public traces as workloads: what each format means, and what is said of lines that are wrong."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.settings import Admission, CoreSettings
from scheduler.sim.generators import EVEN, PREFIX_BLOCK_TOKENS
from scheduler.sim.simulation import Simulation, SimulationSettings
from scheduler.sim.traces import FORMATS, TraceError, TraceRow, as_applications, as_arrivals, read_trace
from scheduler.sim.workload import TraceApplication, WorkloadError, at_intensity, read_workload, write_application

DATA = Path(os.environ.get("JUSTITIA_SHARED") or Path(__file__).parents[3] / "shared") / "data"

MOONCAKE = [
    '{"timestamp": 3000, "input_length": 600, "output_length": 20, "hash_ids": [0, 7]}\n',
    "\n",
    '{"timestamp": 3000, "input_length": 1100, "output_length": 30, "hash_ids": [0, 8, 9]}\n',
    '{"timestamp": 6000, "input_length": 40, "output_length": 5}\n',
]
AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    "2023-11-16 23:59:59.5000000,374,44\r\n",
    "2023-11-17 00:00:00.7500009,396,109\r\n",
    "2023-11-17 00:00:02.5000000,0,1",
]
BURSTGPT = [
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "5,s1,1,ChatGPT,472,18,490,Conversation log\n",
    "45.0,s2,1,GPT-4,1087,230.0,1317,API log\n",
    "46,s2,1,GPT-4,1087,0,1087,API log\n",
    "118,s3,1,GPT-4,417,276,693,\n",
]
VTC_ARENA = [
    "req_id,client,prompt_len,output_len,req_time_s\n",
    "0,client-13,13,199,0.000000\n",
    "1,client-2,36,137,0.207938\n",
]
SAMPLES = {"mooncake": MOONCAKE, "azure": AZURE, "burstgpt": BURSTGPT, "vtc_arena": VTC_ARENA}


def rows(name: str, lines: Iterable[str] | None = None) -> list[TraceRow]:
    return list(read_trace(SAMPLES[name] if lines is None else lines, name))


def numbers(name: str) -> list[tuple[float, int, int]]:
    return [(row.time_s, row.prompt_tokens, row.output_tokens) for row in rows(name)]


def simulate(applications: Iterable[TraceApplication], policy: str) -> int:
    core = CoreSettings(admission=Admission.ENGINE, watermark=0.0)
    return len(Simulation(applications, SimulationSettings(policy=policy, core=core)).run().applications)


# ---- formats


def test_mooncake_counts_milliseconds_from_its_first_line() -> None:
    assert numbers("mooncake") == [(0.0, 600, 20), (0.0, 1100, 30), (3.0, 40, 5)]
    assert {row.tenant for row in rows("mooncake")} == {"default"}


def test_mooncake_blocks_are_cut_into_smaller_ones_and_only_whole_ones_are_kept() -> None:
    first, second, third = (row.prefix for row in rows("mooncake"))
    parts = 512 // PREFIX_BLOCK_TOKENS
    assert len(first) == 600 // PREFIX_BLOCK_TOKENS
    assert len(second) == 1100 // PREFIX_BLOCK_TOKENS
    assert first[:parts] == second[:parts]
    assert set(first[parts:]).isdisjoint(second)
    assert third == ()


def test_azure_reads_wall_clocks_over_midnight() -> None:
    assert numbers("azure") == [(0.0, 374, 44), (1.25, 396, 109), (3.0, 0, 1)]


def test_azure_reads_times_with_a_zone() -> None:
    lines = [AZURE[0], "2024-05-12 00:00:20+00:00,10,2\n", "2024-05-12 02:00:21+02:00,10,2\n"]
    assert [row.time_s for row in rows("azure", lines)] == [0.0, 1.0]


def test_burstgpt_has_models_for_tenants_and_leaves_failures_out() -> None:
    assert numbers("burstgpt") == [(0.0, 472, 18), (40.0, 1087, 230), (113.0, 417, 276)]
    assert [row.tenant for row in rows("burstgpt")] == ["ChatGPT", "GPT-4", "GPT-4"]
    assert [row.application_type for row in rows("burstgpt")] == ["Conversation log", "API log", "burstgpt"]


def test_vtc_arena_has_clients_for_tenants() -> None:
    assert numbers("vtc_arena") == [(0.0, 13, 199), (0.207938, 36, 137)]
    assert [row.tenant for row in rows("vtc_arena")] == ["client-13", "client-2"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_trace_without_rows_has_no_requests(name: str) -> None:
    assert rows(name, SAMPLES[name][: 0 if name == "mooncake" else 1]) == []


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 9999), st.integers(1, 9999)), max_size=30))
def test_what_is_written_is_what_is_read(requests: list[tuple[int, int, int]]) -> None:
    requests.sort()
    lines = [BURSTGPT[0], *(f"{time},s,1,m,{p},{d},{p + d},x\n" for time, p, d in requests)]
    zero = requests[0][0] if requests else 0
    found = [(row.time_s + zero, row.prompt_tokens, row.output_tokens) for row in rows("burstgpt", lines)]
    assert found == requests


# ---- applications


@pytest.mark.parametrize("name", FORMATS)
def test_each_row_is_an_application_that_can_be_written_read_and_simulated(name: str) -> None:
    made = list(as_applications(rows(name)))
    assert [one.application_id for one in made] == [f"line-{row.line}" for row in rows(name)]
    assert all(len(one.calls) == 1 for one in made)
    read = list(read_workload(map(write_application, made)))
    assert read == made
    for policy in ("fcfs", "justitia"):
        assert simulate(at_intensity(read, 10), policy) == len(made)


def test_generated_applications_come_when_the_rows_did_and_of_the_same_tenants() -> None:
    first, again, other = (list(as_arrivals(rows("burstgpt"), EVEN, random.Random(seed))) for seed in (1, 1, 2))
    assert first == again != other
    assert [one.arrival_s for one in first] == [0.0, 40.0, 113.0]
    assert [one.tenant for one in first] == ["ChatGPT", "GPT-4", "GPT-4"]
    assert len({one.application_id for one in first}) == 3
    assert all(one.prompt for one in first)
    for policy in ("fcfs", "justitia"):
        assert simulate(read_workload(map(write_application, first)), policy) == 3


# ---- faults


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 5: not JSON"),
        ("[1]", "line 5: not a JSON object"),
        ('{"input_length": 5, "output_length": 5}', "line 5, column timestamp: must be a finite number, got null"),
        ('{"timestamp": true, "input_length": 5, "output_length": 5}', "column timestamp: must be a finite number"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', "column timestamp: must be a finite number"),
        ('{"timestamp": 9000, "output_length": 5}', "column input_length: must be an integer of at least 0, got null"),
        ('{"timestamp": 9000, "input_length": -1, "output_length": 5}', "column input_length: .* got -1"),
        ('{"timestamp": 9000, "input_length": 5, "output_length": 0}', "column output_length: .* at least 1, got 0"),
        ('{"timestamp": 9000, "input_length": 5, "output_length": 2.5}', "column output_length: .* got 2.5"),
        ('{"timestamp": 9000, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}', "column hash_ids: must be"),
        ('{"timestamp": 10, "input_length": 5, "output_length": 5}', "column timestamp: comes before the row above"),
    ],
)
def test_a_bad_line_of_json_is_named_with_its_column(line: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        rows("mooncake", [*MOONCAKE, line])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("noon,10,2", "line 5, column TIMESTAMP: must be a time, got 'noon'"),
        ("2023-11-17 00:00:03,ten,2", "line 5, column ContextTokens: must be an integer of at least 0, got 'ten'"),
        ("2023-11-17 00:00:03,-1,2", "column ContextTokens: .* got '-1'"),
        ("2023-11-17 00:00:03,10,0", "column GeneratedTokens: must be an integer of at least 1, got '0'"),
        ("2023-11-17 00:00:03,10,2.5", "column GeneratedTokens: .* got '2.5'"),
        ("2023-11-17 00:00:03,10,inf", "column GeneratedTokens: .* got 'inf'"),
        ("2023-11-17 00:00:03,10", "column GeneratedTokens: .* got ''"),
        ("2023-11-16 00:00:03,10,2", "line 5, column TIMESTAMP: comes before the row above it"),
    ],
)
def test_a_bad_row_of_a_table_is_named_with_its_column(line: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        rows("azure", [*AZURE[:3], "2023-11-17 00:00:02.5000000,0,1\n", line])


@pytest.mark.parametrize(
    ("name", "line", "what"),
    [
        ("burstgpt", "200,s,1,,10,2,12,x", "line 6, column Model: is empty"),
        ("burstgpt", "nan,s,1,m,10,2,12,x", "line 6, column Timestamp: must be a time, got 'nan'"),
        ("burstgpt", "200,s,1,m,10,-2,12,x", "line 6, column Response tokens: .* at least 0, got '-2'"),
        ("vtc_arena", "2,client-3,x,5,1.0", "line 4, column prompt_len: .* got 'x'"),
        ("vtc_arena", "2,client-3,5,5,0.1", "line 4, column req_time_s: comes before the row above it"),
    ],
)
def test_bad_rows_of_other_tables_are_named_too(name: str, line: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        rows(name, [*SAMPLES[name], line])


def test_columns_that_are_missing_are_named_beside_those_found() -> None:
    with pytest.raises(TraceError, match="line 1, column client: is missing; found: req_id, prompt_len"):
        rows("vtc_arena", ["req_id,prompt_len,output_len,req_time_s\n"])
    with pytest.raises(TraceError, match="line 1, column TIMESTAMP: is missing; found: nothing"):
        rows("azure", [])


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(WorkloadError, match="no format 'odd'; known: mooncake, azure, burstgpt, vtc_arena"):
        read_trace([], "odd")


def test_lines_are_read_as_they_are_needed() -> None:
    def endless() -> Iterable[str]:
        yield from MOONCAKE
        raise AssertionError("read too far")

    assert next(read_trace(endless(), "mooncake")).prompt_tokens == 600


# ---- the traces themselves


def real(folder: str, file: str) -> Path:
    path = DATA / folder / file
    if not path.exists():
        pytest.skip(f"no trace at {path}; set JUSTITIA_SHARED")
    return path


@pytest.mark.parametrize(
    ("name", "folder", "file", "count", "span_s", "prompt", "output", "tenants"),
    [
        ("mooncake", "mooncake", "conversation_trace.jsonl", 12_031, 3537, 6909, 350, 1),
        ("azure", "azure_llm_2023", "AzureLLMInferenceTrace_conv.csv", 19_366, 3502, 1020, 129, 1),
        ("vtc_arena", "vtc_arena", "arena_real_trace.csv", 1_500, 600, 40, 211, 27),
    ],
)
def test_public_traces_are_read_whole(
    name: str, folder: str, file: str, count: int, span_s: float, prompt: int, output: int, tenants: int
) -> None:
    with real(folder, file).open(encoding="utf-8") as lines:
        found = rows(name, lines)
    assert len(found) == count
    assert found[-1].time_s == pytest.approx(span_s, abs=1)
    assert median(row.prompt_tokens for row in found) == pytest.approx(prompt, abs=1)
    assert median(row.output_tokens for row in found) == pytest.approx(output, abs=1)
    assert len({row.tenant for row in found}) == tenants
