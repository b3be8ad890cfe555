"""Token counts against a real (tiny) tokenizer, and an event loop that goes on beating while they are made."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cluster.engines import VllmSettings
from cluster.models import ModelUnavailable
from cluster.simulated_engine import approximate_tokens
from serve_app import token_counting
from serve_app.errors import ApiError
from serve_app.inference_request import InferenceRequest, parse_inference
from serve_app.token_counting import ApproximateTokenCounter, ModelTokenCounter, create_counter

CHAT_TEMPLATE = (
    "{% if messages[0]['role'] == 'martian' %}{{ raise_exception('no martians') }}{% endif %}"
    "{% for tool in tools or [] %}[{{ tool['function']['name'] }}]{% endfor %}"
    "{% for message in messages %}"
    "<{{ message['role'] }}>{{ message['content'] + '' }}"
    "{% for call in message.get('tool_calls') or [] %}{{ call.function.arguments['city'] }}{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ suffix or '' }}"
)
WORDS = ["fair", "queue", "token", "memory", "model", "agent", "finish", "virtual", "time", "of", "a", "the"]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer with a chat template, trained on a few words, cutting at 64 tokens."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    tokenizer.enable_truncation(64)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def counter(model_path: Path) -> Iterator[ModelTokenCounter]:
    made = ModelTokenCounter(model_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(model_path)


def completion(prompt: object, **fields: Any) -> InferenceRequest:
    return parse_inference("/v1/completions", {}, json.dumps({"prompt": prompt, **fields}).encode())


def chat(*messages: dict[str, Any], **fields: Any) -> InferenceRequest:
    body = json.dumps({"messages": messages, **fields}).encode()
    return parse_inference("/v1/chat/completions", {}, body)


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, truncation=False).input_ids)


async def test_completions_are_counted_one_by_one(counter: ModelTokenCounter, tokenizer: Any) -> None:
    texts = ["fair queue", "the model finishes", "é" * 30, "token " * 500]
    assert await counter.count(completion(texts)) == tuple(length(tokenizer, text) for text in texts)
    assert await counter.count(completion([[1, 2, 3], [4]])) == (3, 1)


async def test_a_chat_is_counted_through_its_template(counter: ModelTokenCounter, tokenizer: Any) -> None:
    request = chat({"role": "system", "content": "fair"}, {"role": "user", "content": "queue"})
    assert await counter.count(request) == (length(tokenizer, "<system>fair<user>queue<assistant>"),)


async def test_tools_and_their_arguments_are_counted(counter: ModelTokenCounter, tokenizer: Any) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
    request = chat(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        tools=[{"type": "function", "function": {"name": "weather"}}],
    )
    assert await counter.count(request) == (length(tokenizer, "[weather]<user>hi<assistant>Oslo<assistant>"),)


async def test_tool_arguments_that_are_no_json_are_still_counted(counter: ModelTokenCounter) -> None:
    calls = [{"function": {"name": "f", "arguments": "not json"}}]
    request = chat({"role": "assistant", "content": "x", "tool_calls": calls})
    assert (await counter.count(request))[0] >= 1


async def test_template_arguments_are_passed_on(counter: ModelTokenCounter, tokenizer: Any) -> None:
    hello = {"role": "user", "content": "hi"}
    request = chat(hello, chat_template_kwargs={"suffix": "xyz", "chat_template": "", "tokenize": True})
    assert await counter.count(request) == (length(tokenizer, "<user>hi<assistant>xyz"),)
    assert await counter.count(chat(hello, add_generation_prompt=False)) == (length(tokenizer, "<user>hi"),)


async def test_parts_of_unknown_type_count_as_their_text(counter: ModelTokenCounter, tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "fair"}, {"type": "hologram", "x": [1]}, "queue", {"text": "time"}]
    request = chat({"role": "user", "content": parts})
    expected = length(tokenizer, "<user>fair\nqueue\ntime<assistant>")
    assert await counter.count(request) == (expected,)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "martian", "content": "x"},
        {"role": "user", "content": "x", "tool_calls": [7]},
        {"role": "user", "content": "x", "tool_calls": 5},
    ],
)
async def test_what_the_template_refuses_is_a_400(counter: ModelTokenCounter, message: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        await counter.count(chat(message))
    assert (caught.value.status, caught.value.param) == (400, "messages")


async def test_the_reason_of_the_template_is_passed_on(counter: ModelTokenCounter) -> None:
    with pytest.raises(ApiError, match="no martians"):
        await counter.count(chat({"role": "martian", "content": "x"}))


async def test_a_model_without_a_template_refuses_chats(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())).save_pretrained(tmp_path)
    plain = ModelTokenCounter(tmp_path)
    with pytest.raises(ApiError) as caught:
        await plain.count(chat({"role": "user", "content": "x"}))
    assert (caught.value.status, caught.value.param) == (400, "messages")
    plain.close()


def test_a_model_without_a_tokenizer_fails_at_once_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="/nothing'"):
        ModelTokenCounter(tmp_path / "nothing")


def test_a_hub_id_is_fetched_where_its_files_are_not_local(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    asked: list[dict[str, Any]] = []

    def from_pretrained(model: str, **arguments: Any) -> Any:
        asked.append({"model": model, **arguments})
        if arguments.get("local_files_only"):
            raise OSError("not in the cache")
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    ModelTokenCounter("owner/model").close()
    assert asked == [{"model": "owner/model", "local_files_only": True}, {"model": "owner/model"}]


async def test_the_counter_of_a_model_is_made_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, model_path: Path
) -> None:
    threads: list[threading.Thread] = []

    def prepare_model(name: str) -> str:
        threads.append(threading.current_thread())
        return name

    monkeypatch.setattr(token_counting, "prepare_model", prepare_model)
    made = await create_counter(VllmSettings(kind="vllm", model=str(model_path)))
    assert isinstance(made, ModelTokenCounter)
    made.close()
    assert threads
    assert threading.main_thread() not in threads


async def longest_gap(work: Awaitable[object]) -> float:
    """The longest time between two beats of the event loop (10 ms apart at rest), as a share of this work's time."""
    working = asyncio.ensure_future(work)
    longest_s, began_s = 0.0, time.perf_counter()
    last_s = began_s
    while not working.done():
        await asyncio.sleep(0.01)
        longest_s, last_s = max(longest_s, time.perf_counter() - last_s), time.perf_counter()
    await working
    return longest_s / (last_s - began_s)


