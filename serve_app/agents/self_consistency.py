"""Answer a question by vote: several lines of thought from one prompt, and the answer that most of them end with.

The votes are counted here; the model is asked to compare them too, and its word breaks a tie. Both calls are known at
arrival, so the application is submitted whole. The lines of thought are one call of VOTERS sequences: they share the
memory of their prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from serve_app.agents import command
from serve_app.agents.reading import UNCLEAR, last_number, sentences
from serve_app.agents.result import Result
from serve_app.agents.whole import chat_call, literal, run_whole
from serve_app.client import AsyncJustitia

VOTERS = 5

THINK = "{question}\n\nThink step by step, and end with the answer alone on the last line."
COMPARE = (
    f"{VOTERS} students answered a question."
    "\n\n{{think}}\n\nWhich answer do most of them end with? Answer with it alone."
)
SAMPLE = (
    "A baker has 3 trays with 12 rolls each. She sells 20 rolls in the morning and bakes 8 more at noon. "
    "How many rolls has she then?"
)


@dataclass(frozen=True)
class Vote:
    """An answer, and how many lines of thought ended with it."""

    answer: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Elected(Result):
    """`votes`, the most frequent answer first; `model_says`: which of them the model takes for that."""

    votes: tuple[Vote, ...]
    model_says: str


async def run(client: AsyncJustitia, text: str = SAMPLE) -> Elected:
    """Answer the question `text`. Raises JustitiaError."""
    think = chat_call("think", THINK.format(question=literal(text)), 80, n=VOTERS, temperature=0.8, seed=11)
    compare = chat_call("compare", COMPARE, 16, ("think",))
    whole = await run_whole(client, "self_consistency", [think, compare])
    ballots = Counter(ballot(thought) for thought in whole.outputs["think"])
    model_says = ballot(whole.outputs["compare"][0])
    votes = tuple(Vote(answer, count) for answer, count in ballots.most_common())
    return Elected(answer=elected(ballots, model_says), calls=whole.calls, votes=votes, model_says=model_says)


def ballot(thought: str) -> str:
    """What a line of thought ends with: its last number, or its last sentence in lower case."""
    ending = sentences(thought.strip().rpartition("\n")[2], most=100) or [UNCLEAR]
    return last_number(thought) or ending[-1].lower().rstrip(".!?")


def elected(votes: Counter[str], tie_breaker: str) -> str:
    """The answer with the most votes; of several, `tie_breaker` where it is one of them, or the one named first."""
    clear = Counter({answer: count for answer, count in votes.items() if answer != UNCLEAR})
    if not clear:
        return UNCLEAR
    most = max(clear.values())
    leaders = [answer for answer, count in clear.items() if count == most]
    return tie_breaker if tie_breaker in leaders else leaders[0]


if __name__ == "__main__":
    command.main(run, SAMPLE, __doc__)
