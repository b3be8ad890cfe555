"""What the life of one call costs a policy, beside a heapq push and pop of the same size.

A life is all that a policy hears of an application with one call, and all that it is asked:

- ready: `advance`, `application_arrived`, `add`;
- grant: `head`, `granted`, `remove`;
- finish: `served`, `ended`, `application_changed`, `application_left`.

The next application arrives as one ends, so the number that waits stays the same. Facts are made beforehand: they are
the core's work (`serve_app.cli.core_speed`). Costs, prompts and lengths come from a seed. A repeat is as many lives as
there are waiting applications, at least MIN_LIVES, so that what a policy does once in a while is in it; a repeat that
takes longer than the time given ends there. Time is CPU time of the thread, so that the turns of other programs do
not count.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from math import inf
from random import Random

from scheduler.cost import CostModel, memory_cost
from scheduler.policies import POLICIES, create_policy
from scheduler.policies.contract import ApplicationFacts, CallFacts, Policy
from scheduler.settings import CoreSettings
from scheduler.tenants import choose_policy
from scheduler.types import CallKey

SIZES = (10, 100, 1_000, 10_000)
TENANT_ROW = "justitia + tenants"
APPLICATIONS_A_TENANT = 10
MAX_RATIO_TO_HEAP = 40.0
MAX_GROWTH = 3.0
MIN_LIVES = 1_000
LIVES_A_BATCH = 50
MAX_REPEATS = 40
FILLING_LIMIT_S = 5.0
SEED = 20
RATE = 1_000.0
"""Lives a second on the policies' clock."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What applications have in common with others; shared, to keep the memory small."""

    application_type: str
    prompt_tokens: int
    output_tokens: tuple[int, ...]
    cost: float
    period_s: float
    prefix: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """One application with one call, as it is told at each of its steps."""

    arrived: ApplicationFacts
    call: CallFacts
    ended: ApplicationFacts
    shape: _Shape


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's microseconds a life, by number of waiting applications; None where it could not be measured."""

    name: str
    life_us: dict[int, float | None]


@dataclass(frozen=True, slots=True)
class Promise:
    """One of the promises on the speed of `justitia`, and what was measured."""

    says: str
    measured: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit


def rows_to_measure(names: Sequence[str] = ()) -> dict[str, Callable[[], Policy]]:
    """Every registered policy by name, and `justitia` under the tenant level; or only those of these names."""
    rows: dict[str, Callable[[], Policy]] = {name: _creator(name) for name in sorted(POLICIES)}
    rows[TENANT_ROW] = lambda: choose_policy("justitia", CoreSettings())
    return {name: create for name, create in rows.items() if not names or name in names}


def _creator(name: str) -> Callable[[], Policy]:
    return lambda: create_policy(name)


def heap_pair_us(sizes: Sequence[int] = SIZES, repeats: int = 20) -> dict[int, float]:
    """Microseconds of a push and a pop on a heapq of so many entries (rank, sequence, key), best of the repeats."""
    best = dict.fromkeys(sizes, inf)
    for _ in range(repeats):
        for size in sizes:
            best[size] = min(best[size], _heap_pair_us(size))
    return best


def _heap_pair_us(size: int) -> float:
    random = Random(SEED)
    pairs = max(size, MIN_LIVES)
    entries = [(random.random() + n / size, n, CallKey(f"a{n}", "c")) for n in range(size + pairs)]
    heap = entries[:size]
    heapq.heapify(heap)
    with _undisturbed():
        begin_s = time.thread_time()
        for entry in islice(entries, size, None):
            heapq.heappush(heap, entry)
            heapq.heappop(heap)
        return 1e6 * (time.thread_time() - begin_s) / pairs


def measure(name: str, create: Callable[[], Policy], seconds: float, sizes: Sequence[int] = SIZES) -> Row:
    """A policy's row: the best repeat at each size. Sizes alternate, so that noise meets all of them alike.

    Takes about `seconds`, but never less than one repeat at each size.
    """
    end_s = time.perf_counter() + seconds
    queues = {size: queue for size in sizes if (queue := _filled(create(), size)) is not None}
    best = dict.fromkeys(queues, inf)
    repeats = 0
    while repeats < 1 or (repeats < MAX_REPEATS and time.perf_counter() < end_s):
        for size, queue in queues.items():
            best[size] = min(best[size], 1e6 * queue.repeat(seconds / len(sizes)))
        repeats += 1
    return Row(name, {size: best.get(size) for size in sizes})


