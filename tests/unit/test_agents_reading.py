"""What a model said is read tolerantly, and never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.agents import reading
from serve_app.agents.reading import ENTRY_CHARS, UNCLEAR


@given(st.text(max_size=2000), st.integers(1, 5))
def test_no_text_raises_and_lists_are_bounded(text: str, most: int) -> None:
    for entries in (reading.listed(text, most), reading.sentences(text, most)):
        assert len(entries) <= most
        assert all(0 < len(entry) <= ENTRY_CHARS for entry in entries)
    assert reading.said(text).strip()
    assert reading.verdict(text, ("true", "false")) in ("true", "false", UNCLEAR)
    assert reading.last_number(text) is None or float(reading.last_number(text) or "x") is not None
    assert isinstance(reading.code(text), str)


def test_lists_lose_their_marks() -> None:
    text = "1. Look\n2) Leap\n- 3 apples\n* **bold**\n• dot\nStep 4: Land\n(5) five\n\n---\nplain"
    assert reading.listed(text, 20) == ["Look", "Leap", "3 apples", "**bold**", "dot", "Land", "five", "plain"]


def test_claims_are_about_the_text_or_are_its_sentences() -> None:
    text = "Whales are mammals and breathe air. The Moon glows."
    answer = "Sure, here is what I found:\n1. Whales are mammals.\n2. Whales breathe air.\n3. Lovely weather.\n"
    assert reading.claims(answer, text, 5) == ["Whales are mammals.", "Whales breathe air."]
    assert reading.claims(answer, text, 1) == ["Whales are mammals."]
    assert reading.claims("No idea at all.", text, 5) == ["Whales are mammals and breathe air.", "The Moon glows."]
    assert reading.claims("", "!?", 5) == ["!?"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("True, because it is.", "true"),
        ("It is FALSE, not true", "false"),
        ("This is not true.", UNCLEAR),
        ("That isn't really true", UNCLEAR),
        ("untrue", UNCLEAR),
        ("", UNCLEAR),
        ("True: it shines.\nFalse: it does not.", UNCLEAR),
        ("**false**: it is dark.\nIt would be true of the Sun.", "false"),
        ("- true\n- True, indeed", "true"),
    ],
)
def test_verdicts(text: str, found: str) -> None:
    assert reading.verdict(text, ("true", "false")) == found


@pytest.mark.parametrize(
    ("text", "number"), [("1,024 rolls", "1024"), ("so 3.50", "3.5"), ("-7.0.", "-7"), ("none", None), ("100", "100")]
)
def test_numbers(text: str, number: str | None) -> None:
    assert reading.last_number(text) == number


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Sure:\n```python\nx = 1\n```\nDone", "x = 1"),
        ("```\nx = 1", "x = 1"),
        ("Here it is:\ndef f():\n    return 1", "def f():\n    return 1"),
        ("x = 1", "x = 1"),
        ("", ""),
    ],
)
def test_code_is_found(text: str, code: str) -> None:
    assert reading.code(text) == code
