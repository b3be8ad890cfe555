"""What a model said, read tolerantly: lists, verdicts, numbers, code.

Laws. No text raises; a list has at most the entries that were asked for, none of them empty or longer than
ENTRY_CHARS; where nothing is found the answer is an empty list, None or UNCLEAR, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

UNCLEAR = "unclear"
ENTRY_CHARS = 300

_BULLET = re.compile(r"^\s*(?:[-*•#>]+|\(?\d{1,3}[.):]|step\s+\d+\s*[.:)]?)\s*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_NEGATION = re.compile(r"\b(?:not|isn't|never|neither)\s+(?:\w+\s+)?$", re.IGNORECASE)


def said(text: str) -> str:
    """The text without blank edges, UNCLEAR when nothing is left."""
    return text.strip() or UNCLEAR


def listed(text: str, most: int) -> list[str]:
    """The entries of a list of one a line, without bullets and numbers."""
    entries = (_BULLET.sub("", line).strip() for line in text.splitlines())
    return [entry[:ENTRY_CHARS] for entry in entries if any(map(str.isalnum, entry))][:most]


def sentences(text: str, most: int) -> list[str]:
    """The sentences of a text, over line breaks."""
    parts = _SENTENCE_END.split(" ".join(text.split()))
    return [part[:ENTRY_CHARS] for part in parts if any(map(str.isalnum, part))][:most]


def claims(answer: str, text: str, most: int) -> list[str]:
    """The entries of the list `answer` that are about `text`: half of their words are words of it.

    Without one, the sentences of `text`; at least one entry for any text.
    """
    known = set(_WORD.findall(text.lower()))
    entries = dict.fromkeys(entry for entry in listed(answer, len(answer)) if _share(entry, known) >= 0.5)
    return list(entries)[:most] or sentences(text, most) or [text[:ENTRY_CHARS]]


def verdict(text: str, words: Sequence[str]) -> str:
    """Which of `words` (lower case) comes first; UNCLEAR when none does, it is negated, or lines begin with several."""
    any_word = "|".join(map(re.escape, words))
    found = re.search(rf"\b(?:{any_word})\b", text, re.IGNORECASE)
    if found is None or _NEGATION.search(text[: found.start()]):
        return UNCLEAR
    begun = re.findall(rf"^\W*({any_word})\b", text, re.IGNORECASE | re.MULTILINE)
    if len(set(map(str.lower, begun))) > 1:
        return UNCLEAR
    return found[0].lower()


def numbers(text: str) -> list[str]:
    """The numbers in a text, without thousands separators and without the trailing zeros of decimals."""
    plain = (str(found).replace(",", "") for found in _NUMBER.findall(text))
    return [number.rstrip("0").rstrip(".") if "." in number else number for number in plain]


def last_number(text: str) -> str | None:
    """The last number in a text, as `numbers` has it."""
    found = numbers(text)
    return found[-1] if found else None


def code(text: str) -> str:
    """The first fenced block, or from the first line that begins a definition or an import on, or the text."""
    if fenced := _FENCE.search(text):
        return fenced[1].strip()
    lines = text.strip().splitlines()
    starts = (number for number, line in enumerate(lines) if line.startswith(("def ", "import ", "from ", "class ")))
    return "\n".join(lines[next(starts, 0) :])


def parts(text: str, most_chars: int) -> list[str]:
    """A text in parts of at most `most_chars` characters, cut between sentences where that can be done."""
    packed: list[str] = []
    for sentence in _SENTENCE_END.split(text.strip()):
        for start in range(0, len(sentence), most_chars):
            piece = sentence[start : start + most_chars]
            if packed and len(packed[-1]) + 1 + len(piece) <= most_chars:
                packed[-1] += " " + piece
            else:
                packed.append(piece)
    return packed


def _share(entry: str, known: set[str]) -> float:
    words = _WORD.findall(entry.lower())
    return sum(word in known for word in words) / len(words) if words else 0.0
