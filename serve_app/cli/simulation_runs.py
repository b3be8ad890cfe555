"""What `justitia simulate` runs: the workload it reads, the engines and predictor it is asked for, and the runs.

Everything that a user can get wrong is a `CannotSimulate` with a sentence that says what and where.
"""

from __future__ import annotations

import gzip
import io
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from scheduler.policies import POLICIES, PolicyOption, create_policy, policy_options
from scheduler.settings import CoreSettings
from scheduler.sim.engine import EngineProfile
from scheduler.sim.engines import ENGINES, EngineError, parse_engines, parse_profile
from scheduler.sim.metrics import Measures, completion_of, measure
from scheduler.sim.prediction import Nothing, Oracle, Predictor, TypeMean
from scheduler.sim.service import ServiceMeter, ServiceRecord
from scheduler.sim.simulation import ApplicationResult, Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall, WorkloadError, at_intensity, read_workload

GZIP_MAGIC = b"\x1f\x8b"
ENCODING = "utf-8-sig"
EXAMPLE_APPLICATIONS = 60
PREDICTORS: Mapping[str, Callable[[], Predictor]] = {"oracle": Oracle, "type_mean": TypeMean, "none": Nothing}

Advance = Callable[[], None]
OpenWorkload = Callable[[], Iterable[TraceApplication]]


class CannotSimulate(Exception):
    """A user's mistake, in words."""


# ---- the workload


@dataclass(frozen=True, slots=True)
class Workload:
    """Applications that can be gone through any number of times."""

    open: OpenWorkload
    count: int


def load_workload(path: str | None, intensity: float, limit: int | None, seed: int) -> Workload:
    """The first `limit` applications of a file (`-`: the standard input; None: the example), checked.

    A file is read again for each run, so that it need not fit into memory; the standard input must.
    """
    if path is None:
        return _checked(lambda: example_workload(seed), intensity, limit, "the example")
    if path == "-":
        text = _unpacked(sys.stdin.buffer.read())
        return _checked(lambda: read_workload(io.TextIOWrapper(io.BytesIO(text), ENCODING)), intensity, limit, "stdin")
    return _checked(lambda: _read_file(path), intensity, limit, path)


def workload_of(applications: Sequence[TraceApplication], intensity: float, limit: int | None, source: str) -> Workload:
    """The first `limit` of some applications, checked; `source` says where they are from."""
    return _checked(lambda: applications, intensity, limit, source)


def example_workload(seed: int) -> Iterator[TraceApplication]:
    """A small load of two tenants that both ask short questions and long map-reduce summaries, one more of these."""
    draw = random.Random(seed)
    arrival_s = 0.0
    for number in range(EXAMPLE_APPLICATIONS):
        arrival_s = round(arrival_s + draw.expovariate(1.0), 3)
        tenant, share_of_summaries = draw.choice((("library", 0.5), ("support", 0.2)))
        if draw.random() < share_of_summaries:
            calls, kind = _map_reduce(draw), "summary"
        else:
            calls, kind = (_call("answer", draw, 50, 400, 200),), "question"
        yield TraceApplication(
            application_id=f"{kind}-{number}",
            application_type=kind,
            tenant=tenant,
            arrival_s=arrival_s,
            prompt="Summarize these reports." if kind == "summary" else "Answer this question.",
            calls=calls,
        )


def _map_reduce(draw: random.Random) -> tuple[TraceCall, ...]:
    maps = tuple(_call(f"map{number}", draw, 300, 900, 300) for number in range(draw.randint(4, 10)))
    reduce = _call("reduce", draw, 400, 1200, 400)
    return (*maps, replace(reduce, after=tuple(call.name for call in maps)))


