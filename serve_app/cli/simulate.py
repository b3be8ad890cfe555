"""`justitia simulate`: what would a policy do to this traffic?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scheduler.policies import PolicyOption
from scheduler.policies.contract import Need
from scheduler.settings import Admission, ClockMode, CoreSettings, Flows
from serve_app.cli import http
from serve_app.cli.event_logs import recorded_traffic
from serve_app.cli.simulation_needs import missing_needs
from serve_app.cli.simulation_runs import (
    Advance,
    CannotSimulate,
    Question,
    Run,
    Workload,
    answer,
    check_policy,
    chosen_policies,
    load_engines,
    load_predictor,
    load_workload,
    options_by_policy,
    workload_of,
)
from serve_app.cli.simulation_tables import documents, tables

DEFAULT_POLICIES = "fcfs,vtc,srtf,justitia"
YARDSTICK = "vtc"
TRAFFIC, POLICY, ENGINE = "Traffic", "Policies", "Engines"


def simulate(
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="FILE",
            help="JSON Lines, gzip or not; - for stdin.",
            show_default="a small example",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    from_log: Annotated[
        Path | None,
        typer.Option(
            "--from-log",
            metavar="LOG",
            help="The traffic of a live run: its event log, or its state_dir.",
            show_default=False,
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    intensity: Annotated[
        float,
        typer.Option(metavar="X", help="Everybody arrives X times as fast.", min=1e-9, rich_help_panel=TRAFFIC),
    ] = 1.0,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The first N applications only.", min=1, show_default="all", rich_help_panel=TRAFFIC
        ),
    ] = None,
    tenant_weight: Annotated[
        list[str] | None,
        typer.Option(
            "--tenant-weight",
            metavar="TENANT=W",
            help="Repeatable; a tenant that is not named weighs 1.",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            metavar="A,B",
            help="Names between commas, or all (see justitia policies).",
            rich_help_panel=POLICY,
        ),
    ] = DEFAULT_POLICIES,
    yardstick: Annotated[
        str | None,
        typer.Option(
            "--yardstick",
            metavar="A",
            help="Compare applications with themselves under A.",
            show_default="vtc if listed",
            rich_help_panel=POLICY,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="Of the policies that have it; POLICY.NAME=VALUE of one. Repeatable.",
            rich_help_panel=POLICY,
        ),
    ] = None,
    predictor: Annotated[
        str,
        typer.Option(
            "--predictor",
            metavar="NAME",
            help="oracle, type_mean, none, or a trained model's directory.",
            rich_help_panel=POLICY,
        ),
    ] = "oracle",
    predictor_quantile: Annotated[
        float | None,
        typer.Option(
            "--predictor-quantile",
            metavar="Q",
            help="Order by costs that are not exceeded with probability Q.",
            show_default="a trained model's point estimate",
            rich_help_panel=POLICY,
        ),
    ] = None,
    flows: Annotated[
        Flows,
        typer.Option(
            metavar="KIND", help="Such policies as vtc share among applications or tenants.", rich_help_panel=POLICY
        ),
    ] = Flows.APPLICATIONS,
    tenant_level: Annotated[
        bool,
        typer.Option("--tenant-level/--no-tenant-level", help="Others share among tenants.", rich_help_panel=POLICY),
    ] = True,
    clock: Annotated[
        ClockMode,
        typer.Option(
            metavar="KIND", help="What moves virtual time: service, iteration, capacity.", rich_help_panel=POLICY
        ),
    ] = ClockMode.SERVICE,
    clock_rate: Annotated[
        float,
        typer.Option(
            metavar="X", help="Above 1 large ones wait less, small ones pay.", min=1e-6, rich_help_panel=POLICY
        ),
    ] = 1.0,
    clock_hz: Annotated[
        float,
        typer.Option(metavar="X", help="Iterations a second of the clock capacity.", min=1e-6, rich_help_panel=POLICY),
    ] = 40.0,
    seed: Annotated[
        int,
        typer.Option(metavar="N", help="Of the example and of policies of chance.", min=0, rich_help_panel=POLICY),
    ] = 0,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="A name or FILE.json, xN for N of it; several between commas.",
            rich_help_panel=ENGINE,
        ),
    ] = "reference",
    replicas: Annotated[
        int, typer.Option(metavar="N", help="So many of each engine.", min=1, max=1000, rich_help_panel=ENGINE)
    ] = 1,
    admission: Annotated[
        Admission,
        typer.Option(
            metavar="KIND", help="engine (what fits now) or projected_peak (what will fit).", rich_help_panel=ENGINE
        ),
    ] = Admission.ENGINE,
    watermark: Annotated[
        float,
        typer.Option(
            metavar="X", help="Memory share that projected_peak leaves free.", min=0, max=0.99, rich_help_panel=ENGINE
        ),
    ] = 0.0,
    details: Annotated[bool, typer.Option("--details", help="Also a table by application type.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a report with charts.", show_default=False),
    ] = None,
    as_json: http.JsonOption = False,
) -> None:
    """Simulate policies on a workload in virtual time and compare them. No service is needed.

    Your own trace: one application a line, in order of arrival.

    \b
    {"application_id": "a1", "application_type": "report", "arrival_s": 0.5,
     "calls": [{"name": "draft", "prompt_tokens": 800, "output_tokens": 200},
               {"name": "check", "after": ["draft"],
                "prompt_tokens": 300, "output_tokens": 50}]}
    (on one line; optional: tenant, weight, deadline_s, period_s, prompt;
     of a call: sequences, delay_s, and prefix, hashes of its leading blocks)

    \b
    justitia simulate                                  a small example
    justitia simulate --workload trace.jsonl --intensity 2
    justitia simulate --workload trace.jsonl --policies vtc,justitia \\
        --tenant-weight gold=3 --html report.html
    zcat big.gz | justitia simulate --workload - --limit 1000 --json
    justitia simulate --from-log state_dir --engine profile.json
    """
    with mistakes_in_words(ValueError):
        check_can_write(html)
        chosen = chosen_policies(policies)
        compared_with = _yardstick(yardstick, chosen)
        everybody = list(dict.fromkeys([*chosen, *([compared_with] if compared_with else [])]))
        question = Question(
            policies=chosen,
            yardstick=compared_with,
            core=CoreSettings(
                flows=flows,
                tenant_level=tenant_level,
                tenant_weights=tuple(_weight(text) for text in tenant_weight or ()),
                clock=clock,
                clock_rate=clock_rate,
                nominal_iterations_per_s=clock_hz,
                admission=admission,
                watermark=watermark,
            ),
            options=options_by_policy(everybody, [_option(text) for text in option or ()], seed),
            engines=load_engines(engine, replicas),
            create_predictor=load_predictor(predictor, predictor_quantile),
            workload=_traffic(workload, from_log, intensity, limit, seed),
        )
    with mistakes_in_words():
        _warn_of_missing_needs(question)
        runs = run_with_progress(question)
        if html is not None:
            _write_report(html, runs, workload or str(from_log or "the example"), intensity)
    if as_json:
        http.print_json(documents(runs))
        return
    console = Console()
    for table in tables(runs, details):
        console.print(table)
        console.print()
    if html is not None:
        Console(stderr=True).print(f"The report is in {html}.", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def mistakes_in_words(*others: type[Exception]) -> Iterator[None]:
    """End the command with 2 and a sentence for what a user got wrong: CannotSimulate and these other exceptions."""
    mistakes: tuple[type[Exception], ...] = (CannotSimulate, *others)
    try:
        yield
    except mistakes as error:
        http.complain(str(error))
        raise typer.Exit(http.REFUSED) from None


def run_with_progress(question: Question) -> list[Run]:
    """The runs; on a terminal, with a bar of applications finished for each policy on the standard error stream."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def progress_of(policy: str) -> Advance:
            task = progress.add_task(policy, total=question.workload.count)
            return lambda: progress.advance(task)

        return answer(question, progress_of)


