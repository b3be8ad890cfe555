"""Answer a question and check the answer against a knowledge base, claim by claim, then answer again from it.

Each claim of the first answer is set beside the passages that share the most with it. How many claims there are is
known after two calls only, so the application is open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from serve_app.agents import command
from serve_app.agents.formats import one_of
from serve_app.agents.knowledge import Passages
from serve_app.agents.reading import UNCLEAR, claims, said, verdict
from serve_app.agents.result import Result
from serve_app.client import Answer, AsyncApplication, AsyncJustitia

MOST_CLAIMS = 4
VERDICTS = ("supported", "contradicted", UNCLEAR)

ANSWER = "{question}\n\nAnswer in two sentences."
SPLIT = (
    "List the claims of a text.\n\nText: Cats are animals, and most of them can swim.\n1. Cats are animals.\n"
    "2. Most cats can swim.\n\nText: {answer}\n"
)
CHECK = (
    "Do the facts support or contradict the claim?\n\nFacts: Fire is hot.\nClaim: Fire is cold.\ncontradicted\n\n"
    "Facts: {passages}\nClaim: {claim}\n"
)
REVISE = "{passages}\n\nQuestion: {question}\n\nAnswer from these passages alone, in two sentences."
SAMPLE = "Since when has the ferry sailed from Harrow Bay to the island of Tern, and how long does the crossing take?"


@dataclass(frozen=True)
class Claim:
    """One claim; `verdict` is supported, contradicted or unclear; `passages` are those that it was checked against."""

    text: str
    verdict: str
    passages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckedAnswer(Result):
    """`answer` was given from the knowledge base, `first_answer` without it."""

    first_answer: str
    claims: tuple[Claim, ...]


async def run(client: AsyncJustitia, text: str = SAMPLE, knowledge: Passages | None = None) -> CheckedAnswer:
    """Answer the question `text` and check it against `knowledge`. Raises JustitiaError."""
    known = await asyncio.to_thread(Passages) if knowledge is None else knowledge
    async with client.application("knowledge_base_qa") as app:
        first = await app.chat(ANSWER.format(question=text), stage="answer", max_tokens=64, temperature=0.0)
        split = await app.chat(
            SPLIT.format(answer=said(first.text)), stage="split", max_tokens=80, after=[first], temperature=0.0
        )
        texts = claims(split.text, said(first.text), MOST_CLAIMS)
        checks = await asyncio.gather(*(_check(app, claim, known, split) for claim in texts))
        checked = tuple(claim for claim, _ in checks)
        after = [answer for _, answer in checks if answer is not None] or [split]
        passages = "\n".join(known.nearest(text)) or "There is no passage about it."
        asked = REVISE.format(passages=passages, question=text)
        revised = await app.chat(asked, stage="revise", max_tokens=64, after=after, temperature=0.0)
    return CheckedAnswer(
        answer=said(revised.text), calls=tuple(app.calls), first_answer=said(first.text), claims=checked
    )


async def _check(app: AsyncApplication, claim: str, known: Passages, split: Answer) -> tuple[Claim, Answer | None]:
    """The verdict on a claim; without a passage that shares a word with it there is nothing to ask."""
    passages = tuple(known.nearest(claim))
    if not passages:
        return Claim(claim, UNCLEAR, ()), None
    asked = CHECK.format(passages="\n".join(passages), claim=claim)
    form = one_of("verdict", VERDICTS)
    answer = await app.chat(asked, stage="check", max_tokens=32, after=[split], temperature=0.0, response_format=form)
    return Claim(claim, verdict(answer.text, VERDICTS), passages), answer


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
