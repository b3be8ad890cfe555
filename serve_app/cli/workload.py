"""`justitia workload`: make workloads for `justitia simulate`, from a seed or a public trace, and look at them.

Applications are written as they are made, so that a workload may be larger than the memory. A mistake ends the command
with 2 and a sentence; what was written before it stays.
"""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scheduler.sim.generators import (
    SCENARIOS,
    GeneratorError,
    Load,
    among_tenants,
    generate,
    parse_mix,
    with_shared_prefixes,
)
from scheduler.sim.traces import FORMATS, TraceRow, as_applications, as_arrivals, read_trace
from scheduler.sim.workload import TraceApplication, WorkloadError, at_intensity, write_application
from scheduler.types import MAX_WEIGHT, MIN_WEIGHT
from serve_app.cli import http
from serve_app.cli.simulation_runs import CannotSimulate, load_workload
from serve_app.cli.workload_tables import measure_workload, shown

ENCODING = "utf-8-sig"
USUAL = Load()
MAX_APPLICATIONS = 10_000_000
KINDS = "; ".join(f"{name}: {scenario.summary}" for name, scenario in SCENARIOS.items())

workload = typer.Typer(
    help="Make workloads for justitia simulate, from a seed or a public trace, and look at them.",
    rich_markup_mode="rich",
    no_args_is_help=True,
)

SeedOption = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same workload.", min=0)]
IntensityOption = Annotated[float, typer.Option(metavar="X", help="Everybody arrives X times as fast.", min=1e-9)]


@workload.command("generate")
def generate_command(
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help=f"{KINDS}.")] = "even",
    seed: SeedOption = 0,
    applications: Annotated[
        int, typer.Option(metavar="N", help="So many (beside an elephant).", min=1, max=MAX_APPLICATIONS)
    ] = 300,
    window: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds within which they arrive.", min=0, show_default="3.6 an application"),
    ] = None,
    intensity: IntensityOption = 1.0,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="MIX", help="even, skewed, mice, or types with weights: SC=2,EV=1.", show_default="the kind's"
        ),
    ] = None,
    tenants: Annotated[
        str | None,
        typer.Option(metavar="T=W,T=W", help="Spread them over tenants with weights.", show_default="one tenant"),
    ] = None,
    shared_prefixes: Annotated[
        bool, typer.Option("--shared-prefixes", help="Add hashes of prompts that calls have in common.")
    ] = False,
    mice_tenant: Annotated[
        str, typer.Option(metavar="T", help="elephant: whose the small ones are.")
    ] = USUAL.mice_tenant,
    shift_type: Annotated[str, typer.Option(metavar="TYPE", help="shift: whose answers grow.")] = USUAL.shift_type,
    shift_factor: Annotated[float, typer.Option(metavar="X", help="shift: by how much.")] = USUAL.shift_factor,
) -> None:
    """Generate applications of nine types, as JSON Lines on the standard output.

    \b
    justitia workload generate --kind even --seed 7 --applications 300 > f.jsonl
    justitia workload generate --kind elephant --mice-tenant others > e.jsonl
    justitia workload generate --types SC=2,EV=1 --tenants gold=3,free=1 > t.jsonl
    justitia simulate --workload t.jsonl --tenant-weight gold=3
    """
    with mistakes_in_words():
        load = Load(
            applications=applications,
            window_s=window,
            mix=None if types is None else parse_mix(types),
            shift_type=shift_type,
            shift_factor=shift_factor,
            mice_tenant=mice_tenant,
        )
        made = generate(kind, load, seed)
        if tenants is not None:
            _check_has_no_tenants(kind)
            made = among_tenants(made, _tenant_weights(tenants), seed)
        if shared_prefixes:
            made = with_shared_prefixes(made)
        _write(at_intensity(made, intensity))


