"""What the outside sees of a running scheduler: Ray metrics and structured log lines.

Metrics carry the prefix `justitia_`. Log lines are one event a line, with application and call ids as fields of
their own when Serve's JSON encoding is on (`logging_config` in serve_config.yaml), and as `key=value` text
always.
"""

from __future__ import annotations

import logging
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from scheduler.actions import Action, Grant, PublishAudit, PublishCompletion, PublishTag, Reject
from scheduler.core import SchedulerCore

_LAG_BOUNDARIES_S = [0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]
_COMPLETION_BOUNDARIES_S = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0]


def log_event(logger: logging.Logger, event: str, **fields: Any) -> None:
    """One structured line; `fields` also become fields of the JSON record."""
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    logger.info("%s %s", event, text, extra={"event": event, **fields, "log_to_stderr": False})


class SchedulerTelemetry:
    """Gauges of the core's state, counters of its orders, histograms of how applications fared."""

    def __init__(self) -> None:
        self._waiting = Gauge("justitia_waiting_calls", "Calls that wait for a grant")
        self._running = Gauge("justitia_running_calls", "Calls that hold a lease")
        self._applications = Gauge("justitia_applications", "Applications that have not ended")
        self._virtual_time = Gauge("justitia_virtual_time", "Virtual time, token-iterations per unit of weight")
        self._kv_held = Gauge("justitia_kv_held_tokens", "KV tokens that granted calls hold")
        self._kv_pool = Gauge("justitia_kv_pool_tokens", "KV tokens of all replicas (M)")
        self._kv_used = Gauge(
            "justitia_kv_used_tokens", "KV tokens in use by an engine's own count", tag_keys=("replica",)
        )
        self._grants = Counter("justitia_grants_total", "Grants given")
        self._tags = Counter("justitia_tag_changes_total", "Finish tags set or corrected")
        self._refusals = Counter("justitia_refusals_total", "Applications and calls refused", tag_keys=("reason",))
        self._ended = Counter(
            "justitia_applications_ended_total", "Applications that ended", tag_keys=("outcome", "tenant")
        )
        self._violations = Counter("justitia_bound_violations_total", "Applications later than the delay bound allows")
        self._preemptions = Counter("justitia_preemptions_total", "Sequences preempted by engines")
        self._lag = Histogram(
            "justitia_finish_lag_seconds", "Seconds later than under GPS, 0 if earlier", boundaries=_LAG_BOUNDARIES_S
        )
        self._lead = Histogram(
            "justitia_finish_lead_seconds", "Seconds earlier than under GPS, 0 if later", boundaries=_LAG_BOUNDARIES_S
        )
        self._completion = Histogram(
            "justitia_completion_seconds", "Arrival to finish of an application", boundaries=_COMPLETION_BOUNDARIES_S
        )

    def observe(self, core: SchedulerCore) -> None:
        """Set the gauges from the core's state."""
        self._waiting.set(core.ready_calls)
        self._running.set(len(core.leases))
        self._applications.set(len(core.applications))
        self._virtual_time.set(core.virtual_time)
        self._kv_held.set(sum(replica.held_tokens for replica in core.replicas.values()))
        self._kv_pool.set(core.pool_tokens)

    def report(self, replica_id: str, kv_used_tokens: int) -> None:
        """Set a replica's gauge from its own report."""
        self._kv_used.set(kv_used_tokens, tags={"replica": replica_id})

    def forget(self, replica_id: str) -> None:
        """A replica is gone: its gauge must not go on showing what it held last."""
        self._kv_used.set(0, tags={"replica": replica_id})

    def preempted(self, sequences: int) -> None:
        """Engines preempted so many more sequences."""
        if sequences:
            self._preemptions.inc(sequences)

    def count(self, action: Action) -> None:
        """Count one order of the core."""
        match action:
            case Grant():
                self._grants.inc()
            case PublishTag():
                self._tags.inc()
            case Reject(refusal=refusal):
                self._refusals.inc(tags={"reason": refusal.value})
            case PublishCompletion(record):
                self._ended.inc(tags={"outcome": record.outcome, "tenant": record.tenant})
                self._completion.observe(record.completion_s)
            case PublishAudit(record) if record.lag_s is not None:
                self._lag.observe(max(record.lag_s, 0.0))
                self._lead.observe(max(-record.lag_s, 0.0))
                if record.bound_violated:
                    self._violations.inc()
            case _:
                pass
