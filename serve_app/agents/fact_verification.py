"""Check a text: its claims are extracted, each is checked by itself, and the verdicts are joined.

How many claims there are is known after the first call only, so the application is open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from serve_app.agents import command
from serve_app.agents.reading import UNCLEAR, claims, said, verdict
from serve_app.agents.result import Result
from serve_app.client import Answer, AsyncApplication, AsyncJustitia

MOST_CLAIMS = 6

EXTRACT = (
    "List the claims of a text.\n\nText: Cats are animals, and most of them can swim.\n1. Cats are animals.\n"
    "2. Most cats can swim.\n\nText: {text}\n"
)
CHECK = "Is a claim true or false, and why?\n\nClaim: Fire is cold.\nfalse: fire gives off heat.\n\nClaim: {claim}\n"
JOIN = "{findings}\n\nSay in two sentences how far the text that made these claims can be trusted."
SAMPLE = (
    "Water boils at a lower temperature on a high mountain than at sea level. The Moon gives off its own light. "
    "Whales are mammals and breathe air."
)


@dataclass(frozen=True)
class Claim:
    """One claim; `verdict` is true, false or unclear."""

    text: str
    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FactCheck(Result):
    """`verdict` on the whole: false where one claim is, true where all are, else unclear."""

    verdict: str
    claims: tuple[Claim, ...]


async def run(client: AsyncJustitia, text: str = SAMPLE) -> FactCheck:
    """Check the claims of `text`, at most MOST_CLAIMS. Raises JustitiaError."""
    async with client.application("fact_verification") as app:
        extracted = await app.chat(EXTRACT.format(text=text), stage="extract", max_tokens=96, temperature=0.0)
        texts = claims(extracted.text, text, MOST_CLAIMS)
        checks = await asyncio.gather(*(_check(app, claim, extracted) for claim in texts))
        checked = tuple(claim for claim, _ in checks)
        findings = "\n".join(f"- {claim.text} ({claim.verdict})" for claim in checked)
        joined = await app.chat(
            JOIN.format(findings=findings),
            stage="join",
            max_tokens=64,
            after=[answer for _, answer in checks],
            temperature=0.0,
        )
    return FactCheck(answer=said(joined.text), calls=tuple(app.calls), verdict=overall(checked), claims=checked)


async def _check(app: AsyncApplication, claim: str, extracted: Answer) -> tuple[Claim, Answer]:
    answer = await app.chat(CHECK.format(claim=claim), stage="check", max_tokens=40, after=[extracted], temperature=0.0)
    return Claim(claim, verdict(answer.text, ("true", "false")), said(answer.text)), answer


def overall(claims: tuple[Claim, ...]) -> str:
    """The verdict on a text that makes these claims."""
    verdicts = {claim.verdict for claim in claims}
    return "false" if "false" in verdicts else "true" if verdicts == {"true"} else UNCLEAR


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
