"""Running Python that a model wrote: in a process of its own, bounded, with nothing in its hands.

What it protects from: loops without end, memory and output without bound, and every touch of the machine. The code can
open no file, start no process or thread, make no connection and send no signal; its environment is empty, and it may
import only what `sandboxed.MODULES` names. What it does not protect from: mistakes in the kernel or in the interpreter,
and the load on a core, for it may compute for `sandboxed.CPU_S` seconds. It is made for code that is wrong, not for
code of an enemy who has the time to look for such mistakes; for that, use a virtual machine. Linux on x86-64 and ARM64
only: elsewhere nothing is run, and the outcome says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serve_app.agents import sandboxed

WALL_S = 20.0
OUTPUT_BYTES = 4000
READ_BYTES = 2**16

_REASONS = {
    sandboxed.FINISHED: "",
    sandboxed.FAILED: "",
    sandboxed.NO_SANDBOX: "this machine has no sandbox",
    -signal.SIGXCPU: f"stopped after {sandboxed.CPU_S} s of CPU time",
    -signal.SIGKILL: f"stopped after {sandboxed.CPU_S} s of CPU time",
}


@dataclass(frozen=True)
class SandboxRun:
    """How a program ended. `output` is the beginning of both its streams, at most OUTPUT_BYTES bytes of them.

    `stopped` says why it did not end by itself; empty where it did.
    """

    finished: bool
    output: str
    stopped: str = ""


async def run_python(source: str, wall_s: float = WALL_S) -> SandboxRun:
    """Run `source` to its end, or until a bound stops it; at most `wall_s` seconds. Nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="justitia-sandbox-") as directory:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-B", "-X", "utf8", str(Path(sandboxed.__file__))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=directory,
            env={},
            start_new_session=True,
        )
        output = bytearray()
        try:
            async with asyncio.timeout(wall_s):
                await _converse(process, source.encode("utf-8", "replace"), output)
                if len(output) > OUTPUT_BYTES:
                    return SandboxRun(False, _text(output), "stopped after too much output")
                status = await process.wait()
        except TimeoutError:
            return SandboxRun(False, _text(output), f"stopped after {wall_s:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
    return SandboxRun(status == sandboxed.FINISHED, _text(output), _REASONS.get(status, f"ended with status {status}"))


async def _converse(process: asyncio.subprocess.Process, source: bytes, output: bytearray) -> None:
    """Send the source, and add what it writes to `output`, to its end or beyond OUTPUT_BYTES."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write(source)
        await process.stdin.drain()
    process.stdin.close()
    while len(output) <= OUTPUT_BYTES and (piece := await process.stdout.read(READ_BYTES)):
        output += piece


def _text(output: bytearray) -> str:
    return output[:OUTPUT_BYTES].decode("utf-8", "replace")
