"""`justitia replay`: what a recorded run did, and whether the scheduler would order it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler.actions import PublishAudit, PublishCompletion
from scheduler.sim.twin import Replay
from scheduler.types import ApplicationRecord
from serve_app.cli import http
from serve_app.cli.event_logs import log_files, mistakes_in_log, read_log
from serve_app.cli.live_table import shown_number
from serve_app.cli.simulation_runs import CannotSimulate

DISAGREES = 4
MAX_SHOWN_DISAGREEMENTS = 10


def replay(
    log: Annotated[Path, typer.Argument(help="An event log, or the directory (state_dir) that holds one an epoch.")],
    limit: Annotated[int, typer.Option(metavar="N", help="Show the last N applications; --json has all.", min=0)] = 20,
    as_json: http.JsonOption = False,
) -> None:
    """Go through the event log of a live run: the same scheduler, the same facts, so the same orders?

    A scheduler with [bold]event_log: true[/bold] (in serve_config.yaml) writes events-EPOCH.jsonl into its state_dir.
    A log holds no orders: they agree when every lease that it speaks of was granted again, to the same replica.
    Ends with 4 if one was not.

    Example: [bold]justitia replay /var/lib/justitia[/bold]
    """
    try:
        replayed = [_replay(file) for file in log_files(log)]
    except CannotSimulate as error:
        http.complain(str(error))
        raise typer.Exit(http.REFUSED) from None
    if as_json:
        http.print_json([one.document() for one in replayed])
    else:
        _show(replayed, limit)
    if any(one.replay.disagreements for one in replayed):
        raise typer.Exit(DISAGREES)


@dataclass(slots=True)
class _Replayed:
    """One log: the replay, how many events of each kind it holds, and what became of its applications."""

    file: Path
    replay: Replay
    kinds: Counter[str] = field(default_factory=Counter)
    records: dict[tuple[str, float], ApplicationRecord] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        done = self.replay
        return {
            "file": str(self.file),
            "epoch": done.header.epoch,
            "policy": done.header.policy,
            "events": done.events,
            "events_by_kind": dict(sorted(self.kinds.items())),
            "seconds": done.last_s - done.first_s,
            "grants": done.grants,
            "agrees": not done.disagreements,
            "disagreements": done.disagreements,
            "replicas": {name: asdict(limits) for name, limits in sorted(done.limits.items())},
            "unfinished_applications": sorted(done.core.applications),
            "applications": [_application(record) for record in self.records.values()],
        }


def _replay(file: Path) -> _Replayed:
    with mistakes_in_log(file):
        replayed = _Replayed(file, Replay(read_log(file)))
        for _, event, actions in replayed.replay.steps():
            replayed.kinds[type(event).__name__] += 1
            for action in actions:
                if isinstance(action, PublishCompletion | PublishAudit):
                    record = action.record
                    replayed.records[record.application_id, record.finish_s] = record
    return replayed


def _application(record: ApplicationRecord) -> dict[str, Any]:
    return {**asdict(record), "completion_s": record.completion_s, "lag_s": record.lag_s}


def _show(replayed: Sequence[_Replayed], limit: int) -> None:
    console = Console()
    for one in replayed:
        console.print(_summary(one), markup=False, highlight=False, soft_wrap=True)
        for what in one.replay.disagreements[:MAX_SHOWN_DISAGREEMENTS]:
            http.complain(f"  {what}")
    records = [record for one in replayed for record in one.records.values()]
    if limit and records:
        console.print(_table(records[-limit:], len(records)))


def _summary(one: _Replayed) -> str:
    done = one.replay
    count = len(done.disagreements)
    verdict = f"{count} facts disagree with it" if count else "the facts agree with it"
    waiting = len(done.core.applications)
    return (
        f"{one.file}: epoch {done.header.epoch}, policy {done.header.policy}, {done.last_s - done.first_s:.1f} s, "
        f"{done.events} events, {done.grants} grants; {verdict}. "
        f"{len(one.records)} applications ended, {waiting} had not at the end of the log."
    )


def _table(records: Sequence[ApplicationRecord], total: int) -> Table:
    table = Table("application", "type", "tenant", "outcome", title=f"The last {len(records)} of {total} applications")
    for name in ("calls", "completion s", "lag s"):
        table.add_column(name, justify="right")
    for record in records:
        names = (record.application_id, record.application_type, record.tenant, record.outcome)
        numbers = (record.calls, record.completion_s, record.lag_s)
        table.add_row(*map(Text, names), *map(shown_number, numbers))
    return table
