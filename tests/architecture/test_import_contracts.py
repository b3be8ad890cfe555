"""The import direction of the packages holds, and the contracts are not empty."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_contract_is_kept() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Contracts: {len(contracts)} kept, 0 broken" in result.stdout


def test_only_one_file_reads_clocks_in_cluster() -> None:
    readers = [
        path.name
        for path in (ROOT / "cluster").glob("*.py")
        if any(call in path.read_text() for call in ("time.time(", "time.monotonic(", "time.perf_counter("))
    ]
    assert readers == ["clock.py"]


def test_no_file_asks_a_policy_for_its_name() -> None:
    """Policies are chosen from the registry, never by a chain of comparisons."""
    for package in ("scheduler", "cluster", "serve_app"):
        for path in (ROOT / package).rglob("*.py"):
            for name in ("justitia", "fcfs"):
                assert f'== "{name}"' not in path.read_text(), path
