"""Whom this process can call: each deployment's replicas, as this process's routers learnt them.

Apart from `replica_router`, because Serve sends a router's module by value: state kept there would be a copy for
each router.
"""

from __future__ import annotations

from ray.serve._private.common import DeploymentID

_LIVE: dict[DeploymentID, frozenset[str]] = {}


class ReplicaGone(Exception):
    """The named replica is not among those that can be called."""


def note_live(deployment_id: DeploymentID, replica_ids: frozenset[str]) -> None:
    """A router has learnt the replicas of its deployment."""
    _LIVE[deployment_id] = replica_ids


def live_replicas(deployment: str, application: str) -> frozenset[str]:
    """The replicas of a deployment that this process can call; empty until a handle is watched or used."""
    return _LIVE.get(DeploymentID(name=deployment, app_name=application), frozenset())
