"""Figure 7: the queue that the paper works through by hand, as a workload and an engine that are exactly it.

The pool holds M = 10,000 tokens in blocks of one, an iteration lasts 0.2 s whatever is in it, and virtual time runs at
M an iteration (the paper's dV/dt = M/N). App-1 (two calls) costs 4.5 s of the whole pool, App-2 (four calls, from
second 4) 5.25 s and App-3 (three calls, from second 5) 3.75 s. Fair sharing then ends App-1 at 5, App-3 at 12.5 and
App-2 at 13.5. Calls are so large that each mark is the moment at which the next ones fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.actions import Action, Grant
from scheduler.events import Event
from scheduler.settings import ClockMode
from scheduler.sim.engine import EngineProfile
from scheduler.sim.experiments.findings import Comparison, Findings, Table
from scheduler.sim.experiments.laboratory import Laboratory, under
from scheduler.sim.simulation import Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication, TraceCall

PAPER_FINISHES_S = {"App-1": 5.0, "App-3": 12.5, "App-2": 13.5}
PAPER_STARTS = ("App-1",) * 2 + ("App-2",) + ("App-3",) * 3 + ("App-2",) * 3
PAPER_MARKS_S = (0.0, 4.0, 5.0, 6.0, 8.0, 11.0, 12.0)

ENGINE = EngineProfile(
    block_tokens=1,
    usable_blocks=10_000,
    prefill_tokens_per_iteration=20_000,
    base_s=0.2,
    per_sequence_s=0.0,
    per_prefill_token_s=0.0,
    max_model_len=10_000,
)
QUEUE = (
    ("App-1", 0.0, ((3952, 20), (5817, 25))),
    ("App-2", 4.0, ((3800, 10), (5000, 30), (2500, 15), (2416, 15))),
    ("App-3", 5.0, ((4001, 15), (2381, 25), (2235, 30))),
)
"""Name, arrival in seconds, and of each call the prompt and output tokens."""

Start = tuple[float, str, str]
"""(second, application, call)."""


def queue() -> list[TraceApplication]:
    return [
        TraceApplication(
            application_id=name,
            arrival_s=arrival_s,
            calls=tuple(
                TraceCall(name=f"{name}-{number}", prompt_tokens=prompt_tokens, output_tokens=output_tokens)
                for number, (prompt_tokens, output_tokens) in enumerate(calls, start=1)
            ),
        )
        for name, arrival_s, calls in QUEUE
    ]


def run_queue() -> tuple[SimulationResult, list[Start]]:
    """The result, and the starts of the calls in their order."""
    starts: list[Start] = []

    def hear(now_s: float, event: Event, actions: Sequence[Action]) -> None:
        starts.extend((now_s, one.application_id, one.call_id) for one in actions if isinstance(one, Grant))

    core = under("justitia", clock=ClockMode.ITERATION).core
    settings = SimulationSettings(policy="justitia", core=core, engines=(ENGINE,))
    return Simulation(queue(), settings, hear=hear).run(), starts


def figure_7(laboratory: Laboratory) -> Findings:
    """GPS finishes, order of starts and marks."""
    result, starts = run_queue()
    finishes_s = {one.application_id: one.gps_finish_s for one in result.applications}
    return Findings(
        name="fig7",
        title="The worked queue of three applications",
        source="the paper's three applications, written out",
        comparisons=(
            *(
                Comparison(
                    measure=f"{name} ends under fair sharing (GPS)", unit="s", paper=second, ours=finishes_s[name]
                )
                for name, second in PAPER_FINISHES_S.items()
            ),
            Comparison(
                measure="order of starts",
                unit="",
                paper=_in_words(PAPER_STARTS),
                ours=_in_words([name for _, name, _ in starts]),
            ),
            Comparison(
                measure="marks (starts)",
                unit="s",
                paper=_listed(PAPER_MARKS_S),
                ours=_listed(sorted({second for second, _, _ in starts})),
            ),
        ),
        tables=(
            Table(title="Starts", headings=("second", "application", "call"), rows=tuple(starts)),
            Table(
                title="Ends",
                headings=("application", "arrival s", "end s", "GPS end s", "bound s"),
                rows=tuple(
                    (one.application_id, one.arrival_s, one.finish_s, one.gps_finish_s, one.bound_s)
                    for one in result.applications
                ),
            ),
        ),
        remarks=(
            "The paper gives the finishes, the order and the marks. The sizes of the calls are ours, chosen so that "
            "all of these come out; it does not say which starts share a mark, nor when App-2 really ends.",
        ),
    )


def _in_words(names: Sequence[str]) -> str:
    """`App-1 ×2, App-2 ×1`: each name with how often it comes in a row."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return ", ".join(f"{name} ×{count}" for name, count in runs)


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{second:g}" for second in seconds)