def _traffic(workload: str | None, from_log: Path | None, intensity: float, limit: int | None, seed: int) -> Workload:
    """What is to be served; of a log, say on the standard error stream what is left out."""
    if from_log is None:
        return load_workload(workload, intensity, limit, seed)
    if workload is not None:
        raise CannotSimulate("--workload and --from-log: choose one")
    applications, recording = recorded_traffic(from_log)
    Console(stderr=True).print(
        f"{from_log}: {len(applications)} applications; left out: {recording.left_out}. "
        "Each is known whole at its arrival and thinks as long between calls as it did.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return workload_of(applications, intensity, limit, str(from_log))


def _warn_of_missing_needs(question: Question) -> None:
    """Say in a line on the standard error stream what the policies go by and the workload does not carry."""
    given = {Need.WEIGHTS} if question.core.tenant_weights else set()
    missing = missing_needs(question.all_policies, question.workload.open(), given)
    if missing is not None:
        Console(stderr=True).print(missing, markup=False, highlight=False, soft_wrap=True)


def _yardstick(named: str | None, chosen: Sequence[str]) -> str | None:
    if named is not None:
        check_policy(named)
        return named
    return YARDSTICK if YARDSTICK in chosen else None


def check_can_write(path: Path | None) -> None:
    """Before the runs, which may take long."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise CannotSimulate(f"--html {path}: no file can be written there")


def _write_report(path: Path, runs: Sequence[Run], source: str, intensity: float) -> None:
    from serve_app.cli.report import report_html  # plotly takes a second to import

    try:
        path.write_text(report_html(runs, source, intensity), "utf-8")
    except OSError as error:
        raise CannotSimulate(f"{path}: {error.strerror}") from error


def _weight(text: str) -> tuple[str, float]:
    tenant, _, weight = text.rpartition("=")
    try:
        return tenant, float(weight)
    except ValueError:
        raise CannotSimulate(f"--tenant-weight {text!r}: write TENANT=WEIGHT, as in gold=3") from None


def _option(text: str) -> tuple[str, PolicyOption]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise CannotSimulate(f"--option {text!r}: write NAME=VALUE, as in quantum=2")
    return name, _number_or_text(value)


def _number_or_text(value: str) -> PolicyOption:
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return value
