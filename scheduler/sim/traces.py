"""Public traces of LLM requests as workloads: when requests came, how long they were, and of whom.

| format | a line | tenant | type |
| --- | --- | --- | --- |
| mooncake | JSON: timestamp (ms), input_length, output_length, hash_ids (512-token blocks of the prompt) | - | - |
| azure | CSV: TIMESTAMP (wall clock), ContextTokens, GeneratedTokens | - | - |
| burstgpt | CSV: Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type | Model | Log Type |
| vtc_arena | CSV: req_id, client, prompt_len, output_len, req_time_s | client | - |

Columns are found by their names; others are ignored. A row is an application of one call (`as_applications`), or lends
its arrival and tenant to a generated one (`as_arrivals`). Rows of BurstGPT without response tokens are requests that
failed, and are left out. Time counts from the first row. Every fault is a TraceError that names line and column; rows
must stand in order of time. Lines are read one at a time.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from scheduler.sim.generators import PREFIX_BLOCK_TOKENS, Mix, draw_from
from scheduler.sim.workload import TraceApplication, TraceCall, WorkloadError

MOONCAKE_BLOCK_TOKENS = 512


class TraceError(WorkloadError):
    """A line of a trace that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request. `time_s` counts from the trace's own zero."""

    line: int
    time_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    application_type: str
    prefix: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How a public trace is read; `time_column` names the time in messages."""

    summary: str
    time_column: str
    rows: Callable[[Iterable[str]], Iterator[TraceRow]]


def read_trace(lines: Iterable[str], format_name: str) -> Iterator[TraceRow]:
    """The requests of a trace, with `time_s` from the first of them."""
    if format_name not in FORMATS:
        raise TraceError(f"no format {format_name!r}; known: {', '.join(FORMATS)}")
    return _in_order(FORMATS[format_name], lines)


def _in_order(trace: TraceFormat, lines: Iterable[str]) -> Iterator[TraceRow]:
    first_s: float | None = None
    last_s = -math.inf
    for row in trace.rows(lines):
        if row.time_s < last_s:
            raise _fault(row.line, trace.time_column, "comes before the row above it; sort the trace by time")
        first_s = row.time_s if first_s is None else first_s
        last_s = row.time_s
        yield replace(row, time_s=round(row.time_s - first_s, 6))


def as_applications(rows: Iterable[TraceRow]) -> Iterator[TraceApplication]:
    """Each request as an application of one call, with an id from its line."""
    for row in rows:
        call = TraceCall(
            name="call", prompt_tokens=row.prompt_tokens, output_tokens=row.output_tokens, prefix=row.prefix
        )
        yield TraceApplication(
            application_id=f"line-{row.line}",
            application_type=row.application_type,
            tenant=row.tenant,
            arrival_s=row.time_s,
            calls=(call,),
        )


def as_arrivals(rows: Iterable[TraceRow], mix: Mix, draw: random.Random) -> Iterator[TraceApplication]:
    """A generated application for each request, when it came and of the same tenant."""
    for number, row in enumerate(rows):
        application = draw_from(mix, draw, f"trace-{number:04d}", row.time_s)
        yield replace(application, tenant=row.tenant)


def _fault(line: int, column: str, what: str) -> TraceError:
    return TraceError(f"line {line}, column {column}: {what}")


# ---- Mooncake


def _mooncake(lines: Iterable[str]) -> Iterator[TraceRow]:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        document = _json_object(line, text)
        prompt_tokens = _json_count(line, document, "input_length", 0)
        yield TraceRow(
            line=line,
            time_s=_json_number(line, document, "timestamp") / 1000,
            prompt_tokens=prompt_tokens,
            output_tokens=_json_count(line, document, "output_length", 1),
            application_type="mooncake",
            prefix=_blocks(_hash_ids(line, document), prompt_tokens),
        )


def _blocks(hash_ids: list[int], prompt_tokens: int) -> tuple[int, ...]:
    """Hashes of the prompt's whole blocks of PREFIX_BLOCK_TOKENS: equal ones where the trace's are equal."""
    parts = MOONCAKE_BLOCK_TOKENS // PREFIX_BLOCK_TOKENS
    return tuple(one * parts + part for one in hash_ids for part in range(parts))[
        : prompt_tokens // PREFIX_BLOCK_TOKENS
    ]


def _json_object(line: int, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"line {line}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise TraceError(f"line {line}: not a JSON object")
    return document


def _json_number(line: int, document: Mapping[str, Any], column: str) -> float:
    value = document.get(column)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise _fault(line, column, f"must be a finite number, got {json.dumps(value)}")
    return float(value)


def _json_count(line: int, document: Mapping[str, Any], column: str, least: int) -> int:
    value = document.get(column)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _fault(line, column, f"must be an integer of at least {least}, got {json.dumps(value)}")
    return value


def _hash_ids(line: int, document: Mapping[str, Any]) -> list[int]:
    value = document.get("hash_ids", [])
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise _fault(line, "hash_ids", "must be a list of integers")
    return value


# ---- tables


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A CSV format: its name, and the columns that say what a request was."""

    name: str
    time: str
    seconds: Callable[[str], float]
    prompt: str
    output: str
    least_output: int = 1
    tenant: str | None = None
    application_type: str | None = None

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(name for name in (self.time, self.prompt, self.output, self.tenant) if name is not None)

    def rows(self, lines: Iterable[str]) -> Iterator[TraceRow]:
        reader = csv.DictReader(lines, restval="")
        try:
            self._check_header(reader.fieldnames)
            for cells in reader:
                row = self._row(reader.line_num, cells)
                if row.output_tokens:
                    yield row
        except csv.Error as error:
            raise TraceError(f"line {reader.line_num}: not CSV: {error}") from error

    def _check_header(self, found: Iterable[str] | None) -> None:
        columns = list(found or ())
        for name in self.required:
            if name not in columns:
                raise _fault(1, name, f"is missing; found: {', '.join(columns) or 'nothing'}")

    def _row(self, line: int, cells: Mapping[str, str]) -> TraceRow:
        return TraceRow(
            line=line,
            time_s=self._time_s(line, cells[self.time]),
            prompt_tokens=_count(line, self.prompt, cells, 0),
            output_tokens=_count(line, self.output, cells, self.least_output),
            tenant=self._tenant(line, cells),
            application_type=cells.get(self.application_type or "") or self.name,
        )

    def _time_s(self, line: int, text: str) -> float:
        try:
            seconds = self.seconds(text)
        except (ValueError, OverflowError):
            seconds = math.nan
        if not abs(seconds) < math.inf:
            raise _fault(line, self.time, f"must be a time, got {text!r}")
        return seconds

    def _tenant(self, line: int, cells: Mapping[str, str]) -> str:
        if self.tenant is None:
            return "default"
        if not (tenant := cells[self.tenant].strip()):
            raise _fault(line, self.tenant, "is empty")
        return tenant


