"""Summarize a text of any length: its parts side by side, then their summaries, until one is left.

The parts follow from the text alone, so the application is submitted whole and its cost is known at its arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serve_app.agents import command
from serve_app.agents.reading import parts, said
from serve_app.agents.result import InputError, Result
from serve_app.agents.whole import chat_call, literal, run_whole
from serve_app.client import AsyncJustitia

PART_CHARS = 500
FAN_IN = 6
MAX_PARTS = 1000

MAP = "Summarize this part of a text in two sentences.\n\n{text}"
REDUCE = "These notes sum up the parts of one text, in order.\n\n{notes}\n\nWrite one summary of three sentences."
SAMPLE = (
    "The town of Harrow Bay keeps a lending library of tools. It began in 2016 with a drill, two ladders and a sewing "
    "machine that a retired teacher left in the old fire station. Today 340 tools hang on its walls, and 1,100 people "
    "have a card. Members pay twelve a year and may keep a tool for a week.\n\n"
    "Most of what is borrowed goes out on Fridays and comes back on Mondays. The tile cutter is booked until autumn. "
    "The lawn mowers need the most care: somebody has to sharpen their blades every second week, and twice a year "
    "volunteers take each of them apart. Eleven tools were never returned, which is fewer than anyone had expected.\n\n"
    "A repair evening grew out of it. On the first Thursday of the month people bring lamps, toasters and bicycles, "
    "and mend them beside somebody who knows how. Of 412 things that were brought last year, 268 left working. The "
    "rest was taken apart for screws, cables and wheels, which fill a cabinet of their own.\n\n"
    "The fire station will be sold next spring. The council has offered a room in the school, which is dry and bright "
    "but half as large, and can only be used after four o'clock. The members will vote on it in March. Some would "
    "rather rent the shop on the harbour, which would cost each of them eight a year more."
)


@dataclass(frozen=True, kw_only=True)
class Summary(Result):
    """`parts`: into how many the text was cut."""

    parts: int


async def run(client: AsyncJustitia, text: str = SAMPLE) -> Summary:
    """Summarize `text`. Raises JustitiaError, and InputError for more than MAX_PARTS parts."""
    cut = parts(literal(text), PART_CHARS)
    if len(cut) > MAX_PARTS:
        raise InputError(f"a text of {len(cut)} parts is more than {MAX_PARTS}")
    calls = plan(cut)
    whole = await run_whole(client, "map_reduce_summarization", calls)
    return Summary(answer=said(whole.outputs[calls[-1]["name"]][0]), calls=whole.calls, parts=len(cut))


def plan(cut: list[str]) -> list[dict[str, Any]]:
    """A call for each part, and calls that join FAN_IN summaries each, layer on layer; the last one joins all."""
    calls = [chat_call(f"map{number}", MAP.format(text=part), 60) for number, part in enumerate(cut, start=1)]
    layer, depth = [call["name"] for call in calls], 0
    while len(layer) > 1:
        depth += 1
        groups = [tuple(layer[start : start + FAN_IN]) for start in range(0, len(layer), FAN_IN)]
        joined = [_join(f"reduce{depth}_{number}", group) for number, group in enumerate(groups, start=1)]
        calls += joined
        layer = [call["name"] for call in joined]
    return calls


def _join(name: str, group: tuple[str, ...]) -> dict[str, Any]:
    notes = "\n\n".join(f"{{{{{before}}}}}" for before in group)
    return chat_call(name, REDUCE.format(notes=notes), 90, group)


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
