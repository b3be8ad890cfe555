"""Facts by hand, for tests that tell a policy one thing after another."""

from __future__ import annotations

from typing import Any

from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.types import CallKey


def an_application(number: int, **fields: Any) -> ApplicationFacts:
    """Application `a<number>`, the number-th to arrive, its own flow unless told."""
    name = f"a{number}"
    return ApplicationFacts(**{"application_id": name, "sequence": number, "flow": name, **fields})


def a_call(application: ApplicationFacts, ready: int, **fields: Any) -> CallFacts:
    """Call `c<ready>`, the ready-th to become ready."""
    key = CallKey(application.application_id, f"c{ready}")
    return CallFacts(**{"key": key, "application": application, "ready_sequence": ready, **fields})


def emptied(policy: Policy) -> list[str]:
    """The calls that wait, as the policy would name them if nothing else happened: application/call."""
    order = []
    while (key := policy.head()) is not None:
        order.append("/".join(key))
        policy.remove(key)
    return order


def grant(policy: Policy, call: CallFacts) -> None:
    policy.granted(call, "r")
    policy.remove(call.key)


def serve(policy: Policy, call: CallFacts, *output_tokens: int, finished: bool = True) -> None:
    """Grant a call and end it at the same moment."""
    grant(policy, call)
    policy.ended(call, output_tokens, finished)


def kept(policy: object) -> int:
    """Entries of all containers that a policy holds, its building blocks' and heaps' stale ones included."""
    if isinstance(policy, dict):
        return len(policy) + sum(kept(value) for value in policy.values())
    if isinstance(policy, list | set):
        return len(policy)
    if type(policy).__module__.startswith("scheduler."):
        names: list[str] = [*getattr(policy, "__dict__", ()), *getattr(policy, "__slots__", ())]
        return sum(kept(getattr(policy, name)) for name in names if hasattr(policy, name))
    return 0
