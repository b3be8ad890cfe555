"""Multilevel feedback: applications sink from level to level as they are served, and are all lifted now and then.

Levels 0..K − 1, a smaller level first, with quanta q_l = quantum·factor^l and no end to the last. The rules (Corbató et
al., "An experimental time-sharing system", AFIPS 1962; as numbered in Arpaci-Dusseau, Operating Systems: Three Easy
Pieces, chapter 8; skip-join from FastServe, Wu et al., "Fast distributed inference serving for large language models",
2023, section 4.1):

1. The smaller level goes first; inside a level the application that arrived first; inside it the call ready first.
2. Skip-join: an application enters at the smallest level whose quantum holds the first iteration of its first call,
   cost(p, one token a sequence). A long prompt does not pass through levels that its prefill alone would use up.
3. Demotion: service over the application's weight (cost function `cost`, p + 2·d unless told) is charged as tokens are
   heard of and at a call's end; so a weight of 2 makes quanta twice as long. (The sources have no weights.)
   Once the service charged at a level reaches q_l, the application sinks one level and the excess is charged there. The
   account survives yielding: it depends on the total, not on how that was cut into calls or pauses, and what was spent
   on a call that was lost or cancelled stays charged.
4. Boost: at each multiple of `boost_s` seconds every application goes to level 0 with an empty account.

An application that idles keeps its level and account until it leaves or a boost comes. The sources run a job for its
quantum and then preempt; here a call runs to its end, which is why the excess is carried. Chosen, where they leave it
open: quantum 1,024, factor 2, 8 levels (the last after 130,048 units), boost each 60 s; first come first served, not
round robin, in the last level. FastServe boosts each job after its own wait; we follow the fixed period, whose rule is
simpler to bound. Skip-join looks at the prompt alone, not at the weight.

Defining property: the level is a function of the entry and of the service over weight since the boost. A boost bounds
waiting: an application that waits at a boost with nothing running, behind k that arrived before it, on one server that
delivers r units a second and with calls of at most c units, starts a call within (sum over the k of (w_i·q_0 + c) +
c)/r seconds of that boost, if that is no more than `boost_s`: later arrivals stay behind it in level 0, earlier one i,
of weight w_i, sinks after at most w_i·q_0 + c.

O(log n), but a boost visits every application, O(n log n) each `boost_s`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import inf

from scheduler.cost import CostModel, linear_cost
from scheduler.policies.application_queues import ApplicationQueues
from scheduler.policies.contract import ApplicationFacts, CallFacts, Need, Policy
from scheduler.policies.levels import geometric_steps, level_priority, require_positive
from scheduler.policies.service_meter import ServiceMeter
from scheduler.types import CallKey


@dataclass(slots=True)
class _Job:
    """An application's level, and the service charged to it there."""

    level: int
    used: float = 0.0


class MultilevelFeedback(Policy):
    """Smallest level first, then order of arrival."""

    name = "mlfq"
    summary = "applications sink through levels as they are served, by weight, with a boost now and then"
    paper = "FastServe (Wu et al., 2023); Corbató et al. (AFIPS 1962)"
    needs = (Need.WEIGHTS, Need.PREEMPTION)
    follows_service = True
    service_demotes = True
    ages = True

    def __init__(
        self,
        *,
        cost: CostModel = linear_cost,
        quantum: float = 1024.0,
        factor: float = 2.0,
        levels: int = 8,
        boost_s: float = 60.0,
    ) -> None:
        self._cost = cost
        self._quanta = (*geometric_steps("quantum", quantum, factor, levels), inf)
        self._boost_s = require_positive("boost_s", boost_s)
        self._next_boost_s = boost_s
        self._meter = ServiceMeter(cost)
        self._queues = ApplicationQueues()
        self._jobs: dict[str, _Job] = {}

    def advance(self, now_s: float) -> None:
        if now_s < self._next_boost_s:
            return
        self._next_boost_s = (now_s // self._boost_s + 1) * self._boost_s
        for application_id, job in self._jobs.items():
            job.level, job.used = 0, 0.0
            self._queues.move(application_id, job.level)

    def add(self, call: CallFacts) -> None:
        self._queues.add(call, self._job(call).level)

    def remove(self, key: CallKey) -> None:
        self._queues.remove(key)

    def progressed(self, call: CallFacts, output_tokens: tuple[int, ...]) -> None:
        self._charge(call, self._meter.more(call, output_tokens))

    def ended(self, call: CallFacts, output_tokens: tuple[int, ...], finished: bool) -> None:
        self._charge(call, self._meter.last(call, output_tokens))

    def application_left(self, application: ApplicationFacts) -> None:
        self._jobs.pop(application.application_id, None)

    def head(self) -> CallKey | None:
        return self._queues.head()

    def rank(self, call: CallFacts) -> float | None:
        job = self._jobs.get(call.key.application_id)
        return level_priority(self._entry_level(call) if job is None else job.level, call.application.sequence)

    def _job(self, call: CallFacts) -> _Job:
        """The application's job, which enters with the first call that is heard of."""
        job = self._jobs.get(call.key.application_id)
        if job is None:
            job = self._jobs[call.key.application_id] = _Job(self._entry_level(call))
        return job

    def _entry_level(self, call: CallFacts) -> int:
        return bisect_left(self._quanta, self._cost(call.prompt_tokens, (1,) * call.sequences))

    def _charge(self, call: CallFacts, service: float) -> None:
        job = self._job(call)
        job.used += service / call.application.weight
        while job.used >= self._quanta[job.level]:
            job.used -= self._quanta[job.level]
            job.level += 1
        self._queues.move(call.key.application_id, job.level)