async def calmest_gap(work: Callable[[], Awaitable[object]]) -> float:
    """The least of three tries: a busy machine disturbs one, a counter that blocks the loop disturbs all."""
    return min([await longest_gap(work()) for _ in range(3)])


async def test_the_event_loop_beats_on_while_ten_megabytes_are_counted(counter: ModelTokenCounter) -> None:
    rng = random.Random(3)
    prompt = " ".join(rng.choices(WORDS, k=10_000))[:50_000]
    request = completion([prompt] * 200)
    counts = await counter.count(request)
    assert len(counts) == 200
    assert min(counts) == max(counts) > 9_000
    assert await calmest_gap(lambda: counter.count(request)) < 0.5


async def test_one_long_text_does_not_hold_the_event_loop(counter: ModelTokenCounter) -> None:
    for text in ("fair queue " * 90_000, "a" * 300_000):
        request = chat({"role": "user", "content": text})
        assert (await counter.count(request))[0] > 10_000
        assert await calmest_gap(partial(counter.count, request)) < 0.5


async def test_a_small_request_does_not_wait_for_a_large_one(counter: ModelTokenCounter) -> None:
    prompt = "fair queue " * 4_500
    large = asyncio.create_task(counter.count(completion([prompt] * 100)))
    await asyncio.sleep(0.05)
    await counter.count(completion("fair"))
    assert not large.done()
    assert len(await large) == 100


async def test_the_approximation_is_the_simulated_engine_s() -> None:
    counter = ApproximateTokenCounter()
    assert await counter.count(completion(["a", "abcd", "abcde", "x" * 400])) == (1, 1, 2, 100)
    assert await counter.count(completion([[5, 6, 7]])) == (3,)
    request = chat({"role": "user", "content": "hello"})
    assert await counter.count(request) == (approximate_tokens("user: hello"),)
