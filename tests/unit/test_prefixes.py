from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.documents import CHAT_PATH, COMPLETIONS_PATH
from serve_app.inference_request import parse_inference
from serve_app.prefixes import BLOCK_CHARS, prefix_hashes


def completion(prompt: Any, most: int = 32) -> tuple[int, ...]:
    body = json.dumps({"prompt": prompt, "max_tokens": 5}).encode()
    return prefix_hashes(parse_inference(COMPLETIONS_PATH, {}, body), most)


def chat(*messages: tuple[str, Any], most: int = 32) -> tuple[int, ...]:
    body = {"messages": [{"role": role, "content": content} for role, content in messages]}
    return prefix_hashes(parse_inference(CHAT_PATH, {}, json.dumps(body).encode()), most)


@given(st.integers(0, 6), st.text("ab", min_size=1, max_size=2 * BLOCK_CHARS), st.text("cd", max_size=300))
def test_as_many_hashes_agree_as_blocks_do(blocks: int, rest: str, other: str) -> None:
    start = "x" * (blocks * BLOCK_CHARS)
    first, second = completion(start + "ab" + rest), completion(start + "cd" + other)
    assert first[:blocks] == second[:blocks]
    assert set(first[blocks:]).isdisjoint(second)
    assert len(first) == (len(start) + 2 + len(rest)) // BLOCK_CHARS


def test_a_hash_covers_all_blocks_before_it() -> None:
    same = "y" * BLOCK_CHARS
    assert completion("a" * BLOCK_CHARS + same)[1] != completion("b" * BLOCK_CHARS + same)[1]


def test_no_more_blocks_than_asked_for() -> None:
    assert len(completion("x" * 100_000)) == 32
    assert completion("x" * 100_000, most=0) == ()
    assert len(chat(("user", "x" * 1000), ("user", "y" * 100_000), most=5)) == 5


def test_roles_and_parts_count() -> None:
    text = "z" * (2 * BLOCK_CHARS)
    parts = [{"type": "text", "text": text[:BLOCK_CHARS]}, {"type": "text", "text": text[BLOCK_CHARS:]}]
    assert chat(("user", text)) == chat(("user", parts))
    assert chat(("user", text))[0] != chat(("system", text))[0]
    shared = chat(("system", text), ("user", "one question"))
    assert shared[:2] == chat(("system", text), ("user", "another one" * 50))[:2]


@pytest.mark.parametrize("prompt", [[5] * 400, [[5] * 400, [6] * 400]])
def test_token_ids_are_text_too(prompt: Any) -> None:
    assert completion(prompt) == completion(" ".join(["5"] * 400))
