"""Check code against its tests: they are run, and as long as they fail the model repairs the code, a few times.

The tests are what follows the line `# tests`. They run in a process that can compute and nothing else
(`serve_app.agents.sandbox`). How often the code is repaired is not known at arrival, so the application is open.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.agents import command
from serve_app.agents.reading import code, said
from serve_app.agents.result import InputError, Result
from serve_app.agents.sandbox import SandboxRun, run_python
from serve_app.client import AsyncJustitia

MOST_REPAIRS = 3
SHOWN_CHARS = 400
DIVIDER = "# tests"

EXPLAIN = "{program}\n\nSay in one sentence what this Python function should do."
REPAIR = (
    "This Python code is wrong:\n\n{program}\n\nIts tests:\n\n{tests}\n\nThey end with:\n{output}\n\n"
    "What it should do: {purpose}\n\nWrite the whole corrected code in one block."
)
SAMPLE = """def average(numbers):
    total = 0
    for number in numbers:
        total = number
    return total / len(numbers)

# tests
assert average([4]) == 4
assert average([1, 2, 3]) == 2, average([1, 2, 3])
"""


@dataclass(frozen=True, kw_only=True)
class CodeCheck(Result):
    """`passes`: do the tests of `code` pass? It is the repaired version that does, or else the code as it came."""

    passes: bool
    repairs: int
    code: str
    output: str


async def run(client: AsyncJustitia, text: str = SAMPLE) -> CodeCheck:
    """Check the code in `text`, and repair it at most MOST_REPAIRS times. Raises JustitiaError, InputError."""
    program, tests = divided(text)
    async with client.application("code_checking") as app:
        purpose = await app.chat(EXPLAIN.format(program=program), stage="explain", max_tokens=48, temperature=0.0)
        outcome, last, repairs = await run_python(f"{program}\n\n{tests}"), purpose, 0
        while not outcome.finished and repairs < MOST_REPAIRS:
            repairs += 1
            asked = REPAIR.format(program=program, tests=tests, output=shown(outcome), purpose=purpose.text)
            last = await app.chat(
                asked,
                stage="repair",
                max_tokens=96,
                after=[last],
                temperature=0.7 if repairs > 1 else 0.0,
                seed=repairs,
            )
            candidate = code(last.text)
            repaired = await run_python(f"{candidate}\n\n{tests}")
            if repaired.finished:
                program, outcome = candidate, repaired
    answer = f"The tests {'pass' if outcome.finished else 'fail'}. Repairs: {repairs}. {said(purpose.text)}"
    return CodeCheck(
        answer=answer,
        calls=tuple(app.calls),
        passes=outcome.finished,
        repairs=repairs,
        code=program,
        output=shown(outcome),
    )


def divided(text: str) -> tuple[str, str]:
    """The code and its tests. Raises InputError where either is missing."""
    program, divider, tests = text.partition(f"\n{DIVIDER}")
    if not (divider and program.strip() and tests.strip()):
        raise InputError(f"code and tests are parted by a line {DIVIDER!r}")
    return program.strip(), tests.partition("\n")[2].strip()


def shown(outcome: SandboxRun) -> str:
    """The end of what a program printed, which says what went wrong, and why it was stopped."""
    return "\n".join(part for part in (outcome.output.strip()[-SHOWN_CHARS:], outcome.stopped) if part) or "no output"


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
