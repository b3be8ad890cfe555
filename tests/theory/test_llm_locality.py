"""DLPM and D²LPM: their definitions, the bound on the gap of backlogged flows, and what locality they keep."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest

from scheduler.policies.contract import Policy
from scheduler.policies.d2lpm import D2lpm
from scheduler.policies.dlpm import Dlpm
from scheduler.policies.fcfs import Fcfs
from scheduler.policies.vtc import Vtc
from scheduler.types import CallKey
from tests.queueing import Request, Start, Station
from tests.theory.llm_loads import backlog, longest_prompt, random_load, tokens_at_once, widest_gap
from tests.theory.llm_naive import ListCache, NaiveLocality

BLOCK = 4


def dlpm(quantum: float = 60.0, cache_blocks: int = 7) -> Dlpm:
    return Dlpm(quantum=quantum, block_tokens=BLOCK, cache_blocks=cache_blocks)


def d2lpm(quantum: float = 60.0, cache_blocks: int = 7, replica_quantum: float = 1e9) -> D2lpm:
    return D2lpm(quantum=quantum, block_tokens=BLOCK, cache_blocks=cache_blocks, replica_quantum=replica_quantum)


@pytest.mark.parametrize("by_replica", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_order_is_that_of_the_definition(by_replica: bool, seed: int) -> None:
    """Refills that are carried out, caches that are lists; bursts and pauses, weights, flows that leave and return."""
    load, servers, quantum = random_load(seed), 1 + seed % 3, (15.0, 60.0, 400.0)[seed % 3]
    policy = d2lpm(quantum) if by_replica else dlpm(quantum)
    naive = NaiveLocality(quantum, BLOCK, 7, by_replica)
    naive.preferred_replica = policy.preferred_replica  # type: ignore[method-assign]
    mine = Station(policy, load, servers=servers, tokens=True)
    assert in_step(mine, naive) == len(load)


def in_step(station: Station, naive: NaiveLocality) -> int:
    """Run a station, telling the naive policy the same; its head must be the station's at each start."""
    policy = station.policy
    for fact in ("add", "remove", "application_arrived", "application_left", "progressed", "ended"):
        setattr(policy, fact, told_twice(getattr(policy, fact), getattr(naive, fact)))
    granted = policy.granted

    def grant(call: object, replica_id: str) -> None:
        assert naive.head() == call.key  # type: ignore[attr-defined]
        naive.granted(call, replica_id)  # type: ignore[arg-type]
        granted(call, replica_id)  # type: ignore[arg-type]

    policy.granted = grant  # type: ignore[method-assign]
    return len(station.run().ends)


def told_twice(one: Callable[..., None], other: Callable[..., None]) -> Callable[..., None]:
    def tell(*facts: object) -> None:
        one(*facts)
        other(*facts)

    return tell


def with_prefixes(load: list[Request], families: dict[str, int], *, blocks: int = 4) -> list[Request]:
    """Each call of a flow begins with one of the flow's prefixes, `blocks` blocks long."""
    rng = random.Random(7)
    changed = []
    for request in load:
        flow = request.flow or ""
        family = 1000 * sorted(families).index(flow) + 10 * rng.randrange(families[flow])
        prefix = tuple(family + block for block in range(blocks))
        changed.append(Request(**{**vars(request), "prefix": prefix, "p": blocks * BLOCK + request.p}))
    return changed


def hits(station: Station, cache_blocks: int, *, by_server: bool = False) -> dict[CallKey, int]:
    """Cached prompt tokens of each call, by a list of least recently used blocks that knows nothing of the policy."""
    caches: dict[str, ListCache] = defaultdict(lambda: ListCache(cache_blocks))
    cached = {}
    for start in station.starts:
        cache = caches[start.server if by_server else ""]
        cached[start.call.key] = cache.hits(start.call.prefix) * BLOCK
        cache.touch(start.call.prefix)
    return cached


@pytest.mark.parametrize("make", [dlpm, d2lpm])
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_gap_of_backlogged_flows_is_bounded_by_the_quantum(
    make: Callable[[float, int], Policy], servers: int, seed: int
) -> None:
    """2·(U + quantum), although one flow has one prefix for all its calls and the other one for each."""
    quantum, cache_blocks = 100.0, 40
    plain = backlog(seed, {"local": (10, 10), "scattered": (10, 10)}, calls=120)
    load = with_prefixes(plain, {"local": 1, "scattered": 60})
    station = Station(make(quantum, cache_blocks), load, servers=servers, tokens=True).run()
    cached = hits(station, cache_blocks, by_server=make is d2lpm)
    most = max(longest_prompt(load), 2 * tokens_at_once(load, servers))
    assert widest_gap(station, "local", "scattered", cached=cached) <= 2 * (most + quantum)
    assert widest_gap(station, "local", "scattered", cached={}) > 2 * quantum, "cached tokens must not be charged"


