"""`justitia simulate`: what it prints, what it refuses, and the numbers that others checked."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scheduler.policies import POLICIES
from scheduler.settings import CoreSettings
from scheduler.sim.engine import REFERENCE
from scheduler.sim.engines import ENGINES, EngineError, parse_profile
from scheduler.sim.simulation import Simulation, SimulationSettings
from scheduler.sim.workload import TraceApplication, read_workload, write_application
from serve_app.cli.main import app
from serve_app.cli.simulation_runs import (
    CannotSimulate,
    Question,
    answer,
    example_workload,
    load_engines,
    load_predictor,
    load_workload,
    options_by_policy,
)
from serve_app.cli.simulation_tables import number

PROJECT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("JUSTITIA_SHARED", PROJECT.parent / "shared")) / "workloads"
MEASURES = {"policy", "mean_completion_s", "p90_completion_s", "preemptions", "makespan_s", "applications"}


def invoke(*arguments: str, stdin: bytes | None = None, columns: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["simulate", *arguments], input=stdin)


def simulated(*arguments: str, stdin: bytes | None = None) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    runs: list[dict[str, Any]] = json.loads(result.stdout)
    return runs


def refused(*arguments: str, stdin: bytes | None = None) -> str:
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


@pytest.fixture(scope="module")
def small() -> list[TraceApplication]:
    return list(example_workload(3))[:20]


@pytest.fixture(scope="module")
def trace(small: list[TraceApplication]) -> bytes:
    return "".join(write_application(one) + "\n" for one in small).encode()


@pytest.fixture
def trace_file(trace: bytes, tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(trace)
    return str(path)


# ---- what it prints


def test_json_has_every_policy_with_its_measures_and_applications(
    small: list[TraceApplication], trace_file: str
) -> None:
    runs = simulated("--workload", trace_file, "--policies", "vtc,justitia")
    assert [run["policy"] for run in runs] == ["vtc", "justitia"]
    for run in runs:
        assert run.keys() >= MEASURES
        times = [one["completion_s"] for one in run["applications"]]
        assert run["mean_completion_s"] == pytest.approx(sum(times) / len(times))
        assert [one["application_id"] for one in run["applications"]] == [one.application_id for one in small]
        for one in run["applications"]:
            assert one["completion_s"] == pytest.approx(one["finish_s"] - one["arrival_s"])
            assert one["lag_s"] == pytest.approx(one["finish_s"] - one["gps_finish_s"])
            assert {"application_type", "tenant"} <= one.keys()
        assert run["by_tenant"].keys() == {"library", "support"}
        assert run["service"]["gap"]
    assert runs[0]["ratio_to_yardstick"]["worst"] == 1.0


def test_it_runs_the_simulation_that_it_was_asked_for(small: list[TraceApplication], trace_file: str) -> None:
    run = simulated("--workload", trace_file, "--policies", "srtf", "--intensity", "2", "--no-tenant-level")[0]
    faster = [f"{one.arrival_s / 2:.6f}" for one in small]
    assert [f"{one['arrival_s']:.6f}" for one in run["applications"]] == faster
    core = CoreSettings(admission=SimulationSettings().core.admission, watermark=0.0, tenant_level=False)
    hand_made = Simulation(
        (_at(one, one.arrival_s / 2) for one in small), SimulationSettings(policy="srtf", core=core)
    ).run()
    by_id = {one.application_id: one.completion_s for one in hand_made.applications}
    for one in run["applications"]:
        assert one["completion_s"] == pytest.approx(by_id[one["application_id"]])
    assert run["preemptions"] == hand_made.preemptions


def _at(application: TraceApplication, arrival_s: float) -> TraceApplication:
    document = {**json.loads(write_application(application)), "arrival_s": arrival_s}
    return next(read_workload([json.dumps(document)]))


def test_output_is_the_same_to_the_byte(trace_file: str) -> None:
    arguments = ("--workload", trace_file, "--policies", "lottery,justitia", "--json")
    assert invoke(*arguments).stdout_bytes == invoke(*arguments).stdout_bytes


def test_the_seed_moves_the_example_and_chance() -> None:
    usual = simulated("--policies", "lottery", "--limit", "20")[0]
    assert simulated("--policies", "lottery", "--limit", "20", "--seed", "0")[0] == usual
    other = simulated("--policies", "lottery", "--limit", "20", "--seed", "1")[0]
    assert [one["arrival_s"] for one in other["applications"]] != [one["arrival_s"] for one in usual["applications"]]


def test_stdin_gzip_and_file_say_the_same(trace: bytes, trace_file: str, tmp_path: Path) -> None:
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress(trace, mtime=0))
    expected = simulated("--workload", trace_file, "--policies", "fcfs,justitia")
    assert simulated("--workload", str(packed), "--policies", "fcfs,justitia") == expected
    assert simulated("--workload", "-", "--policies", "fcfs,justitia", stdin=trace) == expected
    assert simulated("--workload", "-", "--policies", "fcfs,justitia", stdin=gzip.compress(trace, mtime=0)) == expected


def test_limit_takes_the_first_applications(small: list[TraceApplication], trace_file: str) -> None:
    run = simulated("--workload", trace_file, "--policies", "fcfs", "--limit", "3")[0]
    assert [one["application_id"] for one in run["applications"]] == [one.application_id for one in small[:3]]


def test_a_yardstick_outside_the_policies_is_run_but_not_listed(trace_file: str) -> None:
    both = simulated("--workload", trace_file, "--policies", "vtc,justitia")
    alone = simulated("--workload", trace_file, "--policies", "justitia", "--yardstick", "vtc")
    assert alone == both[1:]
    assert simulated("--workload", trace_file, "--policies", "justitia")[0]["ratio_to_yardstick"] is None


def test_replicas_and_engines_stand_side_by_side(trace_file: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.json"
    slow.write_text('{"base_s": 0.2}')
    arguments = ("--workload", trace_file, "--policies", "fcfs")
    one = simulated(*arguments)[0]
    two = simulated(*arguments, "--replicas", "2")[0]
    mixed = simulated(*arguments, "--engine", f"reference,{slow}")[0]
    slowest = simulated(*arguments, "--engine", str(slow))[0]
    assert two["mean_completion_s"] < mixed["mean_completion_s"]
    assert two["mean_completion_s"] < one["mean_completion_s"] < slowest["mean_completion_s"]


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        ("justitia", ("--predictor", "none")),
        ("justitia", ("--predictor", "type_mean")),
        ("justitia", ("--admission", "projected_peak", "--watermark", "0.2")),
        ("justitia", ("--clock", "capacity")),
        ("justitia", ("--clock-rate", "4")),
        ("justitia", ("--no-tenant-level",)),
        ("justitia", ("--tenant-weight", "library=9")),
        ("vtc", ("--flows", "tenants")),
        ("lottery", ("--option", "seed=7")),
        ("lottery", ("--option", "lottery.seed=7")),
    ],
)
def test_every_choice_reaches_the_simulation(policy: str, change: tuple[str, ...], trace_file: str) -> None:
    arguments = ("--workload", trace_file, "--policies", policy, "--intensity", "3")
    assert simulated(*arguments, *change) != simulated(*arguments)


def test_tables_fit_eighty_columns_and_compare_with_the_yardstick(trace_file: str) -> None:
    result = invoke("--workload", trace_file, "--policies", "vtc,justitia,fcfs", "--details")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    mean_s = simulated("--workload", trace_file, "--policies", "justitia")[0]["mean_completion_s"]
    row = next(line for line in result.stdout.splitlines() if line.startswith(" justitia"))
    assert number(mean_s) in row
    assert "%" in row
    assert "by type" in result.stdout
    assert "by tenant" in result.stdout


def test_a_markup_character_in_a_name_is_shown_as_it_is() -> None:
    line = b'{"application_id":"a","application_type":"[red]x","arrival_s":0,"tenant":"[b]",' + CALLS + b"}\n"
    other = line.replace(b'"a"', b'"b"').replace(b"[b]", b"[/i]")
    result = invoke("--workload", "-", "--policies", "fcfs", "--details", stdin=line + other)
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("[red]x", "[b]", "[/i]"))


def test_all_policies_run() -> None:
    runs = simulated("--policies", "all", "--limit", "4")
    assert [run["policy"] for run in runs] == sorted(POLICIES)
    assert all(len(run["applications"]) == 4 for run in runs)


def test_what_policies_go_by_and_nobody_carries_is_said_in_one_line() -> None:
    plain = invoke("--workload", "-", "--policies", "edf,dlpm,atlas,fcfs", "--json", stdin=line_with(""))
    assert plain.exit_code == 0
    json.loads(plain.stdout)
    lacks = "deadlines (edf), prefixes (dlpm), dependencies (atlas), weights other than 1 (dlpm, atlas)"
    assert plain.stderr == f"The workload lacks what policies go by: {lacks}.\n"
    others = ("--policies", "rm", "--yardstick", "vtc", "--tenant-weight", "gold=3")
    assert invoke("--workload", "-", *others, stdin=line_with("")).stderr == (
        "The workload lacks what policies go by: periods (rm).\n"
    )


def test_nothing_is_said_where_somebody_carries_it() -> None:
    calls = '[{"name":"x","prompt_tokens":5,"output_tokens":5,"prefix":[1]},'
    calls += '{"name":"y","prompt_tokens":5,"output_tokens":5,"after":["x"]}]'
    carried = line_with('"weight":2,"deadline_s":9,"period_s":9,', calls)
    other = line_with("").replace(b'"a"', b'"b"')
    result = invoke("--workload", "-", "--policies", "all", stdin=other + b"\n" + carried)
    assert (result.exit_code, result.stderr) == (0, "")
    assert invoke("--workload", "-", "--policies", "fcfs", stdin=other).stderr == ""


def test_help_shows_an_example_that_works() -> None:
    shown = invoke("--help").stdout
    assert "justitia simulate --workload trace.jsonl" in shown
    begin = shown.index('{"application_id"')
    example = " ".join(shown[begin : shown.index("(on one line")].split())
    run = simulated("--workload", "-", "--policies", "justitia", stdin=example.encode())[0]
    assert [one["calls"] for one in run["applications"]] == [2]


def test_numbers_are_short() -> None:
    assert [number(value) for value in (None, 0.1234, 12.34, 1234.5, -2e7)] == [
        "-",
        "0.12",
        "12.3",
        "1,234",
        "-2.00e+07",
    ]


# ---- the reference


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared workloads are not at {SHARED}")
def test_the_reference_mean_of_justitia() -> None:
    workload = str(SHARED / "eval-even.jsonl")
    justitia = simulated("--workload", workload, "--intensity", "3", "--policies", "justitia")[0]
    assert justitia["mean_completion_s"] == pytest.approx(153.4, rel=0.03)
    assert len(justitia["applications"]) == 300


# ---- what it refuses

CALLS = b'"calls":[{"name":"x","prompt_tokens":5,"output_tokens":5}]'


def line_with(fields: str, calls: str = '[{"name":"x","prompt_tokens":5,"output_tokens":5}]') -> bytes:
    return f'{{"application_id":"a","arrival_s":0,{fields}"calls":{calls}}}'.encode()


def call_with(fields: str) -> bytes:
    return line_with("", f'[{{"name":"x","prompt_tokens":5,"output_tokens":5,{fields}}}]')


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "stdin: no applications"),
        (b"xx", "stdin: line 1: "),
        (b"[1]", "line 1: not an object"),
        (b'{"application_id":"a","arrival_s":0}', "'calls' is missing"),
        (b"[" * 100_000, "stdin: "),
        (b"\xff\xfe", "stdin: 'utf-8'"),
        (b"\x1f\x8bzz", "stdin: "),
        (gzip.compress(b"{}" * 999, mtime=0)[:-12], "stdin: "),
        (line_with("") + b"\n" + line_with(""), "application a: its id stands twice"),
        (line_with('"tenant":5,'), "tenant must be a string"),
        (line_with('"weight":"w",'), "weight must be a number"),
        (line_with('"weight":0,'), "weight must lie in"),
        (line_with('"deadline_s":-1,'), "deadline_s must lie in"),
        (line_with('"arrival_s":-1,'), "arrival_s must be finite"),
        (call_with('"after":["zz"]'), "which is not a call"),
        (call_with('"after":["x"]'), "in a cycle"),
        (call_with('"after":[[1]]'), "line 1: after must be a list of str"),
        (call_with('"after":"x"'), "line 1: after must be a list of str"),
        (call_with('"prefix":["x"]'), "line 1: prefix must be a list of int"),
        (call_with('"sequences":5000'), "sequences must lie in"),
        (call_with('"output_tokens":9000'), "fit no engine"),
        (call_with('"output_tokens":-5'), "line 1: output_tokens must be an integer of at least 1, got -5"),
        (call_with('"prompt_tokens":-5'), "line 1: prompt_tokens must be an integer of at least 0, got -5"),
    ],
)
def test_a_bad_workload_is_refused_in_words(content: bytes, said: str) -> None:
    assert said in refused("--workload", "-", "--policies", "fcfs", stdin=content)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workload", "no/such/file"), "no/such/file: No such file"),
        (("--workload", "."), ".: Is a directory"),
        (("--policies", "fcfs,nobody"), "no policy 'nobody'; known: app_fcfs"),
        (("--policies", ","), "no policy was named"),
        (("--yardstick", "nobody"), "no policy 'nobody'"),
        (("--engine", "b300"), "no engine 'b300'; known: "),
        (("--engine", "no.json"), "no.json: No such file"),
        (("--predictor", "guess"), "no predictor 'guess'; known: oracle, type_mean, none"),
        (("--predictor", "."), "model.json: No such file"),
        (("--tenant-weight", "gold"), "write TENANT=WEIGHT"),
        (("--tenant-weight", "gold=x"), "write TENANT=WEIGHT"),
        (("--tenant-weight", "gold=0"), "weight of 'gold' must lie in"),
        (("--option", "seed"), "write NAME=VALUE"),
        (("--option", "nothing=1"), "has the option 'nothing'"),
        (("--policies", "lottery", "--option", "seed=x"), "must be a number"),
        (("--html", "no/such/folder/report.html"), "no file can be written there"),
        (("--intensity", "0"), "--intensity"),
        (("--intensity", "nan"), "--intensity"),
    ],
)
def test_a_bad_choice_is_refused_in_words(arguments: tuple[str, ...], said: str) -> None:
    assert said in re.sub(r"[\s│]+", " ", refused("--limit", "1", *arguments))


def test_options_go_to_the_policies_that_have_them() -> None:
    chosen = options_by_policy(["lottery", "fcfs"], [("seed", 5)], 1)
    assert chosen == {"lottery": (("seed", 5),), "fcfs": ()}
    assert options_by_policy(["lottery"], [], 4) == {"lottery": (("seed", 4),)}
    with pytest.raises(CannotSimulate, match=r"fcfs\.seed"):
        options_by_policy(["lottery", "fcfs"], [("fcfs.seed", 5)], 1)


def test_each_run_gets_a_predictor_of_its_own() -> None:
    create = load_predictor("type_mean")
    assert create() is not create()


def test_progress_hears_of_every_application_of_every_run(trace_file: str) -> None:
    heard: list[str] = []
    question = Question(
        workload=load_workload(trace_file, 1.0, 6, 0),
        policies=["fcfs"],
        yardstick="justitia",
        core=SimulationSettings().core,
        options=options_by_policy(["fcfs", "justitia"], [], 0),
        engines=load_engines("reference", 1),
        create_predictor=load_predictor("oracle"),
    )
    runs = answer(question, lambda policy: lambda: heard.append(policy))
    assert [run.policy for run in runs] == ["fcfs"]
    assert heard == ["justitia"] * 6 + ["fcfs"] * 6


def test_a_workload_can_be_gone_through_again(trace_file: str) -> None:
    workload = load_workload(trace_file, 1.0, 5, 0)
    assert workload.count == 5
    assert list(workload.open()) == list(workload.open())


# ---- engines in JSON


def test_an_engine_is_described_by_the_fields_that_differ() -> None:
    assert parse_profile("{}") == REFERENCE == ENGINES["reference"]
    profile = parse_profile('{"usable_blocks": 1000, "base_s": 1, "chunked_prefill": true}')
    assert (profile.usable_blocks, profile.base_s, profile.chunked_prefill) == (1000, 1, True)
    assert profile.per_sequence_s == REFERENCE.per_sequence_s
    assert load_engines("reference", 3) == (REFERENCE,) * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "a JSON object"),
        ('{"blocks": 5}', "no field 'blocks'; known: block_tokens"),
        ('{"usable_blocks": 0}', "usable_blocks must be at least 1"),
        ('{"usable_blocks": 5.5}', "usable_blocks must be an integer, got 5.5"),
        ('{"usable_blocks": true}', "usable_blocks must be an integer, got true"),
        ('{"base_s": "fast"}', 'base_s must be a number, got "fast"'),
        ('{"base_s": NaN}', "base_s must be finite"),
        ('{"chunked_prefill": 1}', "chunked_prefill must be true or false"),
    ],
)
def test_a_bad_engine_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(EngineError, match=re.escape(said)):
        parse_profile(text)


def test_the_example_is_small_and_has_several_tenants_and_types() -> None:
    applications: Iterator[TraceApplication] = example_workload(0)
    listed = list(applications)
    assert listed == list(example_workload(0)) != list(example_workload(1))
    assert len({one.tenant for one in listed}) == len({one.application_type for one in listed}) == 2
