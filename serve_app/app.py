"""The serving application that serve_config.yaml names: ingresses in front of engine replicas."""

from __future__ import annotations

from typing import Any

from ray import serve

from cluster.replica import EngineReplica
from serve_app.ingress import Ingress
from serve_app.settings import ServingSettings


def build(args: dict[str, Any]) -> serve.Application:
    """Build from `args` (`ServingSettings`); raises pydantic's ValidationError naming a wrong setting."""
    settings = ServingSettings.model_validate(args)
    document = settings.model_dump(mode="json")
    engine = EngineReplica.bind(document["engine"])
    return Ingress.bind(document, engine)  # type: ignore[attr-defined]
