"""The serving application that serve_config.yaml names: ingresses in front of engine replicas."""

from __future__ import annotations

from typing import Any

from ray import serve

from cluster.replica import EngineReplica
from serve_app.ingress import Ingress
from serve_app.settings import ServingSettings
from serve_app.tenants import ApiKeys


def build(args: dict[str, Any]) -> serve.Application:
    """Build from `args` (`ServingSettings`).

    Raises ValueError naming a wrong setting (pydantic's ValidationError is one), or what is wrong with the API keys.
    """
    settings = ServingSettings.model_validate(args)
    ApiKeys(settings.ingress.api_keys, settings.ingress.api_keys_file)  # said here, not by an ingress that cannot start
    document = settings.model_dump(mode="json")
    engine = EngineReplica.bind(document["engine"])
    return Ingress.bind(document, engine)  # type: ignore[attr-defined]
