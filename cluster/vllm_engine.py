"""The vLLM engine of a replica; the only file that imports vllm (tested with 0.32).

vLLM's own OpenAI application runs in this process on an AsyncLLM whose `generate` asks for a lease first, so
chat templates, tools, structured output, logprobs, streaming and errors are vLLM's. The engine core is one
child process.

Laws: nothing is generated without a lease, and a refusal is HTTP 403 before any byte of an answer; only the
lease's integer priority reaches vLLM's scheduler (a float there kills the engine's input thread without an
error), so a client's own `priority` has no effect; a generation that ends, fails or loses its client is
aborted in the engine; the child ends with `stop`, and with this process even when it is killed.

`create_engine` sets the environment that vLLM reads on import; import this module through it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from fastapi import HTTPException
from starlette.exceptions import HTTPException as RoutingError
from starlette.requests import Request
from starlette.responses import JSONResponse
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor import Executor
from vllm.v1.metrics.loggers import StatLoggerBase

from cluster.clock import monotonic_s
from cluster.engine import (
    CURRENT_LEASE,
    ActiveLease,
    EngineCounters,
    LeaseRefused,
    Receive,
    Scope,
    Send,
    SequenceUse,
)
from cluster.engines import VllmSettings
from cluster.iteration_log import IterationLog
from scheduler.types import EngineLimits

LOWEST_PRIORITY, HIGHEST_PRIORITY = -(2**62), 2**62
PARENT_CHECK_S = 1.0
KILLED_GONE_S = 10.0


class IterationCounter(StatLoggerBase):  # type: ignore[misc] # vllm has no types here
    """Counts the engine core's iterations and preemptions; keeps the share of its KV blocks in use.

    With a log, each iteration is written there, as long as from the answers of the one before to its own: what the
    engine core measures itself is shorter, since it begins the next iteration while one runs. The first after an idle
    moment has no such measure.
    """

    def __init__(self, log: IterationLog | None = None, clock: Callable[[], float] = monotonic_s) -> None:
        self.limits: EngineLimits | None = None
        self._log = log
        self._clock = clock
        self._last_s: float | None = None
        self.iterations = 0
        self.preemptions = 0
        self.kv_usage = 0.0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *rest: Any, **more: Any) -> None:
        if scheduler_stats is not None:
            self.iterations += 1
            self.kv_usage = scheduler_stats.kv_cache_usage
            self._write(scheduler_stats)
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def _write(self, scheduler_stats: Any) -> None:
        """Add an iteration to the log; vLLM gives no details unless it was asked for them."""
        details = getattr(scheduler_stats, "iteration_details", None)
        if self._log is None or self.limits is None or details is None:
            return
        now_s, last_s = self._clock(), self._last_s
        unfinished = scheduler_stats.num_running_reqs + scheduler_stats.num_waiting_reqs
        self._last_s = now_s if unfinished else None
        if last_s is not None and not details.is_dummy:
            sequences = details.num_ctx_requests + details.num_generation_requests
            used_tokens = round(self.kv_usage * self.limits.usable_blocks) * self.limits.block_tokens
            self._log.write(now_s - last_s, sequences, details.num_ctx_tokens, used_tokens)
        if not unfinished:
            self._log.flush()

    def log_engine_initialized(self) -> None:
        """Nothing to log."""


class ParentWatch:
    """Methods that vLLM adds to its worker (`worker_extension_cls`)."""

    def exit_with_parent(self) -> None:
        """End this process when its parent has ended: vLLM's engine core would outlive a killed parent."""
        threading.Thread(target=_wait_for_orphanhood, args=(os.getppid(),), daemon=True).start()


