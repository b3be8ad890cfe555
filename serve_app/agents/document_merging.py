"""Merge several texts into one: drafts side by side, a mark for each, and a last version made from all of it.

Texts are parted by lines of three dashes. All calls are known at arrival, so the application is submitted whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from serve_app.agents import command
from serve_app.agents.formats import one_of
from serve_app.agents.reading import last_number, said
from serve_app.agents.result import InputError, Result
from serve_app.agents.whole import chat_call, literal, run_whole
from serve_app.client import AsyncJustitia

DRAFTS = 3
BEST_MARK = 10

MERGE = "{documents}\n\nMerge these documents into one list of facts. Say nothing twice."
MARK = "{documents}\n\nMerged version:\n{{{{draft{number}}}}}\n\nGive a mark from 0 to 10 for how complete it is."
FINAL = "These are versions of one document, each with a mark.\n\n{drafts}\n\nWrite the best version from them."
SAMPLE = """Notes by Ada: The launch moves from the 3rd to the 10th of May. Ben writes the guide. Cleo asks the printers
for a price. We have not decided about the video.
---
Notes by Ben: Launch on 10 May. I write the guide until the 28th of April. Cleo gets three prices for the printing.
The video is dropped, it costs too much.
---
Notes by Cleo: I ask three printers. Ada books the hall. If the guide is late, the launch is not moved again."""


@dataclass(frozen=True, kw_only=True)
class Merged(Result):
    """`marks` of the drafts, from 0 to 10; None for one without a readable mark."""

    documents: int
    drafts: tuple[str, ...]
    marks: tuple[float | None, ...]


async def run(client: AsyncJustitia, text: str = SAMPLE) -> Merged:
    """Merge the documents in `text`. Raises JustitiaError, and InputError for fewer than two."""
    documents = [part.strip() for part in re.split(r"^---+\s*$", text, flags=re.MULTILINE) if part.strip()]
    if len(documents) < 2:
        raise InputError("merging needs two documents or more, parted by a line of three dashes")
    whole = await run_whole(client, "document_merging", plan(documents))
    numbers = range(1, DRAFTS + 1)
    return Merged(
        answer=said(whole.outputs["final"][0]),
        calls=whole.calls,
        documents=len(documents),
        drafts=tuple(said(whole.outputs[f"draft{number}"][0]) for number in numbers),
        marks=tuple(mark(whole.outputs[f"mark{number}"][0]) for number in numbers),
    )


def plan(documents: list[str]) -> list[dict[str, Any]]:
    """Drafts that differ by chance, each with its mark, and the call that sees all of them."""
    shown = "\n\n".join(f"Document {number}:\n{literal(text)}" for number, text in enumerate(documents, start=1))
    numbers = range(1, DRAFTS + 1)
    merging = MERGE.format(documents=shown)
    drafts = [chat_call(f"draft{number}", merging, 96, temperature=0.4, seed=number) for number in numbers]
    marks = [_marking(shown, number) for number in numbers]
    versions = "\n\n".join(f"Mark {{{{mark{number}}}}}:\n{{{{draft{number}}}}}" for number in numbers)
    after = tuple(call["name"] for call in (*drafts, *marks))
    return [*drafts, *marks, chat_call("final", FINAL.format(drafts=versions), 96, after)]


def _marking(documents: str, number: int) -> dict[str, Any]:
    prompt = MARK.format(documents=documents, number=number)
    marks = one_of("mark", range(BEST_MARK + 1))
    return chat_call(f"mark{number}", prompt, 16, (f"draft{number}",), response_format=marks)


def mark(text: str) -> float | None:
    """The mark that an answer gives, None where it gives none within its limits."""
    number = last_number(text)
    return float(number) if number is not None and 0 <= float(number) <= BEST_MARK else None


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
