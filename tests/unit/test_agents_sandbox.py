"""Code in the sandbox computes, and does nothing else."""

from __future__ import annotations

import asyncio
import socket
from glob import glob
from inspect import getsource
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest

from serve_app.agents import sandbox, sandboxed
from serve_app.agents.sandbox import OUTPUT_BYTES, run_python

HELD = {
    "a process": "import os\nos.fork()",
    "a process by another way": "import typing\ntyping.sys.modules['posix'].posix_spawn('/bin/true', ['true'], {})",
    "another program": "import os\nos.execv('/bin/true', ['true'])",
    "a thread": "import _thread\n_thread.start_new_thread(print, ())",
    "a signal": "import os\nos.kill(os.getppid(), 9)",
    "reading a file": "open('/etc/hostname').read()",
    "a directory": "import os\nos.listdir('/')",
    "removing a file": "import os\nos.remove('FILE')",
    "making a directory": "import os\nos.mkdir('DIRECTORY/made')",
    "a pipe to write beside": "import os\nos.pipe()",
    "more memory": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "an uid": "import os\nos.setuid(1)",
}


async def test_a_program_that_ends_is_told_from_one_that_exits() -> None:
    assert await run_python("import json, random\nprint(json.dumps({'a': 1}))") == sandbox.SandboxRun(
        True, '{"a": 1}\n'
    )
    for early in ("import sys\nsys.exit(0)", "raise SystemExit", "import os\nos._exit(0)", "exit()", "1 / 0"):
        assert not (await run_python(early)).finished, early


async def test_a_failure_shows_its_line_and_nothing_of_the_sandbox() -> None:
    run = await run_python("def half(x):\n    return x\n\nassert half(2) == 1, half(2)")
    assert "assert half(2) == 1" in run.output
    assert run.output.endswith("AssertionError: 2\n")
    assert "sandboxed" not in run.output
    assert (run.finished, run.stopped) == (False, "")


@pytest.mark.parametrize("source", ["def (", "\x00", "\ud800 = 1", "'", "(" * 1000, "", "# ü"])
async def test_any_text_may_be_a_program(source: str) -> None:
    run = await run_python(source)
    assert run.stopped == ""
    assert run.finished == (source in ("", "# ü"))


@pytest.mark.parametrize("what", HELD)
async def test_the_kernel_refuses(what: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    source = HELD[what].replace("FILE", str(victim)).replace("DIRECTORY", str(tmp_path))
    run = await run_python(source)
    assert not run.finished
    assert "Error" in run.output, run
    assert victim.read_text() == "here"
    assert [entry.name for entry in tmp_path.glob("*")] == ["victim"]  # noqa: ASYNC240


async def test_no_file_is_written(tmp_path: Path) -> None:
    target = tmp_path / "written"
    run = await run_python(f"open({str(target)!r}, 'w').write('x' * 100)")
    assert not run.finished
    assert "PermissionError" in run.output
    assert not target.exists()


async def test_no_connection_is_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        number = server.getsockname()[1]
        run = await run_python(f"import _socket\n_socket.socket().connect(('127.0.0.1', {number}))")
        with pytest.raises(TimeoutError):
            server.accept()
    assert not run.finished


async def test_a_fork_bomb_does_not_go_off() -> None:
    before = len(psutil.Process().children(recursive=True))
    run = await run_python(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", 1.0
    )
    assert not run.finished
    assert len(psutil.Process().children(recursive=True)) <= before


async def test_memory_is_bounded() -> None:
    run = await run_python("hoard = []\nwhile True:\n    hoard.append(bytearray(2**24))")
    assert run.output.endswith("MemoryError\n")


async def test_a_loop_without_end_is_stopped() -> None:
    run = await asyncio.wait_for(run_python("while True: pass"), 60)
    assert not run.finished
    assert "stopped after" in run.stopped


async def test_waiting_is_stopped_and_so_is_everything_of_it() -> None:
    run = await run_python("import time\nprint('waiting', flush=True)\ntime.sleep(1000)", 2.0)
    assert (run.finished, run.stopped) == (False, "stopped after 2 s")
    assert run.output == "waiting\n"
    assert not [child for child in psutil.Process().children() if "sandboxed.py" in " ".join(child.cmdline())]


async def test_output_is_bounded() -> None:
    run = await asyncio.wait_for(run_python("while True: print('x' * 1000)"), 60)
    assert (run.finished, run.stopped) == (False, "stopped after too much output")
    assert len(run.output) == OUTPUT_BYTES


async def test_cancelling_ends_the_process() -> None:
    running = asyncio.create_task(run_python("import time\ntime.sleep(1000)"))
    while not psutil.Process().children():  # noqa: ASYNC110 - it is another process's state
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [child for child in psutil.Process().children() if "sandboxed.py" in " ".join(child.cmdline())]


async def test_the_environment_and_the_directory_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-1")
    run = await run_python("import os\nprint(sorted(os.environ))")
    assert run.finished
    assert "SECRET" not in run.output
    assert not glob(f"{gettempdir()}/justitia-sandbox-*")


async def test_where_the_kernel_cannot_hold_it_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same program, on a machine whose calls it does not know."""
    other = tmp_path / "sandboxed.py"
    other.write_text(getsource(sandboxed).replace('"x86_64":', '"pdp10":').replace('"aarch64":', '"pdp11":'))
    monkeypatch.setattr(sandboxed, "__file__", str(other))
    run = await run_python("print('ran')")
    assert run == sandbox.SandboxRun(False, "", "this machine has no sandbox")
