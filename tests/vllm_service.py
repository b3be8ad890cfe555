"""The service on real vLLM that the tests of `tests/e2e` share (`tests/e2e/conftest.py` has the fixture).

The tiny random model: its tokens are bytes, its answers are random text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from cluster.deploy.local import deploy, free_port, load_config, local_ray
from tests.ray_service import Recording

ROOT = Path(__file__).resolve().parents[1]
MODEL = "tiny-random-llama"
ENGINE = {
    "kind": "vllm",
    "model": MODEL,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "num_gpu_blocks": 65,
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}


class Service:
    """A running service: where it listens and where its scheduler writes."""

    def __init__(self, url: str, state_dir: Path) -> None:
        self.url = url
        self.state_dir = state_dir

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=180, max_retries=0)

    def overview(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/v1/scheduler", timeout=10).json()
        return answer

    def recording(self) -> Recording:
        """What the scheduler was told so far, replayed."""
        (log,) = self.state_dir.glob("events-*.jsonl")
        text = log.read_text(encoding="utf-8")
        return Recording.of(text[: text.rfind("\n") + 1].splitlines())

    def wait_until_idle(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while True:
            state = self.overview()
            left = {name: state[name] for name in ("calls_unfinished", "calls_running", "kv_held_tokens")}
            if not any(left.values()):
                return
            assert time.monotonic() < deadline_s, f"not idle after {seconds} s: {left}"
            time.sleep(0.05)


@contextmanager
def running_service(state_dir: Path) -> Iterator[Service]:
    """Ray and the service, up and answering; both gone afterwards."""
    config = load_config(ROOT / "serve_config.yaml")
    config["http_options"]["port"] = free_port()
    scheduler, serving = config["applications"]
    scheduler["args"] = {"state_dir": str(state_dir), "event_log": True, "check_invariants": True}
    serving["args"]["engine"] = ENGINE
    with local_ray(num_cpus=2, environment={"OMP_NUM_THREADS": "1"}):
        yield Service(deploy(config), state_dir)
