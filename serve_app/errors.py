"""Refusals as a client sees them: OpenAI's error shape, one table from outcome to status.

Laws.
1. Whatever a client can cause has a row here, or is an `ApiError` of its own; none of them is a 500.
2. A 429 or 503 always carries Retry-After. What waiting cannot mend carries `x-should-retry: false`: OpenAI's
   clients otherwise send every 409 again.
3. `param` is the path of the field at fault as the client wrote it: `calls[1].prompt`, `prompt[3]`.
4. An error can be sent between processes (pickle) and over HTTP whatever text the client put into it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from scheduler.actions import Refusal

INVALID_REQUEST = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
MAX_MESSAGE_CHARS = 2_000

REFUSAL_STATUS: dict[Refusal, tuple[int, str, str]] = {
    # refusal: (HTTP status, type, code)
    Refusal.DUPLICATE_ID: (409, INVALID_REQUEST, "duplicate_id"),
    Refusal.UNKNOWN_APPLICATION: (404, "not_found_error", "unknown_application"),
    Refusal.APPLICATION_CLOSED: (409, INVALID_REQUEST, "application_closed"),
    Refusal.CANNOT_FIT: (400, INVALID_REQUEST, "cannot_fit"),
    Refusal.BUSY: (429, "rate_limit_error", "busy"),
    Refusal.NO_ENGINE: (503, UNAVAILABLE, "no_engine"),
    Refusal.INVALID: (400, INVALID_REQUEST, "invalid"),
    Refusal.LOST: (503, UNAVAILABLE, "lost"),
    Refusal.CANCELLED: (499, "cancelled_error", "cancelled"),
}

RETRY_AFTER_S: dict[Refusal, int] = {Refusal.BUSY: 5, Refusal.NO_ENGINE: 10, Refusal.LOST: 1}

STATUS_TYPE: dict[int, tuple[str, str]] = {
    # HTTP status: (type, code), for errors that no refusal of the scheduler caused
    400: (INVALID_REQUEST, "invalid"),
    401: (INVALID_REQUEST, "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("not_found_error", "not_found"),
    405: (INVALID_REQUEST, "method_not_allowed"),
    409: (INVALID_REQUEST, "conflict"),
    413: (INVALID_REQUEST, "too_large"),
    415: (INVALID_REQUEST, "unsupported_media_type"),
    422: (INVALID_REQUEST, "invalid"),
    429: ("rate_limit_error", "busy"),
    499: ("cancelled_error", "cancelled"),
    503: (UNAVAILABLE, "unavailable"),
}
DEFAULT_RETRY_AFTER_S: dict[int, int] = {429: 5, 503: 5}


class ApiError(Exception):
    """One refused request. `type` and `code` follow from `status` unless they are given.

    `param` names the field at fault. `retry_after_s` (whole seconds) is filled in for 429 and 503.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        type: str | None = None,
    ) -> None:
        super().__init__(message)
        default_type, default_code = STATUS_TYPE.get(status, (_family(status), "error"))
        self.status = status
        self.message = message
        self.param = param
        self.code = code if code is not None else default_code
        self.retry_after_s = retry_after_s if retry_after_s is not None else DEFAULT_RETRY_AFTER_S.get(status)
        self.type = type if type is not None else default_type

    def __reduce__(self) -> tuple[type[ApiError], tuple[object, ...]]:
        fields = (self.status, self.message, self.param, self.code, self.retry_after_s, self.type)
        return ApiError, fields

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error in OpenAI's shape; any text is valid UTF-8 and of bounded length."""
        return {
            "error": {
                "message": _sendable(self.message),
                "type": self.type,
                "param": None if self.param is None else _sendable(self.param),
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds where waiting may mend it, else a word against sending a 4xx again.

        A 401 names the scheme that is asked for.
        """
        if self.retry_after_s is not None:
            return {"Retry-After": str(self.retry_after_s)}
        headers = {"x-should-retry": "false"} if 400 <= self.status < 500 else {}
        return {**headers, "WWW-Authenticate": "Bearer"} if self.status == 401 else headers


def from_refusal(refusal: Refusal, message: str, param: str | None = None) -> ApiError:
    """The error for a refusal of the scheduler, with the status, code and Retry-After of the tables."""
    status, kind, code = REFUSAL_STATUS[refusal]
    return ApiError(status, message, param=param, code=code, retry_after_s=RETRY_AFTER_S.get(refusal), type=kind)


def invalid(param: str | None, message: str) -> ApiError:
    """400 for a field that is wrong; `param` is its path."""
    return from_refusal(Refusal.INVALID, message, param)


def from_validation(error: ValidationError | RequestValidationError) -> ApiError:
    """400 naming the first field that pydantic or FastAPI found wrong, and how many more there are."""
    problems: Sequence[Any] = error.errors()
    first = problems[0]
    param = field_path(first["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return invalid(param, f"{param or 'body'}: {first['msg']}{more}")


def field_path(location: Sequence[str | int]) -> str | None:
    """`("body", "calls", 1, "prompt")` as `calls[1].prompt`; None for the body itself."""
    path = ""
    for part in location[1:] if location and location[0] == "body" else location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or None


def respond(error: ApiError) -> JSONResponse:
    """The error as an HTTP answer: its status, its headers, its body in OpenAI's shape. Raises nothing."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


def install_handlers(app: FastAPI) -> None:
    """Make every refusal of `app`, FastAPI's own included, an answer in this module's shape."""
    app.add_exception_handler(ApiError, _handle_api_error)
    app.add_exception_handler(RequestValidationError, _handle_validation)
    app.add_exception_handler(HTTPException, _handle_http_exception)


async def _handle_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return respond(error)


async def _handle_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return respond(from_validation(error))


async def _handle_http_exception(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return respond(ApiError(error.status_code, str(error.detail)))


def engine_error(status: int, body: bytes) -> ApiError:
    """What an engine answered other than 200, as a refusal of ours: its reason, and 503 for its own failures."""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = body[:500].decode("utf-8", "replace")
    return ApiError(status if 400 <= status < 500 else 503, message)


def _family(status: int) -> str:
    return INVALID_REQUEST if status < 500 else "internal_error"


def _sendable(text: str) -> str:
    """`text` without what UTF-8 cannot hold (unpaired surrogates), cut to a bounded length."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= MAX_MESSAGE_CHARS else whole[: MAX_MESSAGE_CHARS - 1] + "…"