def _call(name: str, draw: random.Random, least_prompt: int, most_prompt: int, most_output: int) -> TraceCall:
    prompt_tokens, output_tokens = draw.randint(least_prompt, most_prompt), draw.randint(most_output // 4, most_output)
    return TraceCall(name=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def _read_file(path: str) -> Iterator[TraceApplication]:
    with Path(path).open("rb") as file, _text_of(file) as lines:
        yield from read_workload(lines)


def _text_of(file: BinaryIO) -> io.TextIOWrapper:
    packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    file.seek(0)
    return io.TextIOWrapper(gzip.GzipFile(fileobj=file) if packed else file, ENCODING)


def _unpacked(content: bytes) -> bytes:
    with _mistakes_in("stdin"):
        return gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content


def _checked(applications: OpenWorkload, intensity: float, limit: int | None, source: str) -> Workload:
    def open_workload() -> Iterator[TraceApplication]:
        return islice(at_intensity(applications(), intensity), limit)

    seen: set[str] = set()
    with _mistakes_in(source):
        for application in open_workload():
            _check(application, seen)
            seen.add(application.application_id)
    if not seen:
        raise CannotSimulate(f"{source}: no applications")
    return Workload(open_workload, len(seen))


def _check(application: TraceApplication, seen: set[str]) -> None:
    name = application.application_id
    if name in seen:
        raise WorkloadError(f"application {name}: its id stands twice")
    try:
        application.spec({call.name: call.output_tokens for call in application.calls}, None)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"application {name}: {error}") from error


@contextmanager
def _mistakes_in(source: str) -> Iterator[None]:
    """Name the source of what is wrong with a workload."""
    try:
        yield
    except OSError as error:
        raise CannotSimulate(f"{source}: {error.strerror or error}") from error
    except (WorkloadError, UnicodeDecodeError, EOFError, zlib.error, RecursionError) as error:
        raise CannotSimulate(f"{source}: {error}") from error


# ---- what it runs on


def load_engines(names: str, replicas: int) -> tuple[EngineProfile, ...]:
    """`replicas` times the engines of a list of names or JSON files, as `parse_engines` reads it."""
    return parse_engines(names, load_engine) * replicas


def load_engine(name: str) -> EngineProfile:
    """The engine of this name, or the one that a JSON file describes."""
    if name in ENGINES:
        return ENGINES[name]
    if not name.endswith(".json"):
        raise CannotSimulate(f"no engine {name!r}; known: {', '.join(sorted(ENGINES))}, or a FILE.json")
    try:
        return parse_profile(Path(name).read_text("utf-8"))
    except OSError as error:
        raise CannotSimulate(f"{name}: {error.strerror}") from error
    except (EngineError, UnicodeDecodeError) as error:
        raise CannotSimulate(f"{name}: {error}") from error


def load_predictor(name: str, quantile: float | None = None) -> Callable[[], Predictor]:
    """What makes a fresh predictor of this name for each run; `quantile` is one of a trained model's costs."""
    if name in PREDICTORS:
        if quantile is not None:
            raise CannotSimulate(f"the predictor {name!r} has no quantiles; a trained model has")
        return PREDICTORS[name]
    if Path(name).is_dir():
        return _trained_model(Path(name), quantile)
    raise CannotSimulate(f"no predictor {name!r}; known: {', '.join(PREDICTORS)}, or a trained model's directory")


def _trained_model(directory: Path, quantile: float | None) -> Callable[[], Predictor]:
    from predictors.store import ModelFileError  # scikit-learn takes a second to import
    from serve_app.trained_predictor import TrainedModel

    try:
        TrainedModel.of_directory(directory, quantile)
    except (ModelFileError, ValueError) as error:
        raise CannotSimulate(str(error)) from error
    return lambda: TrainedModel.of_directory(directory, quantile)


def chosen_policies(names: str) -> list[str]:
    """The policies between commas, or all of them."""
    if names.strip() == "all":
        return sorted(POLICIES)
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in chosen:
        check_policy(name)
    if not chosen:
        raise CannotSimulate("no policy was named")
    return chosen


def check_policy(name: str) -> None:
    if name not in POLICIES:
        raise CannotSimulate(f"no policy {name!r}; known: {', '.join(sorted(POLICIES))}")


def options_by_policy(
    policies: Sequence[str], options: Sequence[tuple[str, PolicyOption]], seed: int
) -> dict[str, tuple[tuple[str, PolicyOption], ...]]:
    """Each policy's options: `NAME` is for all that have it, `POLICY.NAME` for one; policies of chance get the seed."""
    chosen: dict[str, dict[str, PolicyOption]] = {
        name: {"seed": seed} if "seed" in policy_options(POLICIES[name]) else {} for name in policies
    }
    for name, value in options:
        policy, _, option = name.rpartition(".")
        takers = [one for one in policies if policy in ("", one) and option in policy_options(POLICIES[one])]
        if not takers:
            raise CannotSimulate(f"no policy of {', '.join(policies)} has the option {name!r}")
        for taker in takers:
            chosen[taker][option] = value
    for name, arguments in chosen.items():
        try:
            create_policy(name, arguments)
        except (TypeError, ValueError) as error:
            raise CannotSimulate(str(error)) from error
    return {name: tuple(arguments.items()) for name, arguments in chosen.items()}


# ---- the runs


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's run and its measures; `yardstick` names the policy it is compared with."""

    result: SimulationResult
    measures: Measures
    yardstick: str | None
    yardstick_mean_s: float | None

    @property
    def policy(self) -> str:
        return self.result.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be simulated: each of the policies, and the yardstick, on the same workload."""

    workload: Workload
    policies: Sequence[str]
    yardstick: str | None
    core: CoreSettings
    options: Mapping[str, tuple[tuple[str, PolicyOption], ...]]
    engines: tuple[EngineProfile, ...]
    create_predictor: Callable[[], Predictor]

    @property
    def all_policies(self) -> list[str]:
        """The policies, and the yardstick where it is none of them."""
        extra = [self.yardstick] if self.yardstick and self.yardstick not in self.policies else []
        return [*extra, *self.policies]


def answer(question: Question, progress_of: Callable[[str], Advance]) -> list[Run]:
    """The runs of the policies in their order; `progress_of(policy)` is asked for what hears of each application."""
    results: dict[str, SimulationResult] = {}
    services: dict[str, ServiceRecord] = {}
    for policy in question.all_policies:
        results[policy], services[policy] = _run(question, policy, progress_of(policy))
    yardstick = results[question.yardstick] if question.yardstick else None
    mean_s = None if yardstick is None else _mean_completion_s(yardstick)
    return [
        Run(results[policy], measure(results[policy], yardstick, services[policy]), question.yardstick, mean_s)
        for policy in question.policies
    ]


def _mean_completion_s(result: SimulationResult) -> float | None:
    completion = completion_of(result.applications)
    return None if completion is None else completion.mean_s


def _run(question: Question, policy: str, advance: Advance) -> tuple[SimulationResult, ServiceRecord]:
    core = replace(question.core, policy_options=question.options[policy])
    meter = ServiceMeter(dict(core.tenant_weights))
    ended: list[ApplicationResult] = []

    def sink(application: ApplicationResult) -> None:
        ended.append(application)
        advance()

    with _mistakes_in(policy):
        simulation = Simulation(
            question.workload.open(),
            SimulationSettings(policy=policy, core=core, engines=question.engines),
            question.create_predictor(),
            sink,
            meter.watch,
            meter.hear,
        )
        result = simulation.run()
    result.applications = sorted(ended, key=lambda one: (one.arrival_s, one.application_id))
    return result, meter.record
