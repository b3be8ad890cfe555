"""What the scheduler knows of an application, in the words of its status on the wire.

The status of an application that was submitted whole is its run's (`serve_app.runner`), with `record_fields` once it
has ended; that of one which came call by call is the scheduler's alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cluster.messages import TenantApplications
from scheduler.types import ApplicationRecord
from serve_app.documents import ApplicationStatus
from serve_app.tenants import bare_id, in_tenants_words


def record_fields(record: ApplicationRecord) -> dict[str, Any]:
    """The fields of a status that are known from an application's end on; times are seconds after its arrival."""
    return {
        "tenant": record.tenant,
        "true_cost": record.true_cost,
        "completion_s": record.completion_s,
        "gps_completion_s": _after_arrival_s(record, record.gps_finish_s),
        "lag_s": record.lag_s,
        "bound_s": _after_arrival_s(record, record.bound_s),
    }


def status_from_record(record: ApplicationRecord) -> ApplicationStatus:
    """The status of an application that has ended. When it was created is not known: its clock was the scheduler's."""
    return ApplicationStatus.model_validate(
        {
            **record_fields(record),
            "application_id": bare_id(record.application_id),
            "application_type": record.application_type,
            "weight": record.weight,
            "state": record.outcome,
            "finish_tag": record.finish_tag,
            "predicted_cost": record.predicted_cost,
            "calls_total": record.calls,
            "calls_done": record.calls if record.outcome == "finished" else None,
        }
    )


def status_from_explanation(explanation: Mapping[str, Any], now_s: float) -> ApplicationStatus:
    """The status of an application in the system, from `scheduler.explain.explain`; `now_s` is Unix time.

    How many calls it has had, and of them have ended, is not said there.
    """
    known = ("application_id", "application_type", "tenant", "weight", "state", "finish_tag", "predicted_cost")
    fields = {name: explanation[name] for name in known if name in explanation}
    bare = bare_id(explanation["application_id"])
    created_s = now_s - explanation["waited_s"]
    return ApplicationStatus.model_validate({**fields, "application_id": bare, "created_s": created_s})


def statuses_beside(known: TenantApplications, held: Collection[str], now_s: float) -> list[dict[str, Any]]:
    """Statuses, without calls, of the scheduler's applications but for those that are `held`, by their bare ids.

    One that runs under the name of one that ended hides it.
    """
    inside = [status_from_explanation(one, now_s) for one in known.inside]
    running = {one.application_id for one in inside}
    ended = [one for one in map(status_from_record, known.ended) if one.application_id not in running]
    return [one.model_dump(exclude={"calls"}) for one in (*ended, *inside) if one.application_id not in held]


def bare_explanation(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """An explanation from `scheduler.explain.explain` with the ids that its tenant knows."""
    first = explanation["first"]
    return {
        **explanation,
        "application_id": bare_id(explanation["application_id"]),
        "why": explanation["why"] if first is None else in_tenants_words(explanation["why"], first),
        "first": None if first is None else bare_id(first),
        "ahead": [{**other, "application_id": bare_id(other["application_id"])} for other in explanation["ahead"]],
    }


def _after_arrival_s(record: ApplicationRecord, at_s: float | None) -> float | None:
    return None if at_s is None else at_s - record.arrival_s