def test_a_quantum_without_end_lets_the_longest_prefix_take_all() -> None:
    """What the deficit prevents: the flow with the common prefix runs to its end first."""
    load = with_prefixes(
        backlog(1, {"local": (10, 10), "scattered": (10, 10)}, calls=60), {"local": 1, "scattered": 60}
    )
    order = [key.application_id for key in Station(dlpm(1e12, 40), load).run().order()]
    first_local = next(n for n, name in enumerate(order) if name.startswith("local"))
    assert all(name.startswith("local") for name in order[first_local : first_local + 60])
    station = Station(dlpm(100.0, 40), load).run()
    most = max(longest_prompt(load), 2 * tokens_at_once(load, 1))
    assert widest_gap(station, "local", "scattered", cached=hits(station, 40)) <= 2 * (most + 100)


def test_weights_scale_the_quantum() -> None:
    load = backlog(3, {"heavy": (10, 10)}, calls=120, weight=3.0) + backlog(4, {"light": (10, 10)}, calls=40)
    random.Random(1).shuffle(load)
    station = Station(dlpm(100.0), load, servers=2, tokens=True).run()
    most = 2 * tokens_at_once(load, 2)
    assert widest_gap(station, "heavy", "light", {"heavy": 3, "light": 1}) <= 2 * (most + 100)
    assert widest_gap(station, "heavy", "light") > 2 * (most + 100), "unweighted shares must drift apart"


@pytest.mark.parametrize("seed", range(4))
def test_more_prefix_hits_than_vtc(seed: int) -> None:
    """Four flows with three prefixes each take turns in a cache that holds four."""
    flows = dict.fromkeys("abcd", (8, 8))
    load = with_prefixes(backlog(seed, flows, calls=40), dict.fromkeys(flows, 3))
    of_dlpm = sum(hits(Station(dlpm(400.0, 16), load).run(), 16).values())
    of_vtc = sum(hits(Station(Vtc(), load).run(), 16).values())
    of_fcfs = sum(hits(Station(Fcfs(), load).run(), 16).values())
    assert of_dlpm > 2 * max(of_vtc, of_fcfs) > 0


def spread_in_time(prefixes: int, calls: int) -> list[Request]:
    """One call after another, prefixes in turn, each long after the one before has ended."""
    return [
        Request(
            app=f"a{n}",
            p=20,
            d=2,
            at=100 * n,
            flow=f"f{n % prefixes}",
            prefix=tuple(10 * (n % prefixes) + block for block in range(4)),
        )
        for n in range(calls)
    ]


def servers_by_prefix(station: Station) -> dict[int, set[str]]:
    seen: dict[int, set[str]] = defaultdict(set)
    for start in station.starts:
        seen[start.call.prefix[0]].add(start.server)
    return seen


def test_calls_of_one_prefix_go_to_one_replica_without_contention() -> None:
    """Twice two prefixes at once, so that each begins on a server of its own; then one call at a time."""
    begin = [
        Request(app=f"b{n}", p=20, d=2, flow=f"f{n}", prefix=tuple(10 * n + b for b in range(4))) for n in range(2)
    ]
    later = [Request(**{**vars(request), "at": 1000 + request.at}) for request in spread_in_time(2, 40)]
    seen = servers_by_prefix(Station(d2lpm(cache_blocks=40), begin + later, servers=2).run())
    assert sorted(map(sorted, seen.values())) == [["s0"], ["s1"]]
    without = servers_by_prefix(Station(dlpm(cache_blocks=40), begin + later, servers=2).run())
    assert sorted(map(sorted, without.values())) == [["s0"], ["s0", "s1"]], "without a preference the first is taken"


def test_a_replica_that_is_taken_is_not_waited_for() -> None:
    load = [Request(app=f"a{n}", p=20, d=2, flow="f", prefix=(1, 2)) for n in range(4)]
    at_once: list[Start] = []
    Station(d2lpm(), load, servers=4, watch=lambda station, start: at_once.append(start)).run()
    assert {start.server for start in at_once if start.at == 0} == {"s0", "s1", "s2", "s3"}
