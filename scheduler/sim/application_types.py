"""Nine types of LLM applications as distributions: their call graphs, their lengths, and a prompt that hints at both.

An application has one size, a standard normal number. Counts and lengths are log-normal around a median; `follows` is
the correlation of a logarithm with the size, `among` its standard deviation among applications, `within` that among the
calls of one application. The prompt tells of the size in a word and in how much it lists, so that a predictor can learn
what follows the size and nothing else. Where a call reads what others wrote, its prompt grows by their output tokens.

Laws: all chance comes from the `random.Random` that is passed in; calls stand in an order in which each follows those
it waits for; every length lies within the limits of its `Spread`, or is the sum of such.
The medians and deviations are rounded from public data sets of each type, tokens as characters / 4.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.sim.workload import TraceApplication, TraceCall

FAN_IN = 6
"""Calls whose answers one reduce reads."""

ELEPHANT_MAPS = 27
"""Maps of the map-reduce application that small ones are compared with."""


# ---- lengths


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal whole number, cut to [least, most]."""

    median: float
    least: int
    most: int
    among: float = 0.0
    within: float = 0.0
    follows: float = 0.0

    def cut(self, value: float) -> int:
        return min(max(round(value), self.least), self.most)

    def scaled(self, factor: float) -> Spread:
        """The same around another median."""
        return replace(self, median=self.median * factor)


