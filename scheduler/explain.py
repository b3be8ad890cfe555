"""Questions about a core, answered with plain values; nothing changes.

`explain` answers "why does this application wait?"; `brief` is the little of it that a list shows; `overview` is the
state of the whole in a few numbers.
"""

from __future__ import annotations

from typing import Any

from scheduler.applications import Application
from scheduler.core import SchedulerCore
from scheduler.lifecycle import CallState

MOST_AHEAD = 20


def overview(core: SchedulerCore) -> dict[str, Any]:
    """Counts, virtual time and memory of the whole scheduler."""
    return {
        "policy": core.policy.name,
        "epoch": core.epoch,
        "virtual_time": core.virtual_time,
        "active_weight": core.reference.active_weight,
        "applications": len(core.applications),
        "applications_in_reference": len(core.reference),
        "calls_unfinished": core.unfinished_calls,
        "calls_waiting": core.ready_calls,
        "calls_running": len(core.leases),
        "audited": core.audit.audited,
        "bound_violations": core.audit.violations,
        "pool_tokens": core.pool_tokens,
        "kv_held_tokens": sum(replica.held_tokens for replica in core.replicas.values()),
        "replicas": sorted(core.replicas),
    }


def explain(core: SchedulerCore, application_id: str) -> dict[str, Any] | None:
    """Why an application waits or runs, who is ahead of it; None when it is not in the system.

    Who is ahead is known under a policy that orders by finish tags: applications of the same tenant with smaller ones.
    `first` is the application that goes first, where it is one of the same tenant; another tenant's is never named.

    Costs are token-iterations. `reference_service_left` is what the reference must still deliver to active
    applications, in all, before it has served this one in full.
    """
    application = core.applications.get(application_id)
    if application is None:
        return None
    ahead = _ahead(core, application)
    first = _first(core, application)
    return {
        **brief(core, application),
        "why": _why(core, application, len(ahead), first),
        "start_tag": application.start_tag,
        "virtual_time": core.virtual_time,
        "expected_cost": application.expected_cost,
        "served_cost": application.served_cost,
        "reference_service_left": core.reference.service_until(application.finish_tag),
        "gps_finish_after_s": None
        if application.gps_finish_s is None
        else application.gps_finish_s - application.arrival_s,
        "calls_waiting": _count(application, CallState.READY),
        "calls_running": _count(application, CallState.RUNNING) + _count(application, CallState.GRANTED),
        "calls_blocked": _count(application, CallState.BLOCKED),
        "first": first,
        "applications_ahead": len(ahead),
        "ahead": [
            {"application_id": other.application_id, "finish_tag": other.finish_tag} for other in ahead[:MOST_AHEAD]
        ],
    }


def brief(core: SchedulerCore, application: Application) -> dict[str, Any]:
    """Of an application in the system, what costs nothing to say; costs are token-iterations, times seconds."""
    return {
        "application_id": application.spec.application_id,
        "application_type": application.spec.application_type,
        "tenant": application.spec.tenant,
        "weight": application.spec.weight,
        "state": _state(application),
        "finish_tag": application.finish_tag,
        "predicted_cost": application.predicted_cost,
        "waited_s": core.now_s - application.arrival_s,
    }


def _state(application: Application) -> str:
    running = any(call.lease_id is not None for call in application.calls.values())
    started = any(call.ended for call in application.calls.values())
    return "running" if running or started else "queued"


def _count(application: Application, state: CallState) -> int:
    return sum(call.state is state for call in application.calls.values())


def _ahead(core: SchedulerCore, application: Application) -> list[Application]:
    """Applications of its tenant with an unfinished call and a smaller tag, in order of their tags."""
    if not core.policy.orders_by_tag:
        return []
    place = (application.finish_tag, application.sequence)
    others = [
        other
        for other in core.applications.values()
        if other.unfinished_calls and other.spec.tenant == application.spec.tenant
    ]
    ahead = [other for other in others if (other.finish_tag, other.sequence) < place]
    return sorted(ahead, key=lambda other: (other.finish_tag, other.sequence))


def _first(core: SchedulerCore, application: Application) -> str | None:
    """The application of the same tenant that goes first; None where nothing waits, or another tenant's does."""
    head = core.policy.head()
    if head is None or core.applications[head.application_id].spec.tenant != application.spec.tenant:
        return None
    return head.application_id


def _why(core: SchedulerCore, application: Application, ahead: int, first: str | None) -> str:
    if not core.replicas:
        return "no engine replica is there"
    if _count(application, CallState.READY) == 0:
        return "nothing waits: its calls run, or wait for calls that they come after, or for the application itself"
    if first == application.application_id:
        return "it is first in the order; its next call waits until a replica has room for it"
    if core.policy.orders_by_tag and ahead:
        return f"{ahead} applications come before it in the order of finish tags"
    named = "another tenant's application" if first is None else f"application {first}"
    return f"policy {core.policy.name} ({core.policy.summary}) has {named} go first"
