"""What the ingress learns from an OpenAI request, and what it refuses before any engine sees it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from serve_app.errors import ApiError
from serve_app.inference_request import (
    ID_HINTS,
    PARENT_HINTS,
    STAGE_HINTS,
    ApplicationHints,
    InferenceRequest,
    parse_inference,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(headers: dict[str, str] | None = None, **fields: Any) -> InferenceRequest:
    return parse_inference(CHAT, headers or {}, json.dumps({"messages": HELLO, **fields}).encode())


def completion(headers: dict[str, str] | None = None, **fields: Any) -> InferenceRequest:
    return parse_inference(COMPLETIONS, headers or {}, json.dumps({"prompt": "Hello", **fields}).encode())


def refused(path: str, body: bytes, headers: dict[str, str] | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_inference(path, headers or {}, body)
    assert caught.value.status == 400
    return caught.value


def test_a_chat_is_read() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = chat(n=3, max_tokens=7, stream=True, tools=tools, foo={"bar": 1})
    assert request.is_chat
    assert request.messages == tuple(HELLO)
    assert request.tools == tuple(tools)
    assert (request.n, request.sequences, request.max_tokens) == (3, 3, 7)
    assert request.body["foo"] == {"bar": 1}
    assert request.hints == ApplicationHints(None, None)


def test_the_raw_body_is_not_touched() -> None:
    raw = b' {"prompt" : "caf\\u00e9",\n "temperature":0.70, "foo": [ ] } '
    request = parse_inference(COMPLETIONS, {}, raw)
    assert request.raw == raw
    assert request.prompts == ("café",)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_prompts_of_all_four_shapes(prompt: object, prompts: object) -> None:
    request = completion(prompt=prompt, n=2)
    assert request.prompts == prompts
    assert request.sequences == 2 * len(request.prompts)


def test_limits_of_the_output() -> None:
    assert completion().max_tokens == 16
    assert completion(max_tokens=None).max_tokens is None
    assert completion(max_tokens=9).max_tokens == 9
    assert chat().max_tokens is None
    assert chat(max_tokens=9).max_tokens == 9
    assert chat(max_tokens=9, max_completion_tokens=5).max_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ('""', "prompt"),
        ('"   "', "prompt"),
        ("[]", "prompt"),
        ("null", "prompt"),
        ("7", "prompt"),
        ('{"a": 1}', "prompt"),
        ('["a", "b", "", "c", "d"]', "prompt[2]"),
        ('["a", " \\n"]', "prompt[1]"),
        ('["a", null]', "prompt[1]"),
        ("[[1], []]", "prompt[1]"),
        ("[[1], [true]]", "prompt[1]"),
        ("[1, -1]", "prompt"),
        ("[1, 9223372036854775808]", "prompt"),
        ('[1, "a"]', "prompt"),
        ("[true]", "prompt"),
        ('"\\ud800"', "prompt"),
    ],
)
def test_a_bad_prompt_is_named_by_its_index(prompt: str, param: str) -> None:
    assert refused(COMPLETIONS, f'{{"prompt": {prompt}}}'.encode()).param == param


def test_a_missing_prompt_is_named() -> None:
    assert refused(COMPLETIONS, b"{}").param == "prompt"
    assert refused(CHAT, b"{}").param == "messages"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("[]", "messages"),
        ("null", "messages"),
        ('"x"', "messages"),
        ('[{"role": "user", "content": ""}]', "messages"),
        ('[{"role": "user", "content": null}, {"role": "user", "content": []}]', "messages"),
        ('[{"role": "user", "content": 1}]', "messages[0].content"),
        ('[{"role": 1, "content": "x"}]', "messages[0].role"),
        ('[{"role": "user", "content": "x", "y": 1e309}]', "messages[0].y"),
    ],
)
def test_bad_messages_are_named(messages: str, param: str) -> None:
    assert refused(CHAT, f'{{"messages": {messages}}}'.encode()).param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "9223372036854775808"),
        ("max_tokens", "-5"),
        ("max_tokens", "0"),
        ("max_tokens", "true"),
        ("max_tokens", "1e309"),
        ("max_tokens", "NaN"),
        ("max_tokens", '"7"'),
        ("max_completion_tokens", "-1"),
        ("n", "1000000000"),
        ("n", "0"),
        ("n", "true"),
        ("seed", "-1e30"),
        ("seed", "9223372036854775808"),
        ("temperature", "1e309"),
        ("temperature", "NaN"),
        ("temperature", "-1"),
        ("temperature", "3"),
        ("top_p", "Infinity"),
        ("top_k", "99999999999999999999"),
        ("priority", "9223372036854775808"),
        ("stream", '"yes"'),
        ("stream", "1"),
        ("use_beam_search", "true"),
        ("best_of", "4"),
        ("weight", "1e309"),
        ("logit_bias", '{"5": NaN}'),
        ("unknown", "[[1e999]]"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bad_field_is_named(path: str, field: str, value: str) -> None:
    prompt = f'"messages": {json.dumps(HELLO)}' if path == CHAT else '"prompt": "Hello"'
    param = refused(path, f'{{{prompt}, "{field}": {value}}}'.encode()).param
    assert (param or "").startswith(field)


def test_beam_search_is_refused_with_a_reason_and_false_passes() -> None:
    error = refused(COMPLETIONS, b'{"prompt": "x", "use_beam_search": true}')
    assert "lease" in error.message
    assert completion(use_beam_search=False).sequences == 1


def test_best_of_may_equal_n() -> None:
    assert completion(best_of=2, n=2).sequences == 2
    assert completion(best_of=None).sequences == 1


def test_sequences_are_bounded_over_all_prompts() -> None:
    assert completion(prompt=["x"] * 8, n=128).sequences == 1024
    body = json.dumps({"prompt": ["x"] * 9, "n": 128}).encode()
    assert refused(COMPLETIONS, body).param == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 50_000, b"1" * 5_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    error = refused(COMPLETIONS, body)
    assert error.body()["error"]["type"] == "invalid_request_error"


def test_deep_nesting_is_refused_by_name() -> None:
    deep = "[" * 200 + "]" * 200
    assert refused(COMPLETIONS, f'{{"prompt": "x", "foo": {deep}}}'.encode()).param == "foo"


def test_another_path_is_not_found() -> None:
    with pytest.raises(ApiError) as caught:
        parse_inference("/v1/embeddings", {}, b"{}")
    assert caught.value.status == 404


ALIASES = [hint for hint in ID_HINTS if not hint.exact]


@pytest.mark.parametrize("hint", ID_HINTS, ids=lambda hint: f"{hint.source}.{hint.name}")
def test_each_place_names_the_application(hint: Any) -> None:
    assert _request_with({hint: "run-1"}).hints.application_id == "run-1"


@pytest.mark.parametrize("first", range(len(ID_HINTS) - 1))
def test_the_table_is_the_order_of_precedence(first: int) -> None:
    values = {hint: f"id-{index}" for index, hint in enumerate(ID_HINTS) if index >= first}
    assert _request_with(values).hints.application_id == f"id-{first}"


def test_every_alias_of_the_design_is_known() -> None:
    names = {hint.name for hint in ID_HINTS}
    assert names >= {
        "application_id",
        "x-application-id",
        "x-llm-d-inference-fairness-id",
        "x-gateway-inference-fairness-id",
        "x-claude-code-session-id",
        "session-id",
        "x-session-affinity",
        "x-session-id",
        "prompt_cache_key",
        "program_id",
    }


@pytest.mark.parametrize("hint", ALIASES, ids=lambda hint: hint.name)
def test_an_odd_session_id_becomes_a_valid_one(hint: Any) -> None:
    odd = "user@example/é session " + "x" * 500
    name = _request_with({hint: odd}).hints.application_id
    assert name is not None
    assert name.startswith("session-")
    assert len(name) <= 128
    assert name == _request_with({hint: odd}).hints.application_id
    assert name != _request_with({hint: odd + "."}).hints.application_id
    assert chat({"X-Application-Id": name}).hints.application_id == name


@pytest.mark.parametrize("value", ["", "../x", "a b", "x" * 129, "x\n"])
def test_an_explicit_id_must_be_valid(value: str) -> None:
    for hint in ID_HINTS:
        if hint.exact:
            with pytest.raises(ApiError) as caught:
                _request_with({hint: value})
            assert caught.value.status == 400
            assert caught.value.param in ("application_id", "x-application-id", "metadata.application_id")


def test_an_explicit_id_must_be_a_text() -> None:
    assert refused(COMPLETIONS, b'{"prompt": "x", "application_id": 7}').param == "application_id"
    assert completion(application_id=None).hints.application_id is None


def test_headers_are_read_in_any_case_and_empty_aliases_say_nothing() -> None:
    hints = chat({"X-APPLICATION-ID": "a", "x-Application-Type": "t"}).hints
    assert hints == ApplicationHints("a", "t")
    assert chat({"session-id": ""}, program_id="", metadata="odd").hints.application_id is None
    assert chat(metadata={"application_type": "t2"}).hints.application_type == "t2"
    assert refused(CHAT, json.dumps({"messages": HELLO, "application_type": "a/b"}).encode()).param == (
        "application_type"
    )


@pytest.mark.parametrize("hint", [*PARENT_HINTS, *STAGE_HINTS])
def test_parents_and_stages_are_named_like_applications(hint: Any) -> None:
    hints = _request_with({hint: "map-1"}).hints
    assert (hints.parent_id, hints.stage) == (("map-1", None) if hint in PARENT_HINTS else (None, "map-1"))
    for odd in ("a b", "x" * 129):
        with pytest.raises(ApiError) as caught:
            _request_with({hint: odd})
        assert caught.value.param == (f"metadata.{hint.name}" if hint.source == "metadata" else hint.name)


def test_requests_are_told_apart_by_their_key_and_by_no_more_of_it_than_that() -> None:
    one, same, other = (chat({"Authorization": f"Bearer {key}"}).hints.key_group for key in ("sk-1", "sk-1", "sk-2"))
    assert one == same != other
    assert "sk-1" not in one
    assert chat({"authorization": "Bearer "}).hints.key_group == chat().hints.key_group == ""


def test_large_prompts_are_read_quickly() -> None:
    text = json.dumps({"prompt": "word " * 40_000, "max_tokens": 5}).encode()
    tokens = json.dumps({"prompt": [list(range(50_000))], "max_tokens": 5}).encode()
    began_s = time.perf_counter()
    for body in (text, tokens):
        for _ in range(10):
            parse_inference(COMPLETIONS, {}, body)
    assert (time.perf_counter() - began_s) / 20 < 1


def _request_with(values: dict[Any, str]) -> InferenceRequest:
    headers = {hint.name.title(): value for hint, value in values.items() if hint.source == "header"}
    body: dict[str, Any] = {hint.name: value for hint, value in values.items() if hint.source == "body"}
    metadata = {hint.name: value for hint, value in values.items() if hint.source == "metadata"}
    return chat(headers, **body, **({"metadata": metadata} if metadata else {}))
