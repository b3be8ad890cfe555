"""A random crowd of applications on a core: arrivals, offers, progress, losses and ends in random order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from scheduler.actions import Grant
from scheduler.events import CallLost, CapacityOffered
from tests.scheduling import Bench, call, clean_state

TENANTS = ("default", "gold", "x")


def crowd(seed: int, applications: int = 12) -> list[tuple[str, list[tuple[int, int]], float]]:
    rng = random.Random(seed)
    return [
        (
            f"a{number}",
            [(rng.randint(1, 40), rng.randint(1, 20)) for _ in range(rng.randint(1, 4))],
            rng.choice([0.5, 1.0, 2.0]),
        )
        for number in range(applications)
    ]


def run_crowd(
    policy: str, seed: int, watch: Callable[[Bench, Grant], None] = lambda bench, grant: None, **settings: Any
) -> Bench:
    """Arrivals, offers, progress and ends in random order; `watch` sees each grant with the core after it."""
    rng = random.Random(seed)
    bench = Bench(policy, **settings)
    bench.join(max_sequences=4)
    bench.join("s", blocks=16, max_sequences=3)
    arrivals = crowd(seed)
    lengths: dict[tuple[str, str], tuple[int, int]] = {}
    running: list[Grant] = []
    seen = 0
    while arrivals or bench.core.applications:
        choice = rng.random()
        if arrivals and choice < 0.2:
            name, calls, weight = arrivals.pop(0)
            specs = [call(str(i), p, d) for i, (p, d) in enumerate(calls)]
            lengths |= {(name, str(i)): pair for i, pair in enumerate(calls)}
            bench.arrive_ready(name, *specs, weight=weight, tenant=rng.choice(TENANTS))
        elif choice < 0.6:
            bench.handle(CapacityOffered(rng.choice("rs"), rng.randint(1, 3)), after_s=rng.random())
        elif running:
            bench.serve(rng.randint(0, 400), rng.choice("rs"))
            ended = running.pop(rng.randrange(len(running)))
            p, d = lengths[(ended.application_id, ended.call_id)]
            if rng.random() < 0.1:
                bench.handle(CallLost(ended.lease_id, "gone"))
            else:
                bench.finish(ended, p, (d,))
        for grant in bench.all(Grant)[seen:]:
            running.append(grant)
            watch(bench, grant)
            seen += 1
    clean_state(bench.core)
    return bench