def promises(row: Row, heap_us: dict[int, float]) -> list[Promise]:
    """What is promised of `justitia`: a multiple of the heap pair at every size, and slow growth with the size."""
    times = {size: time_us for size, time_us in row.life_us.items() if time_us is not None}
    least, most = min(times), max(times)
    worst = max(times[size] / heap_us[size] for size in times)
    return [
        Promise("a life of a call, in push + pop pairs, at the worst size", worst, MAX_RATIO_TO_HEAP),
        Promise(f"a life beside {most:,} waiting, in lives beside {least:,}", times[most] / times[least], MAX_GROWTH),
    ]


class _Queue:
    """A policy, and the applications that wait under it: always as many."""

    def __init__(self, policy: Policy, size: int) -> None:
        self._policy = policy
        self._lives = _lives(policy.cost or memory_cost, size)
        self._waiting: dict[CallKey, Life] = {}
        self._lives_a_repeat = max(size, MIN_LIVES)

    def fill(self, size: int, limit_s: float) -> bool:
        """Let so many applications arrive; False when that takes longer than the limit."""
        begin_s = time.thread_time()
        for life in islice(self._lives, size):
            self._become_ready(life)
            if time.thread_time() - begin_s > limit_s:
                return False
        return True

    def repeat(self, limit_s: float) -> float:
        """Seconds a life: over the lives of one repeat, or as many as the time allows."""
        done, spent_s = 0, 0.0
        with _undisturbed():
            while done < self._lives_a_repeat and spent_s < limit_s:
                batch = list(islice(self._lives, LIVES_A_BATCH))
                begin_s = time.thread_time()
                for life in batch:
                    self._serve_head()
                    self._become_ready(life)
                spent_s += time.thread_time() - begin_s
                done += len(batch)
        return spent_s / done

    def _become_ready(self, life: Life) -> None:
        self._policy.advance(life.call.ready_s)
        self._policy.application_arrived(life.arrived)
        self._waiting[life.call.key] = life
        self._policy.add(life.call)

    def _serve_head(self) -> None:
        policy = self._policy
        key = policy.head()
        assert key is not None
        life = self._waiting.pop(key)
        policy.granted(life.call, "r")
        policy.remove(key)
        policy.served(life.shape.cost)
        policy.ended(life.call, life.shape.output_tokens, True)
        policy.application_changed(life.ended)
        policy.application_left(life.ended)


def _filled(policy: Policy, size: int) -> _Queue | None:
    policy.pool_changed(65_536, 256)
    queue = _Queue(policy, size)
    return queue if queue.fill(size, FILLING_LIMIT_S) else None


def _lives(cost: CostModel, size: int) -> Iterator[Life]:
    """Applications one after another; tags are what a reference with `size` applications gives in the mean."""
    random = Random(SEED)
    shapes = [_shape(random, cost) for _ in range(997)]
    mean = sum(shape.cost for shape in shapes) / len(shapes)
    tenants = [f"t{number}" for number in range(-(-size // APPLICATIONS_A_TENANT))]
    for number, shape, tenant in zip(count(), cycle(shapes), cycle(tenants), strict=False):
        name, place = f"a{number}", max(number - size, 0)
        arrival_s, virtual_time = place / RATE, place * mean / size
        arrived = ApplicationFacts(
            application_id=name,
            sequence=number + 1,
            flow=name,
            tenant=tenant,
            application_type=shape.application_type,
            arrival_s=arrival_s,
            start_tag=virtual_time,
            finish_tag=virtual_time + shape.cost,
            predicted_cost=shape.cost,
            remaining_cost=shape.cost,
            deadline_s=arrival_s + size / RATE * shape.period_s,
            period_s=shape.period_s,
        )
        call = CallFacts(
            key=CallKey(name, "c"),
            application=arrived,
            ready_sequence=arrived.sequence,
            ready_s=arrival_s,
            prompt_tokens=shape.prompt_tokens,
            predicted_output_tokens=shape.output_tokens[0],
            true_output_tokens=shape.output_tokens[0],
            prefix=shape.prefix,
        )
        yield Life(arrived, call, replace(arrived, remaining_cost=0.0), shape)


def _shape(random: Random, cost: CostModel) -> _Shape:
    """A kind of application; outputs have a heavy tail, as those of applications have."""
    prompt_tokens, output_tokens = random.randint(50, 1_000), min(int(random.lognormvariate(4.5, 0.8)) + 1, 2_000)
    return _Shape(
        application_type=f"type {random.randrange(9)}",
        prompt_tokens=prompt_tokens,
        output_tokens=(output_tokens,),
        cost=cost(prompt_tokens, (output_tokens,)),
        period_s=random.uniform(0.5, 1.5),
        prefix=(random.randrange(9), random.randrange(9, 99), random.randrange(99, 999)),
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the garbage collector."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