class Item:
    """One application while it is drawn."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.size = draw.gauss(0.0, 1.0)

    def level(self, spread: Spread) -> float:
        """The median within this application."""
        other = math.sqrt(1 - spread.follows**2) * self.draw.gauss(0.0, 1.0)
        return spread.median * math.exp(spread.among * (spread.follows * self.size + other))

    def one(self, spread: Spread) -> int:
        return spread.cut(self.level(spread) * math.exp(spread.within * self.draw.gauss(0.0, 1.0)))

    def stage(
        self,
        name: str,
        count: int,
        prompt: Spread,
        output: Spread,
        joint: float = 0.0,
        after: Sequence[TraceCall] = (),
    ) -> list[TraceCall]:
        """Calls side by side, `name0` and so on; `joint` correlates prompt and output within the application."""
        prompt_level, output_level = self.level(prompt), self.level(output)
        calls = []
        for number in range(count):
            longer, other = self.draw.gauss(0.0, 1.0), self.draw.gauss(0.0, 1.0)
            wordier = joint * longer + math.sqrt(1 - joint**2) * other
            prompt_tokens = prompt.cut(prompt_level * math.exp(prompt.within * longer))
            output_tokens = output.cut(output_level * math.exp(output.within * wordier))
            calls.append(_call(f"{name}{number}", prompt_tokens, output_tokens, after))
        return calls

    def single(self, name: str, prompt: Spread, output: Spread, after: Sequence[TraceCall] = ()) -> TraceCall:
        """One call of its own kind."""
        return _call(name, self.one(prompt), self.one(output), after)

    def reader(self, name: str, own_tokens: int, output: Spread, after: Sequence[TraceCall]) -> TraceCall:
        """A call that reads what those before it wrote, besides `own_tokens`."""
        return _call(name, own_tokens + sum(call.output_tokens for call in after), self.one(output), after)


def _call(name: str, prompt_tokens: int, output_tokens: int, after: Sequence[TraceCall]) -> TraceCall:
    names = tuple(call.name for call in after)
    return TraceCall(name=name, prompt_tokens=prompt_tokens, output_tokens=output_tokens, after=names)


# ---- call graphs


def _map_reduce(item: Item) -> list[TraceCall]:
    return _reduced(item, item.one(Spread(9, 3, 28, among=0.6, follows=0.7)))


def _reduced(item: Item, maps: int) -> list[TraceCall]:
    """Maps, and reduces of at most FAN_IN each until one is left."""
    map_prompt = Spread(720, 150, 1700, among=0.09, within=0.22)
    map_output = Spread(195, 48, 500, among=0.11, within=0.27)
    reduce_output = Spread(300, 100, 550, within=0.2)
    calls = below = item.stage("map", maps, map_prompt, map_output, joint=0.55)
    depth = 0
    while depth == 0 or len(below) > 1:
        groups = [below[first : first + FAN_IN] for first in range(0, len(below), FAN_IN)]
        below = []
        for number, group in enumerate(groups):
            read = sum(call.output_tokens for call in group)
            output = reduce_output.scaled((read / 1050) ** 0.4)
            below.append(item.reader(f"reduce{depth}_{number}", 80, output, group))
        calls = [*calls, *below]
        depth += 1
    return calls


def _document_merging(item: Item) -> list[TraceCall]:
    """Merges of the same documents, a score of each, and the best of them put together and improved."""
    prompt = Spread(1530, 900, 2200, among=0.17, follows=0.85)
    output = Spread(435, 180, 930, among=0.21, within=0.13, follows=0.85)
    score = Spread(30, 11, 100, within=0.29)
    merges = item.stage("merge", item.one(Spread(5.4, 3, 8, among=0.33)), prompt, output)
    scores = [
        item.reader(f"score{number}", merge.prompt_tokens + 40, score, [merge]) for number, merge in enumerate(merges)
    ]
    aggregate = _call("aggregate", merges[0].prompt_tokens, item.one(output), scores)
    improve = item.reader("improve", merges[0].prompt_tokens + 30, output, [aggregate])
    return [*merges, *scores, aggregate, improve]


def _self_consistency(item: Item) -> list[TraceCall]:
    prompt = Spread(698, 650, 820, among=0.04, follows=0.95)
    output = Spread(101, 8, 700, among=0.42, within=0.39, follows=0.75)
    return item.stage("sample", item.one(Spread(14, 10, 22, among=0.17, follows=0.9)), prompt, output)


def _fact_verification(item: Item) -> list[TraceCall]:
    """Each claim is looked up and then verified."""
    claims = item.single(
        "claims",
        Spread(375, 345, 560, among=0.1, follows=0.95),
        Spread(72, 20, 300, among=0.53, follows=0.9),
    )
    count = item.one(Spread(4, 1, 10, among=0.5, follows=0.9))
    query_output = Spread(34, 17, 65, among=0.11, within=0.17)
    queries = item.stage("query", count, Spread(359, 350, 372, within=0.01), query_output, after=[claims])
    verify_prompt = Spread(678, 540, 920, among=0.04, within=0.06)
    verify_output = Spread(95, 45, 210, among=0.14, within=0.2)
    verifies = item.stage("verify", count, verify_prompt, verify_output)
    pairs = zip(queries, verifies, strict=True)
    return [claims, *(call for query, verify in pairs for call in (query, replace(verify, after=(query.name,))))]


def _plan_and_execute(item: Item) -> list[TraceCall]:
    plan = item.single("plan", Spread(932, 900, 970, among=0.01), Spread(100, 35, 245, among=0.41, follows=0.65))
    prompt, output = Spread(384, 300, 620, among=0.05, within=0.08), Spread(62, 22, 180, among=0.17, within=0.26)
    steps = item.stage("step", item.one(Spread(3.7, 2, 5, among=0.35, follows=0.7)), prompt, output, after=[plan])
    join = item.reader("join", 310, Spread(72, 30, 145, among=0.3), steps)
    return [plan, *steps, join]


def _code_checking(item: Item) -> list[TraceCall]:
    """Three tests and three solutions side by side, and a judge of all."""
    tests = item.stage(
        "test",
        3,
        Spread(355, 300, 580, among=0.13, follows=0.9),
        Spread(78, 28, 250, among=0.31, within=0.2, follows=0.7),
    )
    solutions = item.stage(
        "solve",
        3,
        Spread(317, 260, 540, among=0.15, follows=0.9),
        Spread(73, 18, 340, among=0.43, within=0.21, follows=0.7),
    )
    judge = item.single(
        "judge",
        Spread(498, 270, 1370, among=0.3, follows=0.9),
        Spread(45, 22, 90, among=0.29),
        [*tests, *solutions],
    )
    return [*tests, *solutions, judge]


def _question_answering(item: Item) -> list[TraceCall]:
    decompose = item.single(
        "decompose",
        Spread(314, 300, 328, among=0.015, follows=0.9),
        Spread(39, 15, 105, among=0.35, follows=0.4),
    )
    count = item.one(Spread(3, 1, 5, among=0.3, follows=0.4))
    prompt, output = Spread(342, 275, 490, among=0.05, within=0.06), Spread(46, 15, 120, among=0.21, within=0.28)
    answers = item.stage("answer", count, prompt, output, after=[decompose])
    verify = item.reader("verify", 265, Spread(59, 25, 140, among=0.29), answers)
    return [decompose, *answers, verify]


def _equation_verification(item: Item) -> list[TraceCall]:
    extract = item.single(
        "extract",
        Spread(445, 350, 620, among=0.13, follows=0.95),
        Spread(69, 20, 265, among=0.46, follows=0.5),
    )
    count = item.one(Spread(3, 1, 9, among=0.45, follows=0.55))
    check_output = Spread(42, 16, 112, among=0.18, within=0.25)
    checks = item.stage("check", count, Spread(207, 200, 215, within=0.01), check_output, after=[extract])
    return [extract, *checks]


def _household_interaction(item: Item) -> list[TraceCall]:
    """Turn after turn, each reading all that was said and seen before; the first two think, the others act."""
    turns = item.one(Spread(11.5, 6, 29, among=0.34, follows=0.4))
    think, act = Spread(42, 10, 100, within=0.45), Spread(10, 4, 100, within=0.55)
    seen = Spread(15, 5, 80, within=0.5)
    calls = [item.single("turn0", Spread(520, 480, 620, among=0.05, follows=0.6), think)]
    for number in range(1, turns):
        before, output = calls[-1], think if number == 1 else act
        calls.append(item.reader(f"turn{number}", before.prompt_tokens + item.one(seen), output, [before]))
    return calls


# ---- prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationType:
    """A type: how its calls are drawn, what its prompts say, and what they share.

    All calls of the type begin with the same `system_tokens` tokens; in the stages of `own_prompt` a call's prompt
    begins with the whole prompt of the one before it, as far as both are long.
    """

    title: str
    draw_calls: Callable[[Item], list[TraceCall]]
    request: str
    subjects: Sequence[str]
    system_tokens: int
    own_prompt: frozenset[str] = frozenset()

    def prompt(self, item: Item) -> str:
        """The request, a word for the size, and the longer a list of subjects the larger the application."""
        count = min(max(round(5 * math.exp(0.6 * item.size)), 1), 30)
        listed = ", ".join(item.draw.choices(self.subjects, k=count))
        return f"{self.request} ({size_word(item.size)}): {listed}."


SIZE_WORDS = ("tiny", "small", "ordinary", "large", "huge")
SIZE_LIMITS = (-1.5, -0.5, 0.5, 1.5)


def size_word(size: float) -> str:
    """What a prompt calls a size: one of five words, from the smallest up."""
    return SIZE_WORDS[sum(size > limit for limit in SIZE_LIMITS)]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TYPES: Mapping[str, ApplicationType] = {
    "MRS": ApplicationType(
        title="map-reduce summarization",
        draw_calls=_map_reduce,
        request="Summarize this meeting in sections",
        subjects=_words("budget deadline remote prototype marketing survey hiring travel minutes agenda vote design"),
        system_tokens=64,
    ),
    "DM": ApplicationType(
        title="document merging",
        draw_calls=_document_merging,
        request="Merge these agreements into one",
        subjects=_words("secrecy term remedies notice liability parties purpose return law breach survival copies"),
        system_tokens=256,
        own_prompt=frozenset({"merge"}),
    ),
    "SC": ApplicationType(
        title="self-consistency",
        draw_calls=_self_consistency,
        request="Solve this word problem step by step",
        subjects=_words("apples trains coins eggs marbles hours miles tickets pages discounts ages bricks"),
        system_tokens=640,
        own_prompt=frozenset({"sample"}),
    ),
    "FV": ApplicationType(
        title="fact verification",
        draw_calls=_fact_verification,
        request="Check every claim in this answer",
        subjects=_words("oldest founded capital inventor population river treaty album dynasty element orbit prize"),
        system_tokens=320,
    ),
    "PE": ApplicationType(
        title="plan-and-execute",
        draw_calls=_plan_and_execute,
        request="Look these up and compare them",
        subjects=_words("height depth area speed weight distance length density volume wingspan temperature age"),
        system_tokens=256,
    ),
    "CC": ApplicationType(
        title="code checking",
        draw_calls=_code_checking,
        request="Complete this function and test it",
        subjects=_words("list string parse sort prime matrix bracket digits filter tuple median recursion"),
        system_tokens=192,
    ),
    "KBQAV": ApplicationType(
        title="knowledge-base question answering with verification",
        draw_calls=_question_answering,
        request="Answer yes or no, and say why",
        subjects=_words("could would ever before during emperor telescope vegan chess desert orchestra passport"),
        system_tokens=256,
    ),
    "EV": ApplicationType(
        title="equation verification",
        draw_calls=_equation_verification,
        request="Verify the equations of this solution",
        subjects=_words("sum product ratio percent unknown total remainder average rate interest difference half"),
        system_tokens=192,
    ),
    "ALFWI": ApplicationType(
        title="household interaction",
        draw_calls=_household_interaction,
        request="You are in a room and have a task",
        subjects=_words("drawer shelf fridge microwave sink lamp cabinet mug soap dresser safe countertop"),
        system_tokens=448,
        own_prompt=frozenset({"turn"}),
    ),
}
"""The types by their short names."""


def draw_application(name: str, draw: random.Random, application_id: str, arrival_s: float) -> TraceApplication:
    """An application of this type."""
    kind, item = TYPES[name], Item(draw)
    calls = tuple(kind.draw_calls(item))
    return TraceApplication(
        application_id=application_id,
        application_type=name,
        arrival_s=arrival_s,
        prompt=kind.prompt(item),
        calls=calls,
    )


def draw_elephant(draw: random.Random, application_id: str, arrival_s: float) -> TraceApplication:
    """A map-reduce summarization of ELEPHANT_MAPS maps, which calls itself huge."""
    item = Item(draw)
    item.size = 2.0
    return TraceApplication(
        application_id=application_id,
        application_type="MRS",
        arrival_s=arrival_s,
        prompt=TYPES["MRS"].prompt(item),
        calls=tuple(_reduced(item, ELEPHANT_MAPS)),
    )
