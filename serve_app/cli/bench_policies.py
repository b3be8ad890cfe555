"""`justitia bench policies`: policies on a real engine, one after another, with the same applications."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cluster.models import ModelUnavailable
from serve_app.cli import http
from serve_app.cli.bench_policies_tables import calibration_line, documents, left_out_line, tables
from serve_app.cli.service import DEFAULT_CONFIG, ConfigOption
from serve_app.cli.simulate import check_can_write, mistakes_in_words
from serve_app.cli.simulation_runs import CannotSimulate, chosen_policies
from serve_app.policy_bench.bench import Bench, Question
from serve_app.policy_bench.calibration import Calibration
from serve_app.policy_bench.comparison import Compared
from serve_app.policy_bench.results import ResultsError
from serve_app.policy_bench.traffic import TrafficError

DEFAULT_POLICIES = "vtc,fcfs,app_fcfs,srtf,justitia"


def policies(
    workload: Annotated[
        Path,
        typer.Option("--workload", metavar="FILE", help="Applications as `justitia simulate` reads them.", exists=True),
    ],
    names: Annotated[
        str, typer.Option("--policies", metavar="A,B", help="Names between commas (see justitia policies).")
    ] = DEFAULT_POLICIES,
    intensity: Annotated[float, typer.Option(metavar="X", help="Everybody arrives X times as fast.", min=1e-9)] = 3.0,
    apps: Annotated[int, typer.Option(metavar="N", help="The first N applications.", min=1)] = 110,
    predictor: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A model of justitia train.", show_default="running means", exists=True, file_okay=False
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results are kept; what is there is not run again.")
    ] = Path("policy-bench"),
    stretch: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Time between arrivals, of the trace's.",
            min=1e-6,
            max=1e6,
            show_default="the engine's time for the work, of the reference engine's",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Give a policy up after so long.", min=1)] = 1800.0,
    simulated: Annotated[bool, typer.Option("--simulated", help="The simulated engine, ten times as fast.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with charts.", show_default=False)
    ] = None,
    as_json: http.JsonOption = False,
) -> None:
    """Compare policies on a real engine: the same applications, over HTTP, one policy after another.

    The service is brought up for each policy on vLLM with a tiny model whose KV memory is what applications wait for.
    Clients submit whole applications at the trace's times and follow them to their ends; prompts and answers have the
    trace's lengths, which the service is not told. Before that applications of the trace, others where it has enough,
    calibrate the simulator (the twin). Its forecast of a policy's run is made after it, from the calibration and the
    pace that the machine had in the run; the blind one is from the calibration alone. Only what finished under every
    policy is compared. Ends with 3 if an application failed.

    \b
    justitia bench policies --workload trace.jsonl
    justitia bench policies --workload trace.jsonl --predictor model --policies vtc,justitia \\
        --intensity 3 --apps 110 --out results --html report.html
    """
    from cluster.deploy.local import load_config  # Ray takes a second to import

    console = Console(stderr=True)
    mistakes = mistakes_in_words(ModelUnavailable, ResultsError, TrafficError, ValueError)
    with redirect_stdout(sys.stderr), mistakes:  # Ray says some of its troubles on the standard output
        check_can_write(html)
        question = Question(
            workload=workload,
            policies=chosen_policies(names),
            intensity=intensity,
            apps=apps,
            predictor_dir=predictor,
            stretch=stretch,
            seconds=seconds,
            simulated=simulated,
            config=load_config(config),
        )
        calibration, compared = _run(question, out, console)
    _print(compared, calibration, as_json)
    with mistakes_in_words():
        if html is not None:
            _write_report(html, compared, str(workload), intensity)
    if any(one.errors for one in compared):
        raise typer.Exit(http.NOT_FINISHED)


def _run(question: Question, out: Path, console: Console) -> tuple[Calibration, list[Compared]]:
    try:
        with Bench(question, out, console) as bench:
            calibration = bench.calibration()
            console.print(calibration_line(calibration), soft_wrap=True, highlight=False)
            return calibration, bench.compared()
    except KeyboardInterrupt:
        http.complain(f"Interrupted. What has ended is kept in {out}: the same command goes on from there.")
        raise


def _print(compared: Sequence[Compared], calibration: Calibration, as_json: bool) -> None:
    for one in compared:
        for application_id, error in one.errors.items():
            http.complain(f"{one.run.policy}: {application_id}: {error}")
    if compared[0].left_out:
        http.complain(left_out_line(compared))
    if as_json:
        http.print_json(documents(compared, calibration))
        return
    if _finished(compared):
        for table in tables(compared):
            Console().print(table)


def _finished(compared: Sequence[Compared]) -> bool:
    """Did any application finish under every policy?"""
    return bool(compared[0].run.result.applications)


def _write_report(path: Path, compared: Sequence[Compared], source: str, intensity: float) -> None:
    """Write it; where there is nothing to compare, say that there is none."""
    from serve_app.cli.bench_policies_report import report_of  # plotly takes a second to import

    if not _finished(compared):
        http.complain("there is no report: no application finished under every policy")
        return
    try:
        path.write_text(report_of(compared, source, intensity), "utf-8")
    except OSError as error:
        raise CannotSimulate(f"{path}: {error.strerror}") from error
    Console(stderr=True).print(f"The report is in {path}.", markup=False, highlight=False, soft_wrap=True)
