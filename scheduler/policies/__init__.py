"""The registry of policies: a name in the settings becomes one policy, once, when it is chosen.

To add a policy, write a file beside this one and list its class here; `justitia policies`, the conformance suite and
the benchmark pick it up.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from scheduler.cost import COSTS
from scheduler.policies.app_fcfs import AppFcfs
from scheduler.policies.atlas import CriticalPathAttainedService
from scheduler.policies.cfs import Cfs
from scheduler.policies.contract import Policy
from scheduler.policies.d2lpm import D2lpm
from scheduler.policies.dlpm import Dlpm
from scheduler.policies.drf import Drf
from scheduler.policies.drr import Drr
from scheduler.policies.edf import EarliestDeadlineFirst
from scheduler.policies.eevdf import Eevdf
from scheduler.policies.equinox import Equinox
from scheduler.policies.fairserve import FairServe
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.gps import Gps
from scheduler.policies.hrrn import HighestResponseRatioNext
from scheduler.policies.justitia import Justitia
from scheduler.policies.justitia_c import JustitiaC
from scheduler.policies.las import LeastAttainedService
from scheduler.policies.lottery import Lottery
from scheduler.policies.mlfq import MultilevelFeedback
from scheduler.policies.plas import ProgramLevelAttainedService
from scheduler.policies.rm import RateMonotonic
from scheduler.policies.rr import RoundRobin
from scheduler.policies.sfq import Sfq
from scheduler.policies.sjf import ShortestJobFirst
from scheduler.policies.srtf import ShortestRemainingTimeFirst
from scheduler.policies.stride import Stride
from scheduler.policies.vtc import Vtc
from scheduler.policies.vtc_oracle import VtcOracle
from scheduler.policies.vtc_predict import VtcPredict
from scheduler.policies.wf2q import Wf2q
from scheduler.policies.wfq import Wfq

POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Fcfs,
        Justitia,
        AppFcfs,
        RoundRobin,
        ShortestJobFirst,
        ShortestRemainingTimeFirst,
        MultilevelFeedback,
        LeastAttainedService,
        ProgramLevelAttainedService,
        CriticalPathAttainedService,
        HighestResponseRatioNext,
        EarliestDeadlineFirst,
        RateMonotonic,
        D2lpm,
        Dlpm,
        Equinox,
        FairServe,
        JustitiaC,
        Vtc,
        VtcOracle,
        VtcPredict,
        Lottery,
        Stride,
        Cfs,
        Eevdf,
        Gps,
        Wfq,
        Wf2q,
        Sfq,
        Drr,
        Drf,
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