def _count(line: int, column: str, cells: Mapping[str, str], least: int) -> int:
    """A number of tokens, `472` or `472.0`."""
    try:
        value = float(cells[column])
    except ValueError:
        value = math.nan
    if not value.is_integer() or value < least:
        raise _fault(line, column, f"must be an integer of at least {least}, got {cells[column]!r}")
    return int(value)


def _wall_clock_s(text: str) -> float:
    """Seconds since 1970 of an ISO date and time; one without a zone is in UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_AZURE = _Table(name="azure", time="TIMESTAMP", seconds=_wall_clock_s, prompt="ContextTokens", output="GeneratedTokens")
_BURSTGPT = _Table(
    name="burstgpt",
    time="Timestamp",
    seconds=float,
    prompt="Request tokens",
    output="Response tokens",
    least_output=0,
    tenant="Model",
    application_type="Log Type",
)
_VTC_ARENA = _Table(
    name="vtc_arena", time="req_time_s", seconds=float, prompt="prompt_len", output="output_len", tenant="client"
)

FORMATS: Mapping[str, TraceFormat] = {
    "mooncake": TraceFormat("Mooncake (JSON Lines, with prefixes)", "timestamp", _mooncake),
    "azure": TraceFormat("Azure LLM inference (CSV)", _AZURE.time, _AZURE.rows),
    "burstgpt": TraceFormat("BurstGPT (CSV; tenants are models)", _BURSTGPT.time, _BURSTGPT.rows),
    "vtc_arena": TraceFormat("Chatbot Arena as in VTC (CSV; tenants are clients)", _VTC_ARENA.time, _VTC_ARENA.rows),
}
"""The formats by the names that the command line uses."""
