"""`justitia bench policies`: what clients send, and the service that it deploys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.deploy.local import load_config
from scheduler.settings import Admission
from scheduler.sim.workload import TraceCall
from serve_app.documents import ApplicationDocument
from serve_app.policy_bench.deployment import bench_config, engine_settings, engine_sizes, live_core
from serve_app.policy_bench.traffic import (
    LengthRule,
    TrafficError,
    as_the_service_sees,
    check_fits,
    check_replayable,
    document_of,
    prompt_texts,
    stretched,
)
from serve_app.settings import ServingSettings
from tests.bench_traffic import RULE, SIZES, application, call


def test_prompts_have_the_traces_tokens_and_begin_with_what_was_asked() -> None:
    asked = "Describe {{the}} café, please: " + "word " * 20
    calls = (call("one", 30), call("two", 50), call("then", 60, after=("one", "two")))
    texts = prompt_texts(application("a", 0.0, *calls, prompt=asked), 1)
    assert {name: len(text.encode()) for name, text in texts.items()} == {"one": 30, "two": 50, "then": 60}
    assert texts["one"] + texts["two"] == "Describe {(the}} caf?, please: " + ("word " * 20)[:49]
    assert set(texts["then"]) == {"."}
    assert {name: len(text) for name, text in prompt_texts(application(), 4).items()} == {"x": 160}


def test_the_service_takes_the_documents_and_sees_what_was_asked() -> None:
    traced = application("a", 0.0, call("one", 200), call("then", 60, after=("one",)), prompt="Name three uses.")
    document = ApplicationDocument.model_validate(document_of(traced, RULE))
    assert document.application_type == "report"
    assert [asked.after for asked in document.calls] == [[], ["one"]]
    assert as_the_service_sees(traced, RULE).prompt == "Name three uses." + "." * 184


def test_the_service_is_told_what_policies_of_deadlines_go_by() -> None:
    traced = replace(application("a"), weight=2.0, deadline_s=30.0, period_s=60.0)
    document = ApplicationDocument.model_validate(document_of(traced, RULE))
    assert (document.weight, document.deadline_s, document.period_s) == (2.0, 30.0, 60.0)
    assert {"deadline_s", "period_s"}.isdisjoint(document_of(application("a"), RULE))


def test_the_service_sees_one_tenant_and_no_prefixes() -> None:
    shared = replace(call("x"), prefix=(1, 2))
    seen = as_the_service_sees(replace(application("a", 0.0, shared), tenant="acme"), RULE)
    assert (seen.tenant, seen.calls[0].prefix) == ("default", ())


def test_several_answers_are_drawn_and_one_is_greedy() -> None:
    """vLLM refuses n > 1 at a temperature of 0."""
    several = document_of(application("a", 0.0, replace(call("x"), sequences=3)), RULE)["calls"][0]
    assert (several["n"], several["temperature"]) == (3, 1.0)
    assert several["logit_bias"] == {"257": 100}
    assert RULE.sampling(call("x"))["temperature"] == 0.0


def test_only_vllms_own_fields_tell_the_length_of_an_answer() -> None:
    short, long = RULE.sampling(call("x", 100, 3)), RULE.sampling(call("x", 100, 900))
    assert short["max_tokens"] == long["max_tokens"] == 3996
    assert (short["min_tokens"], long["min_tokens"]) == (2, 899)
    assert short["logit_bias"] == long["logit_bias"] == {"257": 100}
    told = LengthRule(model="simulated", max_model_len=4096).sampling(call("x", 100, 3))
    assert told == {"max_tokens": 3, "ignore_eos": True}


def test_arrivals_begin_at_zero_and_keep_their_proportions() -> None:
    moved = stretched([application("a", 4.0), application("b", 6.0), application("c", 10.0)], 0.5)
    assert [one.arrival_s for one in moved] == [0.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("faulty", "what"),
    [
        (call("x", 0), "it has no prompt"),
        (call("x", 4000, 97), "4097 tokens are more than the 4096 of the engine"),
        (replace(call("x"), delay_s=1.0), "think"),
        (replace(call("x"), sequences=129), "129 sequences are more than the 128 of a request"),
        (replace(call("x", 2000, 49), sequences=4), "4 sequences of 2049 tokens take 260 blocks, more than the 255"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(faulty: TraceCall, what: str) -> None:
    with pytest.raises(TrafficError, match=f"application a, call x: .*{what}"):
        check_replayable([application("a", 0.0, faulty)], engine_sizes(engine_settings(simulated=False)))


def test_sequences_beyond_an_engines_batch_do_not_fit() -> None:
    check_fits([application("a", 0.0, replace(call("x"), sequences=2))], replace(SIZES, max_sequences=2), "it")
    with pytest.raises(TrafficError, match="call x: 3 sequences are more than the 2 of the tiny one"):
        check_fits(
            [application("a", 0.0, replace(call("x"), sequences=3))], replace(SIZES, max_sequences=2), "the tiny one"
        )


def test_the_configuration_has_the_engine_the_policy_and_the_live_admission() -> None:
    config: dict[str, Any] = {
        "applications": [
            {"args": {"state_dir": None}, "deployments": [{"name": "Scheduler", "user_config": {"clock_rate": 2.0}}]},
            {"args": {"engine": {}}, "import_path": "a:b", "deployments": [{"name": "EngineReplica"}]},
        ]
    }
    changed = bench_config(config, {"kind": "simulated"}, "vtc", 1234, Path("/models/m"))
    scheduler, serving = changed["applications"]
    assert scheduler["deployments"][0]["user_config"] == {"clock_rate": 2.0, "policy": "vtc"}
    assert serving["args"] == {
        "engine": {"kind": "simulated"},
        "ingress": {"predictor_dir": "/models/m", "learning": {"enabled": False}},
    }
    assert config["applications"][1]["args"] == {"engine": {}}
    core = live_core(config, "vtc")
    assert (core.clock_rate, core.admission) == (2.0, Admission.PROJECTED_PEAK)


def test_the_service_predicts_as_the_twin_does_whatever_the_file_says() -> None:
    """No training beside a run, no model that the twin has not, nothing that a later run could begin with."""
    ingress = {
        "max_body_bytes": 5,
        "learning": {"enabled": True, "min_new": 5},
        "state_dir": "/srv/state",
        "predictor_dir": "/srv/model",
        "predictor_quantile": 0.8,
    }
    serving = {"args": {"engine": {}, "ingress": ingress}, "deployments": []}
    (changed,) = bench_config({"applications": [serving]}, {}, "vtc", 1234, None)["applications"]
    assert changed["args"]["ingress"] == {"max_body_bytes": 5, "learning": {"enabled": False}}


def test_the_projects_own_configuration_can_be_measured() -> None:
    config = load_config(Path(__file__).resolve().parents[2] / "serve_config.yaml")
    changed = bench_config(config, engine_settings(simulated=False), "vtc", 1234, Path("/models/m"))
    settings = ServingSettings.model_validate(changed["applications"][1]["args"])
    assert (settings.ingress.learning.enabled, settings.ingress.predictor_dir) == (False, Path("/models/m"))


def test_the_engines_variables_are_added_to_those_that_are_configured() -> None:
    environment = {"env_vars": {"A": "1", "OMP_NUM_THREADS": "8"}, "working_dir": "/srv"}
    replica = {"name": "EngineReplica", "ray_actor_options": {"num_cpus": 1, "runtime_env": environment}}
    serving = {"args": {"engine": {}}, "deployments": [replica, {"name": "Ingress"}]}
    (changed,) = bench_config({"applications": [serving]}, {}, "vtc", 1234, None)["applications"]
    assert changed["deployments"][1] == {"name": "Ingress"}
    assert changed["deployments"][0]["ray_actor_options"] == {
        "num_cpus": 1,
        "runtime_env": {"env_vars": {"A": "1", "OMP_NUM_THREADS": "1"}, "working_dir": "/srv"},
    }


def test_the_engines_pool_is_what_the_docstring_says() -> None:
    assert engine_sizes(engine_settings(simulated=False)).pool_tokens == 8160
