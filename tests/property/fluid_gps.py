"""Fair sharing from its definition, to compare the reference with.

There is no virtual time here and no tag: at every instant each application that has work left receives service at
rate·w/W, where W is the sum of the weights of those with work left. Between two moments at which somebody arrives,
ends, or the rate changes, everything is linear. Exact, in fractions; O(events · applications).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Number = int | float | Fraction


@dataclass(frozen=True)
class Job:
    """`cost` units of work that arrive at once."""

    arrival: Number
    cost: Number
    weight: Number = 1


@dataclass(frozen=True)
class Stretch:
    """From the end of the stretch before it until `until`, service is delivered at `rate`."""

    until: Number
    rate: Number


def fluid_finishes(jobs: Sequence[Job], stretches: Sequence[Stretch]) -> list[Fraction | None]:
    """When each job has received all its work; None for one that has not when the last stretch ends."""
    left = [Fraction(job.cost) for job in jobs]
    finishes: list[Fraction | None] = [None] * len(jobs)
    now = Fraction(0)
    for stretch in stretches:
        rate = Fraction(stretch.rate)
        while now < stretch.until:
            active = [i for i, job in enumerate(jobs) if job.arrival <= now and finishes[i] is None]
            weight = sum(Fraction(jobs[i].weight) for i in active)
            share = {i: rate * Fraction(jobs[i].weight) / weight for i in active}
            moments = [Fraction(stretch.until)]
            moments += [Fraction(job.arrival) for job in jobs if now < job.arrival < stretch.until]
            moments += [now + left[i] / share[i] for i in active if share[i] > 0]
            then = min(moments)
            for i in active:
                left[i] -= share[i] * (then - now)
                if left[i] == 0:
                    finishes[i] = then
            now = then
    return finishes
