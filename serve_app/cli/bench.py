"""`justitia bench`: measurements, each comparing two ways in one run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from serve_app.cli import http
from serve_app.cli.bench_core import core
from serve_app.cli.bench_policies import policies
from serve_app.cli.overhead import Measurement, compare
from serve_app.cli.service import DEFAULT_CONFIG, ConfigOption, running_service, with_engine, with_port

bench = typer.Typer(help="Measure the system; machines are noisy, so compare the ratios of one run.")

TINY_ENGINE = {
    "kind": "vllm",
    "model": "tiny-random-llama",
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "num_gpu_blocks": 513,
    "max_model_len": 2048,
    "max_num_seqs": 64,
}
BENCHMARK_APPLICATION = "serve_app.benchmark_app:build"


bench.command()(core)
bench.command()(policies)


@bench.command()
def overhead(
    config: ConfigOption = DEFAULT_CONFIG,
    simulated: Annotated[bool, typer.Option("--simulated", help="Use the simulated engine, at full speed.")] = False,
    requests: Annotated[int, typer.Option(help="Requests one after another, each way.", min=4, max=10_000)] = 40,
    concurrency: Annotated[int, typer.Option(help="Clients at a time in the second part.", min=1, max=64)] = 16,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2, max=1024)] = 64,
    as_json: http.JsonOption = False,
) -> None:
    """Time to first token and tokens a second through the whole stack, beside the same engine asked directly.

    Both ways lead to the same engine in the same process: directly over HTTP on a port of its own, as `vllm serve`
    would answer, and through proxy, ingress, scheduler and lease. Requests of the two ways alternate.

    Example: justitia bench overhead --concurrency 16
    """
    from cluster.deploy.local import free_port, load_config  # Ray takes a second to import

    console = Console(stderr=as_json)
    engine = {"kind": "simulated", "time_scale": 0.0} if simulated else TINY_ENGINE
    document = with_engine(with_port(load_config(Path(config)), free_port()), engine)
    document = _with_direct_port(document)
    with running_service(document, console) as url:
        model = "simulated" if simulated else str(TINY_ENGINE["model"])
        with console.status("Measuring"), http_errors_in_words(url):
            results = asyncio.run(_compare(url, model, requests, concurrency, output_tokens))
    if as_json:
        http.print_json({name: measurement.as_dict() for name, measurement in results.items()})
    else:
        console.print(_table(results["direct"], results["stack"], concurrency))


@contextmanager
def http_errors_in_words(url: str) -> Iterator[None]:
    """End the command with a sentence where a request was refused (exit code 2) or got no answer (1)."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        http.complain(f"A request was refused ({error.response.status_code}): {error.request.url}")
        raise typer.Exit(http.REFUSED) from None
    except httpx.HTTPError as error:
        http.end_unreachable(url, error)


def _with_direct_port(config: dict[str, Any]) -> dict[str, Any]:
    for application in config["applications"]:
        if "engine" in application.get("args", {}):
            application["import_path"] = BENCHMARK_APPLICATION
    return config


async def _compare(url: str, model: str, requests: int, concurrency: int, output_tokens: int) -> dict[str, Measurement]:
    return await compare(await _open_direct_port(), url, model, requests, concurrency, output_tokens)


async def _open_direct_port() -> str:
    from ray import serve

    from cluster.replica import DEPLOYMENT

    port = await serve.get_deployment_handle(DEPLOYMENT, app_name="justitia").open_direct_port.remote()
    return f"http://127.0.0.1:{port}"


def _table(direct: Measurement, stack: Measurement, concurrency: int) -> Table:
    table = Table("measure", "engine directly", "whole stack", "stack / direct", "added")
    rows = (
        ("time to first token, alone, median (ms)", "first_token_p50_ms"),
        ("time to first token, alone, P90 (ms)", "first_token_p90_ms"),
        (f"time to first token, {concurrency} at a time, median (ms)", "loaded_first_token_p50_ms"),
        ("tokens a second, alone", "tokens_per_s"),
        (f"tokens a second, {concurrency} at a time", "loaded_tokens_per_s"),
    )
    for label, name in rows:
        one, other = getattr(direct, name), getattr(stack, name)
        added = f"{other - one:+.1f}" if name.endswith("_ms") else ""
        table.add_row(label, f"{one:.1f}", f"{other:.1f}", f"{other / one:.2f}", added)
    return table
