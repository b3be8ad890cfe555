"""Workloads made from a seed: mixes of the nine types that arrive in ticks, and loads that are hard on a scheduler.

A scenario is a function of a `Load` and a `random.Random`; `generate` runs one by name. Applications come one at a
time, in order of arrival, so that a million of them need no memory. At intensity 1 the reference load is 300
applications in 1,080 s; arrivals stand on a grid of TICK_S seconds, as in logs that count in ticks.

Laws: the same name, load and seed give the same applications, to the byte; ids are unique; a load of n has n
applications, besides an elephant and before any are split into ids.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from scheduler.sim.application_types import TYPES, draw_application, draw_elephant
from scheduler.sim.workload import TraceApplication, TraceCall

TICK_S = 1.832
SECONDS_PER_APPLICATION = 3.6
DIGITS = 3
"""Decimal places of arrivals: milliseconds."""

PREFIX_BLOCK_TOKENS = 64
"""Tokens that one hash of a prefix stands for: `EngineProfile.prefix_block_tokens` by default."""

BURST_S = 60.0
"""How long the bursts of on/off traffic last, and the silences between them."""

OVERLOAD_FACTOR = 4.0
"""How much faster the middle third of an overload arrives."""

MOST_OUTPUT_TOKENS = 4096
"""Shifted lengths stay below this."""

Mix = Mapping[str, float]
"""Application types and their weights."""

EVEN: Mix = dict.fromkeys(TYPES, 1.0)
SKEWED: Mix = {"ALFWI": 22, "PE": 17, "EV": 16, "KBQAV": 15, "CC": 15, "FV": 13, "DM": 1, "MRS": 0.5, "SC": 0.5}
MICE: Mix = {"KBQAV": 1.0, "CC": 1.0, "ALFWI": 1.0}
MIXES: Mapping[str, Mix] = {"even": EVEN, "skewed": SKEWED, "mice": MICE}


class GeneratorError(ValueError):
    """A load that cannot be generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of what. Raises GeneratorError.

    `window_s` is when the last have arrived (None: at the reference rate), `mix` the types (None: the scenario's own).
    From the middle of a shift on, outputs of `shift_type` are `shift_factor` times as long. `mice_tenant` is whose the
    mice beside an elephant are; the elephant is the default tenant's.
    """

    applications: int = 300
    window_s: float | None = None
    mix: Mix | None = None
    shift_type: str = "SC"
    shift_factor: float = 2.5
    mice_tenant: str = "default"

    def __post_init__(self) -> None:
        if self.applications < 1:
            raise GeneratorError(f"at least 1 application is needed, got {self.applications}")
        if self.window_s is not None and not 0 <= self.window_s < math.inf:
            raise GeneratorError(f"the window must be finite and not negative, got {self.window_s}")
        if not 0 < self.shift_factor < math.inf:
            raise GeneratorError(f"the factor of a shift must be positive and finite, got {self.shift_factor}")
        check_type(self.shift_type)
        if self.mix is not None:
            _check_mix(self.mix)

    @property
    def seconds(self) -> float:
        return SECONDS_PER_APPLICATION * self.applications if self.window_s is None else self.window_s


def parse_mix(text: str) -> Mix:
    """A mix by its name, or types with weights between commas: `SC=2,EV=1`; a type without one weighs 1."""
    if text in MIXES:
        return MIXES[text]
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if name in mix:
            raise GeneratorError(f"type {name} stands twice")
        try:
            mix[name] = float(weight) if equals else 1.0
        except ValueError:
            raise GeneratorError(f"{part.strip()!r}: write TYPE=WEIGHT, as in SC=2") from None
    _check_mix(mix)
    return mix


def check_type(name: str) -> None:
    if name not in TYPES:
        raise GeneratorError(f"no type {name!r}; known: {', '.join(TYPES)}")


def _check_mix(mix: Mix) -> None:
    for name, weight in mix.items():
        check_type(name)
        if not 0 <= weight < math.inf:
            raise GeneratorError(f"the weight of {name} must be finite and not negative, got {weight}")
    if not sum(mix.values()) > 0:
        raise GeneratorError("no type weighs more than 0")


# ---- arrivals


def spread_arrivals(
    draw: random.Random, count: int, warp: Callable[[float], float], tick_s: float = TICK_S
) -> Iterator[float]:
    """`count` moments in order: uniform shares of [0, 1), made seconds by a monotone `warp`, set back to a tick."""
    share = 0.0
    for left in range(count, 0, -1):
        share = 1 - (1 - share) * (1 - draw.random()) ** (1 / left)
        seconds = warp(share)
        yield round(math.floor(seconds / tick_s) * tick_s, DIGITS) if tick_s else round(seconds, DIGITS)


def steady(window_s: float) -> Callable[[float], float]:
    """The same rate throughout."""
    return lambda share: share * window_s


def on_and_off(window_s: float, burst_s: float = BURST_S) -> Callable[[float], float]:
    """Bursts, each followed by a silence as long."""

    def warp(share: float) -> float:
        busy_s = share * window_s / 2
        return busy_s + burst_s * math.floor(busy_s / burst_s)

    return warp


def overloaded(window_s: float, factor: float = OVERLOAD_FACTOR) -> Callable[[float], float]:
    """Calm, then a third of the time at `factor` times the rate, then calm again."""
    third_s, work = window_s / 3, 2 + factor

    def warp(share: float) -> float:
        done = share * work
        if done < 1:
            return third_s * done
        if done < 1 + factor:
            return third_s * (1 + (done - 1) / factor)
        return third_s * (done - factor + 1)

    return warp


# ---- applications


def draw_from(mix: Mix, draw: random.Random, application_id: str, arrival_s: float) -> TraceApplication:
    """An application of a type from the mix."""
    (name,) = draw.choices(list(mix), list(mix.values()))
    return draw_application(name, draw, application_id, arrival_s)


def mixed(
    name: str, draw: random.Random, arrivals_s: Iterable[float], mix: Mix, tenant: str = "default"
) -> Iterator[TraceApplication]:
    """An application from the mix at each arrival; ids are `name` and a number."""
    for number, arrival_s in enumerate(arrivals_s):
        yield replace(draw_from(mix, draw, f"{name}-{number:04d}", arrival_s), tenant=tenant)


def split_into_ids(application: TraceApplication) -> Iterator[TraceApplication]:
    """The same calls at once, each as an application with an id of its own."""
    for call in application.calls:
        alone = replace(call, after=())
        yield replace(application, application_id=f"{application.application_id}-{call.name}", calls=(alone,))


def with_longer_outputs(application: TraceApplication, factor: float) -> TraceApplication:
    """The same request, answered at `factor` times the length."""
    calls = tuple(replace(call, output_tokens=_longer(call, factor)) for call in application.calls)
    return replace(application, calls=calls)


def _longer(call: TraceCall, factor: float) -> int:
    return min(max(round(call.output_tokens * factor), 1), MOST_OUTPUT_TOKENS)


def among_tenants(
    applications: Iterable[TraceApplication], weights: Mapping[str, float], seed: int
) -> Iterator[TraceApplication]:
    """Each application to one of the tenants, all equally likely; it weighs what its tenant weighs."""
    draw, names = _chance(seed, "tenants"), list(weights)
    for application in applications:
        tenant = draw.choice(names)
        yield replace(application, tenant=tenant, weight=weights[tenant])


def with_shared_prefixes(applications: Iterable[TraceApplication]) -> Iterator[TraceApplication]:
    """With hashes of leading prompt blocks: the type's system prompt, and what calls of one application repeat."""
    for number, application in enumerate(applications):
        kind = TYPES.get(application.application_type)
        if kind is None:
            yield application
            continue
        system_blocks = kind.system_tokens // PREFIX_BLOCK_TOKENS
        system = [_block(0, list(TYPES).index(application.application_type), block) for block in range(system_blocks)]
        calls = []
        for call in application.calls:
            full_blocks = call.prompt_tokens // PREFIX_BLOCK_TOKENS
            prefix = system[:full_blocks]
            if call.name.rstrip("0123456789") in kind.own_prompt:
                prefix += [_block(1, number, block) for block in range(system_blocks, full_blocks)]
            calls.append(replace(call, prefix=tuple(prefix)))
        yield replace(application, calls=tuple(calls))


def _block(family: int, owner: int, block: int) -> int:
    """A number that no other block has: system prompts are one family, applications the other."""
    return ((owner << 12) | block) << 1 | family


# ---- scenarios


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load by its name; one with `own_tenants` says whose its applications are."""

    summary: str
    applications: Callable[[Load, int], Iterator[TraceApplication]]
    own_tenants: tuple[str, ...] = field(default=())


def generate(name: str, load: Load, seed: int = 0) -> Iterator[TraceApplication]:
    """The applications of a scenario. Raises GeneratorError for a name that is none."""
    if name not in SCENARIOS:
        raise GeneratorError(f"no kind {name!r}; known: {', '.join(SCENARIOS)}")
    return SCENARIOS[name].applications(load, seed)


def _chance(seed: int, what: str) -> random.Random:
    """A stream of its own for each use, so that one does not shift another."""
    return random.Random(f"{seed}/{what}")


def _even(load: Load, seed: int) -> Iterator[TraceApplication]:
    return _at_one_rate("even", load, seed, EVEN)


def _skewed(load: Load, seed: int) -> Iterator[TraceApplication]:
    return _at_one_rate("skewed", load, seed, SKEWED)


def _at_one_rate(name: str, load: Load, seed: int, usual: Mix) -> Iterator[TraceApplication]:
    arrivals_s = spread_arrivals(_chance(seed, "arrivals"), load.applications, steady(load.seconds))
    return mixed(name, _chance(seed, name), arrivals_s, load.mix or usual)


def _elephant(load: Load, seed: int) -> Iterator[TraceApplication]:
    yield draw_elephant(_chance(seed, "elephant"), "elephant", 0.0)
    apart_s = 1.0 if load.window_s is None else load.window_s / load.applications
    arrivals_s = (round((number + 1) * apart_s, DIGITS) for number in range(load.applications))
    yield from mixed("mouse", _chance(seed, "mice"), arrivals_s, load.mix or MICE, load.mice_tenant)


def _on_off(load: Load, seed: int) -> Iterator[TraceApplication]:
    bursty = load.applications // 2
    streams = (("steady", load.applications - bursty, steady), ("bursty", bursty, on_and_off))
    return _merged(
        mixed(
            name,
            _chance(seed, name),
            spread_arrivals(_chance(seed, f"{name} arrivals"), count, warp(load.seconds)),
            load.mix or EVEN,
            name,
        )
        for name, count, warp in streams
    )


def _merged(streams: Iterable[Iterator[TraceApplication]]) -> Iterator[TraceApplication]:
    return heapq.merge(*streams, key=lambda application: application.arrival_s)


def _overload(load: Load, seed: int) -> Iterator[TraceApplication]:
    arrivals_s = spread_arrivals(_chance(seed, "arrivals"), load.applications, overloaded(load.seconds))
    return mixed("overload", _chance(seed, "overload"), arrivals_s, load.mix or EVEN)


def _shift(load: Load, seed: int) -> Iterator[TraceApplication]:
    for application in _at_one_rate("shift", load, seed, EVEN):
        late = 2 * application.arrival_s >= load.seconds
        if late and application.application_type == load.shift_type:
            yield with_longer_outputs(application, load.shift_factor)
        else:
            yield application


def _minting(load: Load, seed: int) -> Iterator[TraceApplication]:
    for number, application in enumerate(_at_one_rate("work", load, seed, {"SC": 1.0})):
        if number % 2:
            yield from split_into_ids(replace(application, tenant="minter"))
        else:
            yield replace(application, tenant="honest")


SCENARIOS: Mapping[str, Scenario] = {
    "even": Scenario("the nine types alike", _even),
    "skewed": Scenario("mostly small applications, one in fifty large", _skewed),
    "elephant": Scenario("one large application, then a small one each second", _elephant, ("default", "mice")),
    "on_off": Scenario("a steady tenant beside one of bursts and silences", _on_off, ("steady", "bursty")),
    "overload": Scenario("the middle third of the time arrives four times as fast", _overload),
    "shift": Scenario("from the middle on, one type's answers are longer", _shift),
    "minting": Scenario("one tenant splits its applications into ids, one does not", _minting, ("honest", "minter")),
}
