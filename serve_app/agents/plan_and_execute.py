"""Reach a goal: a plan of steps, each done with what the steps before it gave, and an answer from all of them.

A step that cannot be done changes the plan once. Neither the number of steps nor that is known at arrival, so the
application is open.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.agents import command
from serve_app.agents.reading import listed, said
from serve_app.agents.result import Result
from serve_app.client import Answer, AsyncApplication, AsyncJustitia

MOST_STEPS = 4
REMEMBERED_CHARS = 300
CANNOT = "cannot"

PLAN = "Goal: {goal}\n{known}\nWrite a plan of at most {steps} short steps, one a line."
STEP = "Goal: {goal}\n{known}\nDo this step, in two sentences: {step}\nIf it cannot be done, answer: Cannot."
ANSWER = "Goal: {goal}\n{known}\nWrite the final answer, in three sentences."
SAMPLE = "Prepare a day at the beach for a school class of 20 children that wants to collect litter there."


@dataclass(frozen=True)
class Step:
    """One step and what it gave."""

    text: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Executed(Result):
    """`steps` that were done, in order; `replanned`: did one of them change the plan?"""

    steps: tuple[Step, ...]
    replanned: bool


async def run(client: AsyncJustitia, text: str = SAMPLE) -> Executed:
    """Plan for the goal `text` and carry it out: at most MOST_STEPS steps a plan. Raises JustitiaError."""
    async with client.application("plan_and_execute") as app:
        done: list[Step] = []
        last, todo = await _plan(app, text, done, [])
        replanned = False
        while todo:
            step = todo.pop(0)
            last = await app.chat(
                STEP.format(goal=text, known=_known(done), step=step),
                stage="step",
                max_tokens=56,
                after=[last],
                temperature=0.0,
            )
            done.append(Step(step, said(last.text)))
            if not replanned and last.text.strip().lower().startswith(CANNOT):
                replanned = True
                last, todo = await _plan(app, text, done, [last])
        answer = await app.chat(
            ANSWER.format(goal=text, known=_known(done)), stage="answer", max_tokens=80, after=[last], temperature=0.0
        )
    return Executed(answer=said(answer.text), calls=tuple(app.calls), steps=tuple(done), replanned=replanned)


async def _plan(app: AsyncApplication, goal: str, done: list[Step], after: list[Answer]) -> tuple[Answer, list[str]]:
    """The answer that holds the plan, and its steps: the goal itself where none can be read."""
    prompt = PLAN.format(goal=goal, known=_known(done), steps=MOST_STEPS)
    plan = await app.chat(prompt, stage="plan", max_tokens=80, after=after, temperature=0.0)
    return plan, listed(plan.text, MOST_STEPS) or [goal]


def _known(done: list[Step]) -> str:
    return "\n".join(f"Done: {step.text} Outcome: {step.outcome[:REMEMBERED_CHARS]}" for step in done)


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
