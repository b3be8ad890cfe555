"""The service as the benchmark deploys it: one small engine, one policy, all of it fresh.

The tiny random model, 255 usable blocks of 32 tokens (M = 8,160; the reference engine has 7,344), prefill in chunks of
2,048 tokens and no prefix cache, as on the reference engine: KV memory is what applications wait for.

Law: predictions are those that the twin has. An ingress has the model that the benchmark was given, or running means;
it trains none while it is measured, and keeps nothing that a later run could begin with, whatever the file says.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.engines import SimulatedSettings, VllmSettings
from cluster.models import prepare_model
from cluster.settings import load_changed_settings
from scheduler.settings import CoreSettings
from scheduler.sim.engine import EngineProfile
from serve_app.policy_bench.traffic import LengthRule

Config = dict[str, Any]

ENGINE_DEPLOYMENT = "EngineReplica"
ENGINE_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""The model is too small for a second thread to help, and its threads would wait for cores that clients use."""

NOT_MEASURED = frozenset({"learning", "state_dir", "predictor_dir", "predictor_quantile"})
"""Settings of an ingress by which its predictions would not be the twin's."""

PREFILL_TOKENS = 2048
VLLM_ENGINE: Mapping[str, Any] = {
    "kind": "vllm",
    "model": "tiny-random-llama",
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "num_gpu_blocks": 256,
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "enable_prefix_caching": False,
    "extra_args": ["--max-num-batched-tokens", str(PREFILL_TOKENS)],
}
SIMULATED_ENGINE: Mapping[str, Any] = {"kind": "simulated", "time_scale": 0.1}
SIMULATED_CHARS_PER_TOKEN = 4


def engine_settings(simulated: bool) -> dict[str, Any]:
    """The engine's settings, without an iteration log."""
    return copy.deepcopy(dict(SIMULATED_ENGINE if simulated else VLLM_ENGINE))


def length_rule(engine: Mapping[str, Any]) -> LengthRule:
    """How such an engine is made to read and write so many tokens."""
    if engine["kind"] == "simulated":
        settings = SimulatedSettings.model_validate(engine)
        return LengthRule(
            model=settings.served_model_name,
            max_model_len=settings.max_model_len,
            chars_per_token=SIMULATED_CHARS_PER_TOKEN,
        )
    tiny = VllmSettings.model_validate(engine)
    assert tiny.max_model_len is not None
    return LengthRule(model=tiny.model, max_model_len=tiny.max_model_len, end_token_id=_end_token_id(tiny.model))


def _end_token_id(model: str) -> int:
    """The model's end of sequence, from its checkpoint's config. Raises ModelUnavailable, OSError, KeyError."""
    config = json.loads((Path(prepare_model(model)) / "config.json").read_text("utf-8"))
    return int(config["eos_token_id"])


def engine_sizes(engine: Mapping[str, Any]) -> EngineProfile:
    """The simulator's engine of the same size; its speed is to be measured."""
    if engine["kind"] == "simulated":
        return SimulatedSettings.model_validate(engine).profile
    settings = VllmSettings.model_validate(engine)
    assert settings.num_gpu_blocks is not None
    assert settings.max_model_len is not None
    return EngineProfile(
        block_tokens=settings.block_size,
        usable_blocks=settings.num_gpu_blocks - 1,
        max_sequences=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        prefill_tokens_per_iteration=PREFILL_TOKENS,
        chunked_prefill=True,
    )


def bench_config(
    config: Config, engine: Mapping[str, Any], policy: str, port: int, predictor_dir: Path | None
) -> Config:
    """A Serve configuration with this engine, policy, port and predictor; what else it says stays."""
    changed = copy.deepcopy(config)
    changed.setdefault("http_options", {})["port"] = port
    for application in changed["applications"]:
        args = application.get("args") or {}
        if "engine" in args:
            args["engine"] = dict(engine)
            args["ingress"] = ingress_section(args.get("ingress"), predictor_dir)
            _set_environment(application)
        else:
            _user_config(application)["policy"] = policy
    return changed


def ingress_section(configured: Config | None, predictor_dir: Path | None) -> Config:
    """An ingress's settings with this model, or none, and without learning; its limits stay as configured."""
    kept = {name: value for name, value in (configured or {}).items() if name not in NOT_MEASURED}
    given = {} if predictor_dir is None else {"predictor_dir": str(predictor_dir.absolute())}
    return {**kept, **given, "learning": {"enabled": False}}


def _set_environment(application: Config) -> None:
    """The engine's variables, beside those that its replicas are configured with."""
    for deployment in application["deployments"]:
        if deployment["name"] == ENGINE_DEPLOYMENT:
            options = deployment.setdefault("ray_actor_options", {})
            environment = options.setdefault("runtime_env", {}).setdefault("env_vars", {})
            environment.update(ENGINE_ENVIRONMENT)


def live_core(config: Config, policy: str) -> CoreSettings:
    """The settings of the scheduler that a configuration deploys, with this policy. Raises ValueError."""
    for application in config["applications"]:
        args = application.get("args") or {}
        if "engine" not in args:
            return load_changed_settings(args, {**_user_config(application), "policy": policy}).core()
    raise ValueError("the configuration has no scheduler")


def _user_config(application: Config) -> dict[str, Any]:
    for deployment in application["deployments"]:
        if "user_config" in deployment:
            found: dict[str, Any] = deployment["user_config"]
            return found
    raise ValueError("the configuration's scheduler has no user_config")
