"""The inside of the sandbox: a program of its own (`serve_app.agents.sandbox` starts it) that shuts itself in.

It imports what the code may use, gives up what it does not need, and runs the Python source on its standard input.
From then on the kernel refuses every system call but those of CALLS, which compute and write to what is open: no file
is opened, no process or thread begins, no socket is made, no signal sent. Memory and CPU time are bounded. Exit status
FINISHED says that the source ran to its end; a mere 0 does not. On a machine whose calls are not listed, nothing runs.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import linecache
import os
import platform
import resource
import struct
import sys
import traceback

FINISHED, FAILED, NO_SANDBOX = 42, 1, 43
CPU_S = 2
MEMORY_BYTES = 256 * 2**20
NAME = "program.py"
MODULES = (
    "_strptime",
    "abc",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "textwrap",
    "time",
    "typing",
)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's number of a machine, and which number of CALLS is its own."""
CALLS = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "getpid": (39, 172),
    "exit": (60, 93),
    "sigaltstack": (131, 132),
    "futex": (202, 98),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "getrandom": (318, 278),
}

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_CALL_OFFSET, _MACHINE_OFFSET = 0, 4


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def limit_resources() -> None:
    """Bounds that cannot be lifted: a program that reaches them ends."""
    bounds = {"CPU": CPU_S, "AS": MEMORY_BYTES, "FSIZE": 0, "CORE": 0, "NPROC": 0}
    for name, most in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def refuse_other_calls() -> bool:
    """Have the kernel refuse every call but CALLS (seccomp); False where it cannot be had."""
    if platform.machine() not in MACHINES:
        return False
    machine_number, column = MACHINES[platform.machine()]
    program = [
        (_LOAD, 0, 0, _MACHINE_OFFSET),
        (_IF_EQUAL, 1, 0, machine_number),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _CALL_OFFSET),
    ]
    for numbers in CALLS.values():
        program += [(_IF_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ALLOW)]
    program.append((_RETURN, 0, 0, _REFUSE))
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    kernel = ctypes.CDLL(None)
    kept = _Filter(len(program), ctypes.addressof(packed))
    if kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(kernel.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(kept), 0, 0) == 0)


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    source = sys.stdin.buffer.read().decode("utf-8", "replace")
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)  # for tracebacks
    limit_resources()
    if not refuse_other_calls():
        os._exit(NO_SANDBOX)
    try:
        exec(compile(source, NAME, "exec"), {"__name__": "__main__", "__builtins__": builtins})
        sys.stdout.flush()
    except BaseException as error:  # whatever it raises, exits of its own included, is its failure
        own = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, own)
        os._exit(FAILED)
    os._exit(FINISHED)


if __name__ == "__main__":
    main()
