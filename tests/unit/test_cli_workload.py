"""`justitia workload`: what it writes, what it shows, and how it answers mistakes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scheduler.sim.generators import SCENARIOS
from scheduler.sim.workload import TraceApplication, read_workload
from serve_app.cli.main import app

ARENA = (
    "req_id,client,prompt_len,output_len,req_time_s\n"
    "0,ann,13,199,0.0\n"
    "1,bob,9000,137,0.5\n"
    "2,ann,36,20,2.0\n"
    "3,bob,40,30,4.0\n"
)


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["workload", *arguments], input=stdin, env={"COLUMNS": "80"})


def made(*arguments: str, stdin: str | None = None) -> list[TraceApplication]:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return list(read_workload(result.stdout.splitlines()))


def refusal(*arguments: str, stdin: str | bytes | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    return " ".join(result.stderr.split())


@pytest.fixture
def arena(tmp_path: Path) -> str:
    path = tmp_path / "arena.csv"
    path.write_text(ARENA, "utf-8")
    return str(path)


# ---- generate


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_seed_gives_the_same_bytes(kind: str) -> None:
    command = ("generate", "--kind", kind, "--seed", "7", "--applications", "20")
    first, again = run(*command), run(*command)
    assert first.exit_code == 0
    assert first.stdout_bytes == again.stdout_bytes != run(*command[:3], "--seed", "8").stdout_bytes
    assert len(first.stdout.splitlines()) >= 20


def test_what_is_generated_can_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(run("generate", "--applications", "10", "--tenants", "gold=3,free").stdout, "utf-8")
    command = [
        "simulate",
        "--workload",
        str(path),
        "--policies",
        "fcfs,justitia",
        "--tenant-weight",
        "gold=3",
        "--json",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert [len(one["applications"]) for one in json.loads(result.stdout)] == [10, 10]


def test_options_reach_the_generator() -> None:
    plain = made("generate", "--applications", "30")
    fast = made("generate", "--applications", "30", "--intensity", "2")
    assert [one.arrival_s for one in fast] == [one.arrival_s / 2 for one in plain]
    assert made("generate", "--applications", "30", "--window", "10")[-1].arrival_s <= 10
    assert {one.application_type for one in made("generate", "--types", "SC,EV=2")} == {"SC", "EV"}
    assert any(call.prefix for one in made("generate", "--shared-prefixes") for call in one.calls)
    assert not any(call.prefix for one in plain for call in one.calls)
    tenants = {(one.tenant, one.weight) for one in made("generate", "--tenants", "gold=3,free")}
    assert tenants == {("gold", 3.0), ("free", 1.0)}
    assert {one.tenant for one in made("generate", "--kind", "elephant", "--mice-tenant", "m")} == {"default", "m"}


def test_a_shift_takes_its_type_and_factor() -> None:
    shift = ("generate", "--kind", "shift", "--applications", "60", "--shift-type", "EV", "--shift-factor")
    changed = [
        one.application_type
        for one, other in zip(made(*shift, "1"), made(*shift, "4"), strict=True)
        if one.calls != other.calls
    ]
    assert set(changed) == {"EV"}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--kind", "odd"), "no kind 'odd'; known: even, skewed, elephant"),
        (("--types", "XY"), "no type 'XY'; known: MRS"),
        (("--shift-type", "XY"), "no type 'XY'"),
        (("--window", "inf"), "the window must be finite"),
        (("--shift-factor", "0"), "the factor of a shift"),
        (("--intensity", "inf"), "intensity must be positive and finite"),
        (("--tenants", "gold=much"), "--tenants 'gold=much': write TENANT=WEIGHT"),
        (("--tenants", "gold=0"), "--tenants 'gold=0'"),
        (("--tenants", ""), "--tenants ''"),
        (("--tenants", "a=1,a=2"), "--tenants: a stands twice"),
        (("--kind", "minting", "--tenants", "a=1"), "minting has tenants of its own: honest, minter"),
        (("--applications", "0"), "Invalid value for '--applications'"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(arguments: tuple[str, ...], what: str) -> None:
    assert what in refusal("generate", *arguments)


# ---- from-trace


def test_a_trace_becomes_applications_of_one_call(arena: str) -> None:
    found = made("from-trace", arena, "--format", "vtc_arena")
    assert [(one.application_id, one.tenant, one.arrival_s) for one in found] == [
        ("line-2", "ann", 0.0),
        ("line-3", "bob", 0.5),
        ("line-4", "ann", 2.0),
        ("line-5", "bob", 4.0),
    ]


def test_rows_can_be_thinned_cut_short_and_sped_up(arena: str) -> None:
    command = ("from-trace", arena, "--format", "vtc_arena")
    assert [one.arrival_s for one in made(*command, "--longest", "7344")] == [0.0, 2.0, 4.0]
    assert [one.arrival_s for one in made(*command, "--every", "2")] == [0.0, 2.0]
    assert [one.arrival_s for one in made(*command, "--applications", "2")] == [0.0, 0.5]
    assert [one.arrival_s for one in made(*command, "--intensity", "2")] == [0.0, 0.25, 1.0, 2.0]


def test_generated_applications_take_a_traces_arrivals(arena: str) -> None:
    command = ("from-trace", arena, "--format", "vtc_arena", "--types", "SC", "--seed", "3")
    found = made(*command)
    assert [(one.application_type, one.tenant, one.arrival_s) for one in found] == [
        ("SC", "ann", 0.0),
        ("SC", "bob", 0.5),
        ("SC", "ann", 2.0),
        ("SC", "bob", 4.0),
    ]
    assert found == made(*command)


def test_traces_come_packed_or_on_the_standard_input(arena: str, tmp_path: Path) -> None:
    plain = made("from-trace", arena, "--format", "vtc_arena")
    assert made("from-trace", "-", "--format", "vtc_arena", stdin=ARENA) == plain
    packed = tmp_path / "arena.csv.gz"
    packed.write_bytes(gzip.compress(ARENA.encode()))
    assert made("from-trace", str(packed), "--format", "vtc_arena") == plain


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "marked.csv"
    path.write_text(ARENA, "utf-8-sig")
    assert len(made("from-trace", str(path), "--format", "vtc_arena")) == 4


def test_what_is_wrong_with_a_trace_is_named(arena: str, tmp_path: Path) -> None:
    bad, garbage, torn = (tmp_path / name for name in ("bad.csv", "garbage.csv", "torn.gz"))
    bad.write_text(ARENA + "4,ann,x,5,9\n", "utf-8")
    garbage.write_bytes(b"\xff\xfe\x00")
    torn.write_bytes(gzip.compress(ARENA.encode())[:-12])
    arguments = ("--format", "vtc_arena")
    assert "bad.csv: line 6, column prompt_len: must be an integer" in refusal("from-trace", str(bad), *arguments)
    assert "garbage.csv: 'utf-8' codec can't decode" in refusal("from-trace", str(garbage), *arguments)
    assert "torn.gz: " in refusal("from-trace", str(torn), *arguments)
    assert "No such file" in refusal("from-trace", str(tmp_path / "none"), *arguments)
    assert "Is a directory" in refusal("from-trace", str(tmp_path), *arguments)
    assert "no rows are left" in refusal("from-trace", arena, *arguments, "--longest", "1")
    assert "no format 'odd'; known: mooncake" in refusal("from-trace", arena, "--format", "odd")
    assert "no type 'XY'" in refusal("from-trace", arena, *arguments, "--types", "XY")


# ---- show


def test_show_counts_by_type_and_tenant(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(run("from-trace", "-", "--format", "vtc_arena", stdin=ARENA).stdout, "utf-8")
    found = json.loads(run("show", str(path), "--json").stdout)
    costs = [p * d + d * (d + 1) / 2 for p, d in ((13, 199), (9000, 137), (36, 20), (40, 30))]
    assert (found["applications"], found["calls"], found["last_arrival_s"]) == (4, 4, 4.0)
    assert found["cost"] == sum(costs)
    assert found["least_work_s"] == pytest.approx(sum(costs) / 7344 * 0.022)
    assert set(found["by_type"]) == {"vtc_arena"}
    ann = found["by_tenant"]["ann"]
    assert ann["mean_cost"] == pytest.approx((costs[0] + costs[2]) / 2)
    assert ann["cost_share"] == pytest.approx((costs[0] + costs[2]) / sum(costs))
    assert (ann["applications"], ann["mean_calls"], ann["median_prompt_tokens"]) == (2, 1.0, 24.5)


def test_show_prints_a_table_that_fits_the_terminal() -> None:
    workload = run("generate", "--applications", "200", "--tenants", "gold,[free]").stdout
    result = run("show", "-", stdin=workload)
    assert result.exit_code == 0
    for word in ("MRS", "KBQAV", "ALFWI", "gold", "[free]", "200 applications with"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "tenant" not in run("show", "-", stdin=run("generate", "--applications", "5").stdout).stdout


def test_show_names_what_it_cannot_read(tmp_path: Path) -> None:
    assert "No such file" in refusal("show", str(tmp_path / "none"))
    assert "stdin: line 1: " in refusal("show", "-", stdin="{}\n")
    assert "no applications" in refusal("show", "-", stdin="")


def test_every_command_has_help_with_an_example() -> None:
    for command in ("generate", "from-trace", "show"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"justitia workload {command}" in result.stdout
