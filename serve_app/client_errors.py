"""What can go wrong between the client and the service, as exceptions, and answers that are none of this service's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

SHOWN_CHARS = 200


class JustitiaError(Exception):
    """The service refused. `status` is HTTP's (0: nobody answered), `param` the path of the field at fault.

    `retry_after_s`: seconds, 0 or more, after which it may be tried again; None where waiting mends nothing.
    """

    def __init__(
        self,
        message: str,
        status: int = 0,
        code: str | None = None,
        type: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.type = type
        self.param = param
        self.retry_after_s = retry_after_s


class JustitiaUnreachable(JustitiaError):
    """Nobody answered, the answer broke off, as often as it was tried, or somebody else answered."""


def refusal(answer: httpx.Response) -> JustitiaError:
    """An answer that is an error, as an exception: from OpenAI's shape, or from whatever else came."""
    try:
        error = answer.json()["error"]
        message, kind, param, code = (error.get(name) for name in ("message", "type", "param", "code"))
    except (ValueError, KeyError, TypeError, AttributeError):
        message, kind, param, code = answer.text[:500].strip() or answer.reason_phrase, None, None, None
    wait_s = _retry_after_s(answer.headers)
    return JustitiaError(str(message), answer.status_code, None if code is None else str(code), kind, param, wait_s)


@contextmanager
def reading(answer: object) -> Iterator[None]:
    """The block reads `answer`. Raises JustitiaUnreachable where it finds another shape than the service's."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        shown = str(answer)[:SHOWN_CHARS]
        raise JustitiaUnreachable(f"somebody answers, but not as this service does: {shown!r}") from None


def object_of(value: Any) -> dict[str, Any]:
    """A JSON value that has to be an object. Raises TypeError."""
    if not isinstance(value, dict):
        raise TypeError("it is no JSON object")
    return value


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        wait_s = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return wait_s if 0 <= wait_s < math.inf else None
