"""The registry of policies: a name in the settings becomes one policy, once, when the scheduler starts.

To add a policy, write a file beside this one and list its class here; the conformance suite picks it up.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.policies.contract import Policy
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.justitia import Justitia

POLICIES: Mapping[str, type[Policy]] = {policy.name: policy for policy in (Justitia, Fcfs)}


def create_policy(name: str) -> Policy:
    """A fresh policy; ValueError names the known ones when `name` is not among them."""
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; known: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
