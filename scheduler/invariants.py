"""The laws of the core, checked from outside: `check(core)` raises InvariantBroken naming the law.

It reads everything and changes nothing; it is O(calls) and made for tests, the simulator and, by a setting, the
live actor.
"""

from __future__ import annotations

from scheduler.core import SchedulerCore
from scheduler.lifecycle import ENDS, HOLDING, MOVES, CallState
from scheduler.settings import Admission


class InvariantBroken(AssertionError):
    """A law of the core does not hold."""


def check(core: SchedulerCore) -> None:
    """Check every law."""
    _counts_agree_with_states(core)
    _every_move_is_legal(core)
    _a_lease_has_one_holder(core)
    _ledgers_stay_within_limits(core)
    _tags_follow_costs(core)
    _the_reference_is_a_matter_of_virtual_time(core)
    _nobody_waits_beside_free_capacity(core)


def _require(law: str, holds: bool, detail: object = "") -> None:
    if not holds:
        raise InvariantBroken(f"{law}: {detail}")


def _counts_agree_with_states(core: SchedulerCore) -> None:
    calls = [call for application in core.applications.values() for call in application.calls.values()]
    unfinished = sum(not call.ended for call in calls)
    ready = sum(call.state is CallState.READY for call in calls)
    _require("unfinished calls are counted", unfinished == core.unfinished_calls, (unfinished, core.unfinished_calls))
    _require("ready calls are counted", ready == core.ready_calls, (ready, core.ready_calls))
    for application in core.applications.values():
        left = sum(not call.ended for call in application.calls.values())
        _require("an application counts its calls", left == application.unfinished_calls, application.application_id)
        _require("an ended application is gone", not application.ended, application.application_id)


def _every_move_is_legal(core: SchedulerCore) -> None:
    for application in core.applications.values():
        for call in application.calls.values():
            legal = all(after in MOVES[before] for before, after in zip(call.history, call.history[1:], strict=False))
            _require("a call moves by the table", legal, (call.key, call.history))
            _require("a call ends once", sum(state in ENDS for state in call.history) <= 1, call.key)


def _a_lease_has_one_holder(core: SchedulerCore) -> None:
    held = [lease_id for replica in core.replicas.values() for lease_id in replica.holdings]
    _require("a lease is in one ledger", sorted(held) == sorted(core.leases), (held, list(core.leases)))
    for lease_id, call in core.leases.items():
        _require("a leased call knows its lease", call.lease_id == lease_id, call.key)
        _require("a leased call is in a state that holds memory", call.state in HOLDING, (call.key, call.state))
    for application in core.applications.values():
        for call in application.calls.values():
            _require(
                "only a holding call has a lease", (call.lease_id is None) == (call.state not in HOLDING), call.key
            )


def _ledgers_stay_within_limits(core: SchedulerCore) -> None:
    for replica in core.replicas.values():
        _require("ledgers are never negative", all(h.held_tokens >= 0 for h in replica.holdings.values()))
        # Calls taken over from an earlier epoch run already, whatever this epoch has granted beside them.
        granted = [h for lease_id, h in replica.holdings.items() if lease_id.startswith(f"{core.epoch}-")]
        sequences = sum(holding.sequences for holding in granted)
        judged = replica.admission is Admission.PROJECTED_PEAK
        within = sequences <= replica.limits.max_sequences or len(granted) == 1 or not judged
        _require("sequences stay within the slots", within, (replica.replica_id, sequences))
        _require("offers are never negative", replica.offered_grants >= 0, replica.replica_id)


def _tags_follow_costs(core: SchedulerCore) -> None:
    for application in core.applications.values():
        cost = application.prediction
        tag = application.start_tag + cost / application.spec.weight
        close = abs(tag - application.finish_tag) <= 1e-6 * max(1.0, abs(tag))
        _require("a tag is start + cost/weight", close, (application.application_id, tag, application.finish_tag))


def _the_reference_is_a_matter_of_virtual_time(core: SchedulerCore) -> None:
    for application in core.applications.values():
        in_reference = application.sequence in core.reference
        _require(
            "in the reference while V < F",
            in_reference == (application.finish_tag > core.virtual_time),
            (application.application_id, application.finish_tag, core.virtual_time),
        )
        _require(
            "served or being served", in_reference == (application.gps_finish_s is None), application.application_id
        )


def _nobody_waits_beside_free_capacity(core: SchedulerCore) -> None:
    head = core.policy.head()
    _require("the queue holds the ready calls", (head is None) == (core.ready_calls == 0), head)
    if head is None:
        return
    call = core.applications[head.application_id].calls[head.call_id]
    _require("the head waits", call.state is CallState.READY, (head, call.state))
    _require("no replica that fits stands open", core.roomiest_replica(call) is None, head)
