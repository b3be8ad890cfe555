"""Prompts in which `{{name}}` stands for the output of another call.

Laws.
1. Only `{{name}}`, without spaces inside, is a reference; every other brace is text.
2. Substitution is a single pass: an output that contains `{{other}}` enters the prompt as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}$"
_REFERENCE = re.compile(r"\{\{([A-Za-z0-9_][A-Za-z0-9._:-]{0,127})\}\}")


def references(text: str) -> list[str]:
    """The names that a template refers to, in order, repeats included."""
    return _REFERENCE.findall(text)


def literal_chars(text: str) -> int:
    """Characters of a template that are its own: without its references."""
    return len(text) - sum(len(name) + len("{{}}") for name in references(text))


def substitute(text: str, outputs: Mapping[str, Sequence[str]]) -> str:
    """`text` with each reference replaced by that call's output. KeyError for a call not in `outputs`."""
    return _REFERENCE.sub(lambda match: joined(outputs[match[1]]), text)


def joined(texts: Sequence[str]) -> str:
    """A call's output as one text; several sequences are numbered and parted by blank lines."""
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, start=1))