def _wait_for_orphanhood(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Run:
    """One generation in the engine, under the id by which vLLM knows it."""

    request_id: str
    use: SequenceUse

    def note_output(self, output: Any, cumulative: bool) -> None:
        """Count what one RequestOutput carries: a delta, or all tokens so far."""
        if output.prompt_token_ids is not None:
            self.use.prompt_tokens = len(output.prompt_token_ids)
        self.use.cached_tokens = output.num_cached_tokens or self.use.cached_tokens
        for sequence in output.outputs:
            made = len(sequence.token_ids)
            self.note_total(sequence.index, made if cumulative else self.use.output_tokens[sequence.index] + made)

    def note_total(self, index: int, tokens: int) -> None:
        self.use.output_tokens[index] = max(self.use.output_tokens[index], tokens)


class LeasedAsyncLLM(AsyncLLM):  # type: ignore[misc] # vllm has no types here
    """An AsyncLLM that generates only under the lease in CURRENT_LEASE."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runs: dict[str, _Run] = {}
        super().__init__(*args, **options)

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> AsyncGenerator[Any, None]:
        """Open the lease's next generation at once, before any answer starts, and return its stream.

        Raises HTTPException 403 when the lease does not allow it.
        """
        options["priority"], use = _begin(_prompt_tokens(prompt), sampling_params.n)
        unique_id = f"{request_id}-{uuid4().hex}" if request_id in self._runs else request_id
        return self._run(_Run(unique_id, use), prompt, sampling_params, options)

    async def _run(
        self, run: _Run, prompt: Any, sampling_params: Any, options: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        cumulative = sampling_params.output_kind != RequestOutputKind.DELTA
        self._runs[run.request_id] = run
        try:
            async with aclosing(super().generate(prompt, sampling_params, run.request_id, **options)) as outputs:
                async for output in outputs:
                    run.note_output(output, cumulative)
                    yield output
        finally:
            del self._runs[run.request_id]

    def refresh_runs(self) -> None:
        """Bring the output tokens of every running generation up to date, streamed or not."""
        for request_id, index, tokens in self._generated_tokens():
            if request_id in self._runs:
                self._runs[request_id].note_total(index, tokens)

    def _generated_tokens(self) -> Iterator[tuple[str, int, int]]:
        """(request id, sequence index, tokens made) of all sequences, from vLLM's output processor.

        vLLM runs a request under an inner id of its own, and each of n sequences as a request; `external_req_id`
        and `request_index` name them as we do. It keeps `stats` because a stat logger is installed.
        """
        for state in self.output_processor.request_states.values():
            if state.stats is not None:
                yield state.external_req_id, state.request_index, state.stats.num_generation_tokens


def _begin(prompt_tokens: int, sequences: int) -> tuple[int, SequenceUse]:
    """The priority and the open use of a generation under the current lease; HTTPException 403 without."""
    lease = CURRENT_LEASE.get()
    if lease is None:
        raise HTTPException(403, "this engine generates only under a lease of the scheduler")
    try:
        use = lease.begin(prompt_tokens, sequences)
    except LeaseRefused as error:
        raise HTTPException(403, str(error)) from error
    return max(LOWEST_PRIORITY, min(HIGHEST_PRIORITY, int(lease.priority))), use


def _prompt_tokens(prompt: Any) -> int:
    """Tokens of a rendered prompt; 0 for a raw one, whose first output will tell."""
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(token_ids or ())


class VllmEngine:
    """Implements `cluster.engine.Engine`. `start` takes seconds and waits in a thread, not on the loop."""

    def __init__(self, settings: VllmSettings) -> None:
        self.settings = settings
        self._log = IterationLog(settings.iteration_log, monotonic_s)
        self._counter = IterationCounter(log=self._log)
        self._llm: LeasedAsyncLLM | None = None
        self._app: Any = None
        self._limits: EngineLimits | None = None
        self._open = AsyncExitStack()

    async def start(self) -> EngineLimits:
        async with AsyncExitStack() as opened:
            arguments = _arguments(self.settings)
            llm = await asyncio.to_thread(_create_llm, arguments, self._counter)
            opened.push_async_callback(asyncio.to_thread, _end, llm)
            await llm.collective_rpc("exit_with_parent")
            self._limits = self._counter.limits = _limits(llm.vllm_config)
            self._app = await opened.enter_async_context(_open_application(llm, arguments))
            self._llm = llm
            self._open = opened.pop_all()
        return self._limits

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._llm is None:
            await _not_running()(scope, receive, send)
            return
        await self._app(_noticing_disconnects(scope), receive, send)

    def refresh(self, leases: Mapping[str, ActiveLease]) -> EngineCounters:
        if self._llm is None or self._limits is None:
            return EngineCounters(self._counter.iterations, self._counter.preemptions, 0)
        self._llm.refresh_runs()
        busy = self._llm.output_processor.has_unfinished_requests()
        usage = self._counter.kv_usage if busy else 0.0
        used_tokens = round(usage * self._limits.usable_blocks) * self._limits.block_tokens
        return EngineCounters(self._counter.iterations, self._counter.preemptions, used_tokens)

    async def check_health(self) -> None:
        if self._llm is None:
            raise RuntimeError("the engine is not running")
        await self._llm.check_health()

    async def stop(self) -> None:
        self._llm = None
        await self._open.aclose()
        self._log.close()


@asynccontextmanager
async def _open_application(llm: LeasedAsyncLLM, arguments: Namespace) -> AsyncIterator[Any]:
    """vLLM's OpenAI application on an engine, between the start and the end of its lifespan."""
    tasks = await llm.get_supported_tasks()
    app = build_app(arguments, tasks, llm.model_config)
    app.state.server = SimpleNamespace(should_exit=False)  # the web server that vLLM tells when the engine dies
    app.exception_handlers[EngineDeadError] = _answer_dead
    app.exception_handlers[RoutingError] = app.exception_handlers[HTTPException]
    app.middleware_stack = None  # build_app has built it; it is built again with these handlers
    await init_app_state(llm, app.state, arguments, tasks)
    async with app.router.lifespan_context(app):
        yield app


def _arguments(settings: VllmSettings) -> Namespace:
    """What `vllm serve` would parse; what the scheduler relies on comes last, so that it prevails."""
    words = ["--model", settings.model, "--served-model-name", settings.served_model_name or settings.model]
    words += ["--block-size", str(settings.block_size), "--max-num-seqs", str(settings.max_num_seqs)]
    words += ["--dtype", settings.dtype, "--watermark", str(settings.watermark)]
    words += ["--disable-log-stats", "--no-use-tqdm-on-load"]
    words += [_switch("enable-prefix-caching", settings.enable_prefix_caching)]
    words += ["--enforce-eager"] if settings.enforce_eager else []
    words += ["--enable-logging-iteration-details"] if settings.iteration_log is not None else []
    words += _option("--num-gpu-blocks-override", settings.num_gpu_blocks)
    words += _option("--max-model-len", settings.max_model_len)
    words += _option("--tool-call-parser", settings.tool_call_parser)
    words += ["--enable-auto-tool-choice"] if settings.enable_auto_tool_choice else []
    words += settings.extra_args
    words += ["--scheduling-policy", "priority", "--worker-extension-cls", f"{__name__}.{ParentWatch.__name__}"]
    return _parse(words)


def _parse(words: list[str]) -> Namespace:
    """Raises ValueError where `vllm serve` would print its usage and exit."""
    try:
        arguments: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    except SystemExit as error:
        raise ValueError(f"vLLM does not take these arguments: {' '.join(words)}") from error
    validate_parsed_serve_args(arguments)
    return arguments


def _switch(name: str, on: bool) -> str:
    return f"--{name}" if on else f"--no-{name}"


def _option(name: str, value: object | None) -> list[str]:
    return [] if value is None else [name, str(value)]


def _create_llm(arguments: Namespace, counter: IterationCounter) -> LeasedAsyncLLM:
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    return LeasedAsyncLLM(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=False,
        log_requests=False,
        stat_loggers=[lambda config, index: counter],
    )


def _end(llm: LeasedAsyncLLM) -> None:
    """Shut vLLM down and see its processes gone: it does not wait for those it had to kill."""
    manager = llm.engine_core.resources.engine_manager
    processes = list(getattr(manager, "processes", ()))
    llm.shutdown()
    for process in processes:
        process.join(KILLED_GONE_S)


def _limits(config: Any) -> EngineLimits:
    return EngineLimits(
        usable_blocks=config.cache_config.num_gpu_blocks - 1,
        block_tokens=config.cache_config.block_size,
        max_model_len=config.model_config.max_model_len,
        max_sequences=config.scheduler_config.max_num_seqs,
    )


def _noticing_disconnects(scope: Scope) -> Scope:
    """The scope under an ASGI version whose streaming responses listen for `http.disconnect`."""
    return {**scope, "asgi": {"version": "3.0", "spec_version": "2.3"}}


async def _answer_dead(request: Request, error: Exception) -> JSONResponse:
    """A dead engine core is no client's fault and may be back: 503 where vLLM says 500."""
    return _not_running()


def _not_running() -> JSONResponse:
    fields = {"message": "the engine is not running", "type": "ServiceUnavailableError", "param": None, "code": 503}
    return JSONResponse({"error": fields}, 503, {"Retry-After": "1"})
