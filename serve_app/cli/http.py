"""How commands talk to the service, and how they end when it does not answer or says no.

Exit codes of every command: 0 done; 1 the service is unreachable; 2 the request was refused (the service's reason
is printed); 3 the application that was waited for did not finish.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn
from urllib.parse import quote

import httpx
import typer
from rich.console import Console

DEFAULT_URL = "http://127.0.0.1:8000"
APPLICATIONS = "/v1/applications"
UNREACHABLE, REFUSED, NOT_FINISHED = 1, 2, 3
TIMEOUT_S = 30.0

UrlOption = Annotated[
    str, typer.Option("--url", envvar="JUSTITIA_URL", help="Where the service listens.", show_default=True)
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option("--api-key", envvar="JUSTITIA_API_KEY", help="Where the service asks for one.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def make_client(url: str, api_key: str | None = None) -> httpx.Client:
    """A client of the service at `url`; an answer may take TIMEOUT_S seconds. Raises httpx.InvalidURL."""
    return httpx.Client(base_url=url, timeout=TIMEOUT_S, headers=authorization(api_key))


def make_async_client(url: str, api_key: str | None = None) -> httpx.AsyncClient:
    """As `make_client`, for a command that asks for several things at once."""
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, headers=authorization(api_key))


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries a key. Ends the command for a key that no header can carry, without printing it."""
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable():
        raise typer.BadParameter("the API key must be visible ASCII characters")
    return {"Authorization": f"Bearer {api_key}"}


def application_path(application_id: str, action: str = "") -> str:
    """`/v1/applications/ID[/action]`, whatever characters the id holds."""
    path = f"{APPLICATIONS}/{quote(application_id, safe='')}"
    return f"{path}/{action}" if action else path


def ask(url: str, method: str, path: str, body: object = None, *, api_key: str | None) -> Any:
    """The service's answer, parsed. Ends the command (typer.Exit) when there is none or it is a refusal."""
    try:
        with make_client(url, api_key) as client:
            answer = client.request(method, path, json=body)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        end_unreachable(url, error)
    if answer.is_error:
        end_refused(answer)
    return _parsed(answer, url)


def require_service(url: str, api_key: str | None) -> None:
    """End the command with 1, at once, when nobody answers at `url`; the Python client would be patient for minutes."""
    try:
        with make_client(url, api_key) as client:
            client.get("/health")
    except (httpx.TransportError, httpx.InvalidURL) as error:
        end_unreachable(url, error)


def end_unreachable(url: str, error: Exception) -> NoReturn:
    """End the command with 1: nobody answers at `url`, or the answer breaks off."""
    complain(f"Cannot reach the service at {url}: {error or type(error).__name__}")
    complain("Start it with `justitia serve`, or give its address with --url or JUSTITIA_URL.")
    raise typer.Exit(UNREACHABLE)


def end_refused(answer: httpx.Response) -> NoReturn:
    """End the command with 2, the service's reason, and the seconds to wait where it names them."""
    wait_s = answer.headers.get("Retry-After")
    again = f" Try again in {wait_s} s." if wait_s else ""
    complain(f"Refused ({answer.status_code}): {refusal_reason(answer)}{again}")
    raise typer.Exit(REFUSED)


def refusal_reason(answer: httpx.Response) -> str:
    """The reason in OpenAI's error shape, or the beginning of whatever else came."""
    try:
        error = answer.json()["error"]
        return str(error["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500].strip() or answer.reason_phrase


def complain(message: str) -> None:
    """To the standard error stream, so that `--json` output stays clean."""
    Console(stderr=True, soft_wrap=True).print(message, style="red", markup=False, highlight=False)


def print_json(value: object) -> None:
    """To the standard output, indented. Raises TypeError for what JSON cannot hold."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _parsed(answer: httpx.Response, url: str) -> Any:
    if not answer.content:
        return {}
    try:
        return answer.json()
    except ValueError:
        complain(f"{url} answers, but not as this service does: {answer.text[:200]!r}")
        raise typer.Exit(UNREACHABLE) from None
