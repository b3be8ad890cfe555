"""Formats that answers keep to where the engine knows JSON schemas; from other engines any text may come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def one_of(name: str, values: Sequence[str | int]) -> dict[str, Any]:
    """`response_format` of an object with one field `name`, which is one of `values`."""
    schema = {
        "type": "object",
        "properties": {name: {"enum": list(values)}},
        "required": [name],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
