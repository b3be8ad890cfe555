"""What may be sent to /v1/applications, and what the calls of a document become."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from serve_app.documents import ApplicationDocument, parse_application
from serve_app.errors import ApiError


def call(call_name: str, *after: str, **fields: Any) -> dict[str, Any]:
    prompt = {} if "messages" in fields or "prompt" in fields else {"prompt": f"This is {call_name}."}
    return {"name": call_name, "after": list(after), **prompt, **fields}


def refused(document: dict[str, Any] | bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_application(document)
    assert caught.value.status == 400
    return caught.value


def refused_call(**fields: Any) -> ApiError:
    return refused({"calls": [call("first"), call("bad", **fields)]})


def test_a_diamond_is_accepted_and_ordered() -> None:
    document = parse_application(
        {"calls": [call("d", "b", "c"), call("b", "a"), call("c", "a"), call("a")], "weight": 2}
    )
    assert document.order() == ["a", "b", "c", "d"]
    assert document.weight == 2
    assert document.application_type == "unknown"


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"weight": 1e309, "calls": []}', "weight"),
        (b'{"weight": NaN, "calls": []}', "weight"),
        (b'{"weight": 0, "calls": []}', "weight"),
        (b'{"weight": 0.0099, "calls": []}', "weight"),
        (b'{"weight": 100.1, "calls": []}', "weight"),
        (b'{"weight": true, "calls": []}', "weight"),
        (b'{"weight": "1", "calls": []}', "weight"),
        (b'{"deadline_s": 0, "calls": []}', "deadline_s"),
        (b'{"deadline_s": 1e309, "calls": []}', "deadline_s"),
        (b'{"deadline_s": true, "calls": []}', "deadline_s"),
        (b'{"period_s": NaN, "calls": []}', "period_s"),
        (b'{"period_s": -1, "calls": []}', "period_s"),
        (b'{"application_id": "", "calls": []}', "application_id"),
        (b'{"application_id": "../x", "calls": []}', "application_id"),
        (b'{"application_id": "x\\n", "calls": []}', "application_id"),
        (b'{"application_id": 7, "calls": []}', "application_id"),
        (b'{"application_type": "' + b"t" * 65 + b'", "calls": []}', "application_type"),
        (b'{"calls": []}', "calls"),
        (b'{"calls": null}', "calls"),
        (b'{"calls": [7]}', "calls[0]"),
        (b'{"colls": []}', "colls"),
        (b'{"open": true, "calls": [{"name": "a", "prompt": "x"}]}', "calls"),
        (b'{"open": 1}', "open"),
        (b'{"parent_application_id": "p", "calls": [{"name": "a", "prompt": "x"}]}', "parent_application_id"),
        (b'{"open": true, "parent_application_id": "../p"}', "parent_application_id"),
        (b"[]", None),
        (b"", None),
        (b'{"calls": ', None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b'{"weight": ' + b"1" * 5_000 + b"}", None),
    ],
)
def test_a_bad_document_is_refused_by_field(raw: bytes, param: str | None) -> None:
    assert refused(raw).param == param


def test_an_id_of_a_megabyte_is_refused_in_few_words() -> None:
    error = refused({"application_id": "x" * 1_000_000, "calls": [call("a")]})
    assert error.param == "application_id"
    assert len(json.dumps(error.body())) < 3_000


def test_an_open_application_has_no_calls_as_yet() -> None:
    stated = parse_application({"open": True, "weight": 2, "deadline_s": 3.5})
    assert (stated.open, stated.weight, stated.deadline_s, stated.calls) == (True, 2, 3.5, [])
    assert "/close" in refused({"open": True, "calls": [call("a")]}).message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 9223372036854775808),
        ("max_tokens", -5),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 7.5),
        ("max_tokens", 1_000_001),
        ("n", 1_000_000_000),
        ("n", 129),
        ("n", 0),
        ("n", True),
        ("seed", -1e30),
        ("seed", 2**63),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 1.5),
        ("top_k", 2**70),
        ("repetition_penalty", float("inf")),
        ("min_tokens", -1),
        ("stop", 7),
        ("stop", [""]),
        ("stop", "\ud800"),
        ("prompt", ""),
        ("prompt", " \n\t"),
        ("prompt", 7),
        ("name", "no spaces"),
        ("name", ""),
    ],
)
def test_a_bad_field_of_a_call_is_named(field: str, value: object) -> None:
    error = refused_call(**{field: value})
    assert (error.param or "").startswith(f"calls[1].{field}")


@pytest.mark.parametrize(
    "field", ["stream", "priority", "use_beam_search", "best_of", "request_id", "echo", "prompt_embeds"]
)
def test_reserved_fields_are_refused_with_a_reason(field: str) -> None:
    error = refused_call(**{field: 1})
    assert error.param == f"calls[1].{field}"
    assert "is refused: " in error.message


def test_a_number_hidden_in_an_unknown_field_is_found() -> None:
    assert refused_call(logit_bias={"5": float("inf")}).param == "calls[1].logit_bias.5"
    assert refused_call(foo=[{"bar": 2**64}]).param == "calls[1].foo[0].bar"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "calls[1].messages"),
        ([{"role": "user"}], "calls[1].messages"),
        ([{"role": "user", "content": "  "}], "calls[1].messages"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "calls[1].messages"),
        ([{"content": "x"}], "calls[1].messages[0].role"),
        ([{"role": "user", "content": 7}], "calls[1].messages[0].content"),
        ([{"role": "user", "content": [7]}], "calls[1].messages[0].content[0]"),
        ([{"role": "user", "content": "\ud800"}], "calls[1].messages[0].content"),
        (["x"], "calls[1].messages[0]"),
    ],
)
def test_bad_messages_are_named(messages: object, param: str) -> None:
    assert refused_call(messages=messages).param == param


def test_messages_and_prompt_exclude_each_other() -> None:
    both = refused_call(prompt="x", messages=[{"role": "user", "content": "x"}])
    neither = refused({"calls": [{"name": "a"}]})
    assert both.param == "calls[1].prompt"
    assert neither.param == "calls[0].prompt"
    assert "exactly one" in neither.message


def test_names_are_unique() -> None:
    error = refused({"calls": [call("a"), call("b"), call("a")]})
    assert error.param == "calls[2].name"
    assert "'a'" in error.message


@pytest.mark.parametrize(
    ("calls", "param", "words"),
    [
        ([call("a", "a")], "calls[0].after[0]", ["'a'", "itself"]),
        ([call("a"), call("b", "missing")], "calls[1].after[0]", ["'b'", "'missing'"]),
        ([call("a"), call("b", "a", "a")], "calls[1].after[1]", ["'a'", "twice"]),
        ([call("a", "b"), call("b", "a")], "calls[0].after", ["a → b → a"]),
        ([call("x"), call("a", "c", "x"), call("b", "a"), call("c", "b")], "calls[1].after", ["a → c → b → a"]),
    ],
)
def test_bad_dependencies_are_named(calls: list[dict[str, Any]], param: str, words: list[str]) -> None:
    error = refused({"calls": calls})
    assert error.param == param
    assert all(word in error.message for word in words)


def test_a_long_chain_is_fine_and_a_long_cycle_is_found() -> None:
    chain = [call(f"c{i}", f"c{i - 1}") if i else call("c0") for i in range(5_000)]
    began_s = time.perf_counter()
    document = parse_application({"calls": chain[::-1]})
    assert document.order() == [f"c{i}" for i in range(5_000)]
    assert time.perf_counter() - began_s < 30
    chain[0]["after"] = ["c4999"]
    error = refused({"calls": chain})
    assert "4980 more" in error.message


def test_a_reference_needs_a_direct_dependency() -> None:
    error = refused({"calls": [call("a"), call("b", "a"), call("c", "b", prompt="Use {{a}} and {{b}}")]})
    assert error.param == "calls[2].prompt"
    assert "'c'" in error.message
    assert "'a'" in error.message


def test_a_reference_to_no_call_is_refused_where_it_stands() -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "{{nobody}}"}]
    error = refused({"calls": [call("a", messages=messages)]})
    assert error.param == "calls[0].messages[1].content"
    assert "{{nobody}}" in error.message


def test_other_braces_are_text() -> None:
    text = "{a} {{ a }} {{}} {{a b}} {{{ }}} {{-a}}"
    document = parse_application({"calls": [call("a", prompt=text)]})
    assert document.render("a", {})["prompt"] == text


def test_outputs_are_substituted_once_and_numbered() -> None:
    document = parse_application(
        {
            "model": "m",
            "calls": [
                call("a", n=2),
                call("b"),
                call("c", "a", "b", prompt="A: {{a}}; B: {{b}}; again {{b}}", max_tokens=9),
            ],
        }
    )
    body = document.render("c", {"a": ["one {{b}}", "two"], "b": ["{{a}}\\1"]})
    assert body == {
        "model": "m",
        "prompt": "A: [1] one {{b}}\n\n[2] two; B: {{a}}\\1; again {{a}}\\1",
        "max_tokens": 9,
    }
    assert document.path("c") == "/v1/completions"


def test_messages_are_rendered_in_text_and_in_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,{{a}}"}}
    messages = [
        {"role": "system", "content": "Say {{a}}"},
        {"role": "user", "content": [{"type": "text", "text": "<{{a}}>"}, image]},
    ]
    document = parse_application({"calls": [call("a"), call("b", "a", messages=messages)]})
    body = document.render("b", {"a": ["x"]})
    assert body["messages"][0]["content"] == "Say x"
    assert body["messages"][1]["content"] == [{"type": "text", "text": "<x>"}, image]
    assert document.path("b") == "/v1/chat/completions"
    assert document.call("b").messages == messages


def test_sampling_fields_reach_the_body_unchanged() -> None:
    sampling = {
        "max_tokens": 5,
        "n": 3,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["\n"],
        "repetition_penalty": 1.3,
        "min_tokens": 4,
        "foo": {"bar": [1]},
    }
    document = parse_application({"calls": [call("a", prompt="x", **sampling)]})
    assert document.render("a", {}) == {"prompt": "x", **sampling}
    assert document.unrecognised_fields() == ["calls[0].foo"]


def test_a_prompt_that_outputs_leave_empty_is_refused() -> None:
    document = parse_application({"calls": [call("a"), call("b", "a", prompt=" {{a}} ")]})
    with pytest.raises(ApiError) as caught:
        document.render("b", {"a": [""]})
    assert caught.value.status == 400
    assert "a gave no text" in caught.value.message
    assert document.render("b", {"a": ["x"]}) == {"prompt": " x "}


def test_template_length_leaves_references_out() -> None:
    document = parse_application({"calls": [call("a"), call("b", "a", prompt="12{{a}}345{{a}}")]})
    assert document.longest_template_chars("b") == 5
    assert document.call("b").references() == ["a", "a"]


def test_ten_thousand_calls_are_checked_quickly() -> None:
    names = [f"m{i}" for i in range(9_999)]
    prompt = " ".join(f"{{{{{name}}}}}" for name in names)
    calls = [call(name) for name in names] + [call("reduce", *names, prompt=prompt)]
    began_s = time.perf_counter()
    assert len(parse_application({"calls": calls}).order()) == 10_000
    assert time.perf_counter() - began_s < 30
    assert refused({"calls": [*calls, call("one_more")]}).param == "calls"


def test_the_model_itself_refuses_too() -> None:
    with pytest.raises(ApiError):
        ApplicationDocument.model_validate({"calls": [call("a", "a")]})
