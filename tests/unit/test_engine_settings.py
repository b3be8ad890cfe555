"""Settings of engines are checked where they are built."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cluster.engines import ENGINES, EngineSettings, SimulatedSettings, VllmSettings, create_engine
from cluster.simulated_engine import SimulatedEngine

ANY: TypeAdapter[VllmSettings | SimulatedSettings] = TypeAdapter(EngineSettings)


def test_the_kind_chooses() -> None:
    assert isinstance(ANY.validate_python({"kind": "simulated"}), SimulatedSettings)
    assert isinstance(ANY.validate_python({"kind": "vllm", "model": "m"}), VllmSettings)
    assert set(ENGINES) == {"simulated", "vllm"}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"kind": "other"},
        {"kind": "vllm"},
        {"kind": "vllm", "model": ""},
        {"kind": "vllm", "model": "m", "num_gpu_blocks": 1},
        {"kind": "vllm", "model": "m", "watermark": 1.0},
        {"kind": "vllm", "model": "m", "unknown": 1},
        {"kind": "vllm", "model": "m", "enable_auto_tool_choice": True},
        {"kind": "simulated", "usable_blocks": 0},
        {"kind": "simulated", "time_scale": -1},
        {"kind": "simulated", "base_s": float("nan")},
        {"kind": "simulated", "usable_blocks": 10, "block_tokens": 16, "max_model_len": 161},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ANY.validate_python(wrong)


def test_settings_are_frozen_and_round_trip() -> None:
    settings = SimulatedSettings(time_scale=0, usable_blocks=300)
    with pytest.raises(ValidationError):
        settings.time_scale = 1.0
    assert ANY.validate_json(settings.model_dump_json()) == settings
    assert settings.profile.usable_blocks == 300


def test_create_engine() -> None:
    assert isinstance(create_engine(SimulatedSettings()), SimulatedEngine)


def test_a_local_model_keeps_vllm_off_the_network(tmp_path: Any) -> None:
    assert VllmSettings(model=str(tmp_path)).environment["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in VllmSettings(model="owner/model").environment
