"""Measuring two ways to the same engine with the same requests, alternating, so that noise meets both alike."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import httpx

WARM_UP_REQUESTS = 4
ROUNDS_UNDER_LOAD = 4
PROMPT = "The scheduler gives each application its place in the order when it arrives. " * 4
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One way's figures: milliseconds to the first token, tokens a second; alone and with several at a time."""

    first_token_p50_ms: float
    first_token_p90_ms: float
    loaded_first_token_p50_ms: float
    tokens_per_s: float
    loaded_tokens_per_s: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Answer:
    first_token_s: float
    total_s: float
    tokens: int


async def compare(
    direct_url: str, stack_url: str, model: str, requests: int, concurrency: int, output_tokens: int
) -> dict[str, Measurement]:
    """Measure both ways; keys `direct` and `stack`. Raises httpx.HTTPStatusError when a request is refused."""
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    urls = {"direct": direct_url, "stack": stack_url}
    limits = httpx.Limits(max_connections=4 * concurrency)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        for url in urls.values():
            for _ in range(WARM_UP_REQUESTS):
                await _ask(client, url, body)
        alone = await _alternate_alone(client, urls, body, requests)
        loaded = await _alternate_loaded(client, urls, body, concurrency)
    return {name: _measurement(alone[name], *loaded[name]) for name in urls}


async def _alternate_alone(
    client: httpx.AsyncClient, urls: dict[str, str], body: dict[str, Any], requests: int
) -> dict[str, list[_Answer]]:
    answers: dict[str, list[_Answer]] = {name: [] for name in urls}
    for _ in range(requests):
        for name, url in urls.items():
            answers[name].append(await _ask(client, url, body))
    return answers


async def _alternate_loaded(
    client: httpx.AsyncClient, urls: dict[str, str], body: dict[str, Any], concurrency: int
) -> dict[str, tuple[list[_Answer], float]]:
    answers: dict[str, list[_Answer]] = {name: [] for name in urls}
    seconds = dict.fromkeys(urls, 0.0)
    for _ in range(ROUNDS_UNDER_LOAD):
        for name, url in urls.items():
            begin_s = time.perf_counter()
            answers[name] += await asyncio.gather(*(_ask(client, url, body) for _ in range(concurrency)))
            seconds[name] += time.perf_counter() - begin_s
    return {name: (answers[name], seconds[name]) for name in urls}


async def _ask(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> _Answer:
    """One streamed completion: when its first text came, when it ended, and its tokens by the engine's count."""
    begin_s = time.perf_counter()
    first_s = tokens = 0.0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            first_s = first_s or time.perf_counter()
            usage = json.loads(line.removeprefix("data: ")).get("usage")
            tokens = usage["completion_tokens"] if usage else tokens
    return _Answer(first_s - begin_s, time.perf_counter() - begin_s, int(tokens))


def _measurement(alone: list[_Answer], loaded: list[_Answer], loaded_s: float) -> Measurement:
    firsts_ms = [1000 * answer.first_token_s for answer in alone]
    return Measurement(
        first_token_p50_ms=median(firsts_ms),
        first_token_p90_ms=quantiles(firsts_ms, n=10)[-1],
        loaded_first_token_p50_ms=1000 * median(answer.first_token_s for answer in loaded),
        tokens_per_s=sum(answer.tokens for answer in alone) / sum(answer.total_s for answer in alone),
        loaded_tokens_per_s=sum(answer.tokens for answer in loaded) / loaded_s,
    )
