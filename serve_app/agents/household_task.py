"""Do a task in a household: see what is there, choose an action, see what comes of it, until it is done.

The household is a small world in text (`serve_app.agents.household`); its number makes it and its task. How many steps
it takes is known at the end only, so the application is open, and every call waits for the one before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from serve_app.agents import command
from serve_app.agents.formats import one_of
from serve_app.agents.household import World
from serve_app.agents.reading import UNCLEAR
from serve_app.agents.result import InputError, Result
from serve_app.client import Answer, AsyncJustitia

MOST_STEPS = 16
REMEMBERED_STEPS = 4

ACT = (
    "Do a task in a house. Answer with one of the actions.\n\nTask: Put the pen into the box of the hall.\n"
    "You are in the hall. The box holds nothing. You hold the pen.\nActions: go attic, put pen box\nput pen box\n\n"
    "Task: {goal}\n{past}{seen}\nActions: {possible}\n"
)
SAMPLE = "1"


@dataclass(frozen=True)
class Step:
    """One action as the model put it, and what was seen then."""

    action: str
    observation: str


@dataclass(frozen=True, kw_only=True)
class Attempt(Result):
    """`done`: was the task done within MOST_STEPS steps?"""

    goal: str
    done: bool
    steps: tuple[Step, ...]


async def run(client: AsyncJustitia, text: str = SAMPLE) -> Attempt:
    """Do the task of the household with the number `text`. Raises JustitiaError, and InputError for no whole number."""
    world = World(_number(text))
    steps: list[Step] = []
    last: list[Answer] = []
    async with client.application("household_task") as app:
        while not world.done and len(steps) < MOST_STEPS:
            possible = world.possible()
            prompt = ACT.format(goal=world.goal, past=_past(steps), seen=world.look(), possible=", ".join(possible))
            said = await app.chat(
                prompt,
                stage="act",
                max_tokens=32,
                after=last,
                temperature=0.7,
                seed=len(steps),
                response_format=one_of("action", possible),
            )
            last, action = [said], chosen(said.text, possible)
            steps.append(Step(action, world.act(action)))
    answer = f"{world.goal} {'Done' if world.done else 'Not done'}. Steps: {len(steps)}."
    return Attempt(answer=answer, calls=tuple(app.calls), goal=world.goal, done=world.done, steps=tuple(steps))


def chosen(text: str, possible: list[str]) -> str:
    """The possible action that an answer names first, in its words or as in "I am going to the kitchen".

    Where there is none, the answer's first line, which the world may make sense of.
    """
    found = [(match.start(), action) for action in possible if (match := _pattern(action).search(text))]
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), UNCLEAR)
    return min(found)[1] if found else first_line


def _pattern(action: str) -> re.Pattern[str]:
    """The words of an action in its order within one sentence, the verb in any form."""
    verb, *objects = action.split()
    return re.compile(rf"\b{verb}" + "".join(rf"[^.\n]*?\b{name}\b" for name in objects), re.IGNORECASE)


def _past(steps: list[Step]) -> str:
    return "".join(f"You did: {step.action}. {step.observation}\n" for step in steps[-REMEMBERED_STEPS:])


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"a household is named by a whole number, not by {text.strip()[:40]!r}") from None


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
