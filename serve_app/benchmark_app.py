"""The serving application with a direct port beside it, for `justitia bench overhead`."""

from __future__ import annotations

from typing import Any

from ray import serve

from cluster.benchmark_replica import BenchmarkReplica
from serve_app.ingress import Ingress
from serve_app.settings import ServingSettings


def build(args: dict[str, Any]) -> serve.Application:
    """As `serve_app.app.build`, with replicas whose engine can also be asked directly."""
    document = ServingSettings.model_validate(args).model_dump(mode="json")
    engine = BenchmarkReplica.bind(document["engine"])
    return Ingress.bind(document, engine)  # type: ignore[attr-defined]