@workload.command("from-trace")
def from_trace(
    file: Annotated[str, typer.Argument(help="The trace, gzip if it ends in .gz; - reads stdin.")],
    format_name: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")],
    types: Annotated[
        str | None,
        typer.Option(
            metavar="MIX",
            help="Generate applications at the trace's arrivals: even, skewed, mice, or SC=2,EV=1.",
            show_default="one call a row",
        ),
    ] = None,
    applications: Annotated[
        int | None, typer.Option(metavar="N", help="The first N.", min=1, show_default="all")
    ] = None,
    every: Annotated[int, typer.Option(metavar="K", help="Only every K-th row.", min=1)] = 1,
    longest: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", help="Leave out longer rows, prompt and output together.", min=1, show_default="keep all"
        ),
    ] = None,
    intensity: IntensityOption = 1.0,
    seed: SeedOption = 0,
) -> None:
    """Turn a public trace into applications, as JSON Lines on the standard output.

    \b
    justitia workload from-trace conversation_trace.jsonl --format mooncake \\
        --longest 7344 > f.jsonl
    justitia workload from-trace conversation_trace.jsonl --format mooncake \\
        --types even --every 20 --applications 300 > f.jsonl
    """
    with mistakes_in_words(file), _lines_of(file) as lines:
        mix = None if types is None else parse_mix(types)
        rows = islice(_short_rows(read_trace(lines, format_name), longest), 0, None, every)
        made = as_applications(rows) if mix is None else as_arrivals(rows, mix, random.Random(seed))
        written = _write(at_intensity(islice(made, applications), intensity))
        if not written:
            raise WorkloadError("no rows are left")


@workload.command()
def show(
    file: Annotated[str, typer.Argument(help="A workload, gzip or not; - reads stdin.")],
    as_json: http.JsonOption = False,
) -> None:
    """Show what is in a workload: applications, calls, tokens and costs by type and by tenant.

    Example: justitia workload show f.jsonl
    """
    with mistakes_in_words():
        found = measure_workload(load_workload(file, 1.0, None, 0).open())
    if as_json:
        http.print_json(found.document())
        return
    console = Console()
    for part in shown(found):
        console.print(part)


@contextmanager
def mistakes_in_words(source: str | None = None) -> Iterator[None]:
    """End the command with 2 and a sentence for what a user got wrong; `source` says in which file."""
    where = "" if source is None else f"{source}: "
    try:
        yield
    except (CannotSimulate, GeneratorError) as error:
        _end(str(error))
    except (WorkloadError, UnicodeDecodeError, EOFError, zlib.error) as error:
        _end(f"{where}{error}")
    except BrokenPipeError:
        raise
    except OSError as error:
        _end(f"{where}{error.strerror or error}")


def _end(reason: str) -> None:
    http.complain(reason)
    raise typer.Exit(http.REFUSED) from None


def _write(applications: Iterable[TraceApplication]) -> int:
    """Write them to the standard output; returns how many there were."""
    count = 0
    for application in applications:
        sys.stdout.write(write_application(application) + "\n")
        count += 1
    return count


@contextmanager
def _lines_of(file: str) -> Iterator[Iterable[str]]:
    if file == "-":
        yield sys.stdin
    elif file.endswith(".gz"):
        with gzip.open(file, "rt", encoding=ENCODING, newline="") as lines:
            yield lines
    else:
        with Path(file).open(encoding=ENCODING, newline="") as lines:
            yield lines


def _short_rows(rows: Iterable[TraceRow], longest_tokens: int | None) -> Iterator[TraceRow]:
    return (row for row in rows if longest_tokens is None or row.tokens <= longest_tokens)


def _check_has_no_tenants(kind: str) -> None:
    if own := SCENARIOS[kind].own_tenants:
        raise GeneratorError(f"--tenants: {kind} has tenants of its own: {', '.join(own)}")


def _tenant_weights(text: str) -> Mapping[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        tenant, equals, weight = part.strip().rpartition("=")
        tenant = tenant if equals else weight
        try:
            value = float(weight) if equals else 1.0
        except ValueError:
            value = 0.0
        if not tenant or not MIN_WEIGHT <= value <= MAX_WEIGHT:
            raise GeneratorError(f"--tenants {part.strip()!r}: write TENANT=WEIGHT, as in gold=3")
        if tenant in weights:
            raise GeneratorError(f"--tenants: {tenant} stands twice")
        weights[tenant] = value
    return weights
