"""The text by which a model judges an application."""

from __future__ import annotations

import json
from typing import Any

from predictors.features import MAX_CHARACTERS as SEEN_BY_MODELS
from serve_app.application_prompts import MAX_CHARACTERS, prompt_of_document, prompt_of_request
from serve_app.documents import parse_application
from serve_app.inference_request import parse_inference


def chat(*messages: tuple[str, Any]) -> str:
    body = {"messages": [{"role": role, "content": content} for role, content in messages]}
    return prompt_of_request(parse_inference("/v1/chat/completions", {}, json.dumps(body).encode()))


def completion(prompt: object) -> str:
    return prompt_of_request(parse_inference("/v1/completions", {}, json.dumps({"prompt": prompt}).encode()))


def test_it_is_as_long_as_models_look() -> None:
    assert MAX_CHARACTERS == SEEN_BY_MODELS
    assert len(completion("x" * 10_000)) == MAX_CHARACTERS
    assert len(completion(["word " * 100] * 100)) <= MAX_CHARACTERS


def test_what_users_say_stands_before_the_authors_instructions() -> None:
    parts = [{"type": "text", "text": "Read this."}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert chat(("system", "Be brief."), ("user", "Why?"), ("user", parts)) == "Why?\nRead this.\nBe brief."
    assert chat(("developer", "y" * 9000), ("user", "Why?")).startswith("Why?\nyyy")


def test_token_ids_are_no_text() -> None:
    assert completion([1, 2, 3]) == ""
    assert completion(["a", "b"]) == "a\nb"


def test_of_a_document_the_first_calls_count() -> None:
    calls = [
        {"name": "last", "after": ["b"], "prompt": "Join {{b}}."},
        {"name": "a", "prompt": "One."},
        {"name": "b", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Two."}]},
    ]
    assert prompt_of_document(parse_application({"calls": calls})) == "One.\nTwo.\nS"
