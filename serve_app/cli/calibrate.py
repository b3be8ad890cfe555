"""`justitia calibrate`: an engine profile for the simulator from the iterations of a live engine."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scheduler.sim.calibration import CalibrationError, Fit, Iteration, fit, read_iterations
from scheduler.sim.engine import EngineProfile
from scheduler.sim.engines import write_profile
from scheduler.sim.twin import Replay
from scheduler.types import EngineLimits
from serve_app.cli import http
from serve_app.cli.event_logs import log_files, mistakes_in_log, read_log
from serve_app.cli.simulation_runs import CannotSimulate, load_engine

MILLI, MICRO = 1e3, 1e6
GOOD_R_SQUARED = 0.5


def calibrate(
    log: Annotated[Path, typer.Argument(help="An engine's iteration log (JSON Lines).")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the profile here, as JSON.", show_default=False)
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="Take all but the speed from this engine, or FILE.json.")
    ] = "reference",
    limits_from: Annotated[
        Path | None,
        typer.Option(
            "--limits-from",
            metavar="LOG",
            help="Take pool, batch and length from the last replica of this event log.",
            show_default=False,
        ),
    ] = None,
    as_json: http.JsonOption = False,
) -> None:
    """Fit how long an engine's iterations last: base + sequences + prefilled tokens, by least squares.

    An engine with [bold]iteration_log: FILE[/bold] in its settings (serve_config.yaml) writes one line an iteration:

    \b
    {"duration_s": 0.024, "sequences": 12, "prefilled_tokens": 0}

    Let it serve traffic of all sizes, then

    \b
    justitia calibrate iterations.jsonl --out profile.json
    justitia simulate --workload trace.jsonl --engine profile.json

    Example: [bold]justitia calibrate iterations.jsonl --limits-from state_dir --out profile.json[/bold]
    """
    try:
        fitted = fit(_read(log))
        profile = fitted.applied_to(_base(engine, limits_from))
        if out is not None:
            out.write_text(write_profile(profile), "utf-8")
    except OSError as error:
        http.complain(f"{out}: {error.strerror or error}")
        raise typer.Exit(http.REFUSED) from None
    except (CalibrationError, CannotSimulate) as error:
        http.complain(f"{log}: {error}" if isinstance(error, CalibrationError) else str(error))
        raise typer.Exit(http.REFUSED) from None
    if as_json:
        http.print_json({"fit": asdict(fitted), "profile": asdict(profile)})
        return
    Console().print(_table(fitted))
    if fitted.r_squared < GOOD_R_SQUARED:
        _note(
            f"R² is below {GOOD_R_SQUARED}: iterations mostly differ for other reasons. Is the machine busy otherwise?"
        )
    if out is not None:
        _note(f"The profile is in {out}.")


def _note(text: str) -> None:
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def _read(log: Path) -> list[Iteration]:
    try:
        with log.open(encoding="utf-8") as lines:
            return read_iterations(lines)
    except OSError as error:
        raise CannotSimulate(f"{log}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CannotSimulate(f"{log}: {error}") from error


def _base(engine: str, limits_from: Path | None) -> EngineProfile:
    """What a fit says nothing of."""
    profile = load_engine(engine)
    if limits_from is None:
        return profile
    limits = _last_limits(limits_from)
    return replace(
        profile,
        block_tokens=limits.block_tokens,
        usable_blocks=limits.usable_blocks,
        max_model_len=limits.max_model_len,
        max_sequences=limits.max_sequences,
    )


def _last_limits(path: Path) -> EngineLimits:
    found: EngineLimits | None = None
    for file in log_files(path):
        with mistakes_in_log(file):
            replayed = Replay(read_log(file))
            for _ in replayed.steps():
                pass
        found = next(reversed(replayed.limits.values()), found)
    if found is None:
        raise CannotSimulate(f"{path}: no replica joined")
    return found


def _table(fitted: Fit) -> Table:
    table = Table(
        "what", "fitted", title=f"{fitted.iterations:,} iterations of {fitted.mean_duration_s * MILLI:.2f} ms"
    )
    table.add_row("base", f"{fitted.base_s * MILLI:.3f} ms")
    table.add_row("a sequence", f"{fitted.per_sequence_s * MICRO:.2f} µs")
    table.add_row("a prefilled token", f"{fitted.per_prefill_token_s * MICRO:.2f} µs")
    table.add_row("R²", f"{fitted.r_squared:.4f}")
    table.add_row("mean absolute error", f"{fitted.mean_absolute_error_s * MILLI:.3f} ms")
    return table
