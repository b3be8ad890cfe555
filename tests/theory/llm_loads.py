"""Loads and measures for the tests of the fair policies for LLM serving."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.types import CallKey
from tests.queueing import Request, Station


def application(
    name: str, sequence: int = 1, flow: str = "f", weight: float = 1.0, **fields: object
) -> ApplicationFacts:
    return ApplicationFacts(
        application_id=name,
        sequence=sequence,
        flow=flow,
        flow_weight=weight,
        **fields,  # type: ignore[arg-type]
    )


def call(of: ApplicationFacts, ready: int = 1, p: int = 10, predicted: int = 10, **fields: object) -> CallFacts:
    return CallFacts(
        key=CallKey(of.application_id, f"c{ready}"),
        application=of,
        ready_sequence=ready,
        prompt_tokens=p,
        predicted_output_tokens=predicted,
        **fields,  # type: ignore[arg-type]
    )


def run(policy: Policy, one: CallFacts, made: int = 5, *, replica: str = "r", finished: bool = True) -> None:
    """A call from its wait to its end."""
    policy.add(one)
    policy.granted(one, replica)
    policy.remove(one.key)
    policy.ended(one, (made,), finished)


def random_load(
    seed: int, *, applications: int = 30, flows: int = 4, prompt: int = 20, answer: int = 15
) -> list[Request]:
    """Applications of a few flows with short chains of calls, wrong predictions, prefixes and pauses between bursts."""
    rng = random.Random(seed)
    weights = [rng.choice([0.5, 1.0, 2.0]) for _ in range(flows)]
    requests: list[Request] = []
    at = 0
    for number in range(applications):
        at += rng.choice([0, 0, 5, 40, 40, 600])
        flow = rng.randrange(flows)
        for stage in range(rng.choice([1, 1, 2, 3])):
            family = rng.randrange(3)
            requests.append(
                Request(
                    app=f"a{number}",
                    call=f"c{stage}",
                    p=rng.randint(1, prompt),
                    d=rng.randint(1, answer),
                    at=at,
                    after=(f"c{stage - 1}",) if stage and rng.random() < 0.7 else (),
                    predicted=rng.randint(1, answer),
                    flow=f"f{flow}",
                    weight=weights[flow],
                    sequences=rng.choice([1, 1, 2]),
                    application_type=rng.choice(["chat", "code"]),
                    prefix=tuple(100 * family + block for block in range(rng.randint(0, 4))),
                )
            )
    return requests


def backlog(seed: int, lengths: dict[str, tuple[int, int]], *, calls: int = 60, **fields: object) -> list[Request]:
    """Flows whose calls all wait from the start, of random lengths up to the flow's (prompt, answer)."""
    rng = random.Random(seed)
    requests = [
        Request(app=f"{flow}{n}", p=rng.randint(1, p), d=rng.randint(1, d), flow=flow, **fields)  # type: ignore[arg-type]
        for flow, (p, d) in lengths.items()
        for n in range(calls)
    ]
    rng.shuffle(requests)
    return requests


def widest_gap(
    station: Station,
    one: str,
    other: str,
    weights: Mapping[str, int] | None = None,
    cached: Mapping[CallKey, int] | None = None,
) -> Fraction:
    """The largest |W_f/w_f − W_g/w_g| over all intervals in which calls of both flows wait; all came at 0.

    Service as VTC measures it: prompts of calls that start, less `cached` tokens, and twice the tokens that are made;
    servers deliver one unit a second. Over an interval the difference is that of D = W_f/w_f − W_g/w_g at its ends, so
    the largest one is max D − min D.
    """
    scale = weights or {one: 1, other: 1}
    steps: dict[Fraction, Fraction] = defaultdict(Fraction)
    for sign, flow in ((1, one), (-1, other)):
        for moment, service in served(station, flow, cached or {}):
            steps[moment] += sign * Fraction(service, scale[flow])
    until = min(max(s.at for s in station.starts if s.call.flow == flow) for flow in (one, other))
    differences = list(accumulate(steps[moment] for moment in sorted(steps) if moment < until))
    assert len(differences) > 20, "too short a backlog says nothing"
    return max(differences) - min(differences)


def served(station: Station, flow: str, cached: Mapping[CallKey, int]) -> Iterator[tuple[Fraction, int]]:
    """When a flow got how much service."""
    for start in station.starts:
        call = start.call
        if call.flow == flow:
            assert call.true_output_tokens is not None
            yield start.at, call.prompt_tokens - cached.get(call.key, 0)
            for token in range(1, call.true_output_tokens + 1):
                yield start.at + call.prompt_tokens + 2 * token, 2


def tokens_at_once(requests: Sequence[Request], servers: int) -> int:
    """M: the most tokens, prompt and the larger of predicted and true answer, that calls can have that run at once."""
    sizes = sorted((r.p + max(r.d, r.predicted or 0) for r in requests), reverse=True)
    return sum(sizes[:servers])


def longest_prompt(requests: Sequence[Request]) -> int:
    return max(request.p for request in requests)
