"""Check the arithmetic of a text: its equations are worked out exactly, and the wrong ones explained.

Equations are read off the text; the model is asked for those that stand there in words, and believed where the text has
all their numbers. What holds is decided by `serve_app.agents.arithmetic`, never by the model. How many are wrong is not
known at arrival, so the application is open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from serve_app.agents import arithmetic, command
from serve_app.agents.arithmetic import NotArithmetic
from serve_app.agents.reading import UNCLEAR, numbers, said
from serve_app.agents.result import Result
from serve_app.client import Answer, AsyncApplication, AsyncJustitia

MOST_EQUATIONS = 12
HOLDS, WRONG = "holds", "wrong"

READ = "{text}\n\nWrite each calculation of this text as an equation, like 2 + 3 = 5, one a line."
EXPLAIN = "{text}\n\nThe equation {equation} is wrong: it comes to {value}. Say in one sentence what the mistake is."
REVISE = "{text}\n\nCorrections:\n{corrections}\n\nWrite the text again with these corrections."
SAMPLE = (
    "A baker has 3 trays with 12 rolls each, so 3 × 12 = 36 rolls. She sells 20 in the morning: 36 - 20 = 17. "
    "At noon she bakes 8 more and has 17 + 8 = 25. Each costs $0.75, so they are worth 25 × 0.75 = 18.75."
)


@dataclass(frozen=True)
class Equation:
    """`verdict` is holds, wrong or unclear; `value` is what its left side comes to."""

    text: str
    verdict: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Checked(Result):
    """`revised` is the text as the model corrects it, the text itself where nothing is wrong."""

    equations: tuple[Equation, ...]
    revised: str


async def run(client: AsyncJustitia, text: str = SAMPLE) -> Checked:
    """Check the equations of `text`, at most MOST_EQUATIONS. Raises JustitiaError."""
    async with client.application("equation_verification") as app:
        read = await app.chat(READ.format(text=text), stage="read", max_tokens=80, temperature=0.0)
        stated = arithmetic.equations(text, MOST_EQUATIONS)
        known = set(numbers(text))
        in_words = [one for one in arithmetic.equations(read.text, MOST_EQUATIONS) if known.issuperset(numbers(one))]
        equations = tuple(map(judged, dict.fromkeys((*stated, *in_words))))[:MOST_EQUATIONS]
        wrong = [equation for equation in equations if equation.verdict == WRONG]
        revised = await _revise(app, text, wrong, read) if wrong else text
    wrongs = [f"{one.text} is wrong: it comes to {one.value}." for one in wrong]
    answer = " ".join([f"Equations: {len(equations)}, wrong: {len(wrong)}.", *wrongs])
    return Checked(answer=answer, calls=tuple(app.calls), equations=equations, revised=revised)


async def _revise(app: AsyncApplication, text: str, wrong: list[Equation], read: Answer) -> str:
    asked = [EXPLAIN.format(text=text, equation=one.text, value=one.value) for one in wrong]
    reasons = await asyncio.gather(
        *(app.chat(one, stage="explain", max_tokens=40, after=[read], temperature=0.0) for one in asked)
    )
    corrections = "\n".join(
        f"{one.text} should be {one.value}. {reason.text}" for one, reason in zip(wrong, reasons, strict=True)
    )
    prompt = REVISE.format(text=text, corrections=corrections)
    return said((await app.chat(prompt, stage="revise", max_tokens=96, after=reasons, temperature=0.0)).text)


def judged(equation: str) -> Equation:
    """The verdict on one equation."""
    try:
        value = arithmetic.left_value(equation)
        return Equation(equation, HOLDS if arithmetic.holds(equation) else WRONG, f"{float(value):.10g}")
    except (NotArithmetic, OverflowError):
        return Equation(equation, UNCLEAR, UNCLEAR)


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
