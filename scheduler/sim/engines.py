"""The engines that a simulation can be asked for by name, and engines that a user describes in JSON.

A description is one object with fields of `EngineProfile`; a field that is missing has the reference engine's value:

    {"usable_blocks": 1024, "block_tokens": 16, "base_s": 0.012, "per_sequence_s": 0.0001}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from scheduler.sim.engine import REFERENCE, EngineProfile

ENGINES: Mapping[str, EngineProfile] = {"reference": REFERENCE}
"""Profiles by the names that the command line uses."""


class EngineError(ValueError):
    """A description of an engine that cannot be used."""


def parse_profile(text: str) -> EngineProfile:
    """The engine that a JSON object describes; EngineError names the field at fault and what is known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise EngineError("an engine is described by a JSON object")
    kinds = {field.name: type(field.default) for field in fields(EngineProfile)}
    for name, value in document.items():
        if name not in kinds:
            raise EngineError(f"no field {name!r}; known: {', '.join(kinds)}")
        _check_kind(name, value, kinds[name])
    try:
        return EngineProfile(**document)
    except ValueError as error:
        raise EngineError(str(error)) from error


def _check_kind(name: str, value: Any, kind: type) -> None:
    """An integer is a number too, but true is neither."""
    accepted = (int, float) if kind is float else (kind,)
    if type(value) not in accepted:
        what = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise EngineError(f"{name} must be {what}, got {json.dumps(value)}")
