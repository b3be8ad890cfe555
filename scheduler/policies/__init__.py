"""The registry of policies: a name in the settings becomes one policy, once, when it is chosen.

To add a policy, write a file beside this one and list its class here; `justitia policies`, the conformance suite and
the benchmark pick it up.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from scheduler.cost import COSTS
from scheduler.policies.contract import Policy
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.justitia import Justitia

POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Fcfs,
        Justitia,
    )
}

PolicyOption = int | float | str


def create_policy(name: str, options: Mapping[str, PolicyOption] | None = None) -> Policy:
    """A fresh policy with these constructor arguments; `cost` is named as in `scheduler.cost.COSTS`.

    Raises ValueError, naming what is known, when there is no such policy, option or cost function, and when a policy
    refuses an option's value.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; known: {', '.join(sorted(POLICIES))}")
    known = policy_options(POLICIES[name])
    arguments: dict[str, object] = {}
    for option, value in (options or {}).items():
        if option not in known:
            raise ValueError(f"policy {name!r} has no option {option!r}; it has: {', '.join(known) or 'none'}")
        if option != "cost" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"option {option!r} of policy {name!r} must be a number, got {value!r}")
        arguments[option] = _cost_named(value) if option == "cost" else value
    return POLICIES[name](**arguments)


def policy_options(policy: type[Policy]) -> tuple[str, ...]:
    """The names of the constructor arguments that a policy takes."""
    return tuple(inspect.signature(policy).parameters)


def _cost_named(name: object) -> object:
    if name not in COSTS:
        raise ValueError(f"no cost function {name!r}; known: {', '.join(sorted(COSTS))}")
    return COSTS[str(name)]
