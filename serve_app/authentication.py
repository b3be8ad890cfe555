"""The door of the HTTP service: every path but `OPEN_PATHS` needs a key where keys are configured.

`KeyCheck` stands before all routes, those that do not exist included; a route takes the tenant that it found as an
argument of type `Tenant`, and has none without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.errors import ApiError, respond
from serve_app.tenants import ApiKeys

OPEN_PATHS = frozenset({"/health", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})


class KeyCheck:
    """ASGI middleware. `keys` gives the keys of the ingress that it stands before, which is made after it."""

    def __init__(self, app: ASGIApp, keys: Callable[[], ApiKeys]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _path(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            tenant = self._keys().tenant(Headers(scope=scope).get("authorization"))
        except ApiError as error:
            await respond(error)(scope, receive, send)
            return
        await self._app({**scope, "state": {**scope.get("state", {}), "tenant": tenant}}, receive, send)


def _path(scope: Scope) -> str:
    """The path within the service, which may stand under a prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _tenant_of(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


Tenant = Annotated[str, Depends(_tenant_of)]
