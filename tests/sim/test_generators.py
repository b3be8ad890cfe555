"""Generated workloads: what a seed fixes, what the types look like, and what each scenario is made for."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import correlation, fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.settings import Admission, CoreSettings
from scheduler.sim.application_types import (
    ELEPHANT_MAPS,
    FAN_IN,
    SIZE_WORDS,
    TYPES,
    Item,
    Spread,
    draw_application,
    draw_elephant,
    size_word,
)
from scheduler.sim.engine import REFERENCE
from scheduler.sim.generators import (
    BURST_S,
    EVEN,
    MIXES,
    PREFIX_BLOCK_TOKENS,
    SCENARIOS,
    SKEWED,
    TICK_S,
    GeneratorError,
    Load,
    among_tenants,
    generate,
    on_and_off,
    overloaded,
    parse_mix,
    split_into_ids,
    spread_arrivals,
    steady,
    with_shared_prefixes,
)
from scheduler.sim.simulation import Simulation, SimulationResult, SimulationSettings
from scheduler.sim.workload import TraceApplication, at_intensity, read_workload, write_application

SHARED = Path(os.environ.get("JUSTITIA_SHARED") or Path(__file__).parents[3] / "shared")
TRAIN = SHARED / "workloads" / "train.jsonl"

MEAN_COST = {
    "MRS": 2.9e6,
    "DM": 6.7e6,
    "SC": 1.4e6,
    "FV": 4.1e5,
    "PE": 2.5e5,
    "CC": 2.3e5,
    "KBQAV": 9.7e4,
    "EV": 7.3e4,
    "ALFWI": 1.46e5,
}
MEAN_CALLS = {
    "MRS": 13.2,
    "DM": 13,
    "SC": 14.2,
    "FV": 9.8,
    "PE": 5.7,
    "CC": 7,
    "KBQAV": 5,
    "EV": 4.3,
    "ALFWI": 12.3,
}


def drawn(name: str, count: int = 600, seed: int = 3) -> list[TraceApplication]:
    draw = random.Random(seed)
    return [draw_application(name, draw, f"a{number}", 0.0) for number in range(count)]


def lines(applications: Iterable[TraceApplication]) -> list[str]:
    return [write_application(application) for application in applications]


def simulated(
    applications: Iterable[TraceApplication], policy: str, prefix_cache_blocks: int = 0, tenant_level: bool = True
) -> SimulationResult:
    core = CoreSettings(admission=Admission.ENGINE, watermark=0.0, tenant_level=tenant_level)
    profile = replace(REFERENCE, prefix_cache_blocks=prefix_cache_blocks)
    return Simulation(applications, SimulationSettings(policy=policy, core=core, engines=(profile,))).run()


# ---- seeds


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_seed_fixes_every_byte_and_another_seed_changes_them(kind: str) -> None:
    load = Load(applications=40)
    first, again, other = (lines(generate(kind, load, seed)) for seed in (5, 5, 6))
    assert first == again
    assert set(first).isdisjoint(other)


@pytest.mark.parametrize("kind", SCENARIOS)
@given(count=st.integers(1, 60), seed=st.integers(0, 10**9), window_s=st.none() | st.floats(0, 1e5))
@settings(deadline=None, max_examples=8)
def test_whatever_is_asked_for_comes_in_order_under_ids_of_its_own(
    kind: str, count: int, seed: int, window_s: float | None
) -> None:
    load = Load(applications=count, window_s=window_s)
    made = list(generate(kind, load, seed))
    extra = {"elephant": 1}.get(kind, 0)
    if kind != "minting":
        assert len(made) == count + extra
    assert len({application.application_id for application in made}) == len(made)
    arrivals = [application.arrival_s for application in made]
    assert arrivals == sorted(arrivals)
    limit_s = load.seconds + 1 if kind != "elephant" or window_s is not None else count
    assert 0 <= arrivals[0] <= arrivals[-1] <= limit_s


def test_a_workload_of_any_length_comes_one_application_at_a_time() -> None:
    endless = generate("even", Load(applications=10**7), 1)
    assert len(list(itertools.islice(endless, 3))) == 3


# ---- writing, reading, running


@pytest.mark.parametrize("kind", SCENARIOS)
def test_every_scenario_can_be_written_read_and_simulated(kind: str) -> None:
    made = list(generate(kind, Load(applications=12), 2))
    read = list(read_workload(lines(made)))
    assert read == made
    means = {}
    for policy in ("fcfs", "justitia"):
        result = simulated(at_intensity(read, 3), policy)
        assert {one.application_id for one in result.applications} == {one.application_id for one in made}
        assert all(one.completion_s > 0 for one in result.applications)
        means[policy] = fmean(one.completion_s for one in result.applications)
    assert means["justitia"] <= means["fcfs"] * 1.01


def test_twice_the_intensity_is_half_the_time_and_the_same_work() -> None:
    made = list(generate("even", Load(applications=50), 4))
    twice = list(at_intensity(made, 2))
    assert [one.arrival_s * 2 for one in twice] == [one.arrival_s for one in made]
    assert [one.calls for one in twice] == [one.calls for one in made]


# ---- the types


@pytest.mark.parametrize("name", TYPES)
def test_calls_follow_those_they_wait_for_and_fit_the_reference_engine(name: str) -> None:
    for application in drawn(name):
        before: set[str] = set()
        for call in application.calls:
            assert set(call.after) <= before
            assert call.name not in before
            assert call.output_tokens >= 1
            assert call.prompt_tokens + call.output_tokens <= REFERENCE.longest_sequence_tokens
            before.add(call.name)


@pytest.mark.parametrize("name", TYPES)
def test_costs_and_calls_are_near_what_is_stated(name: str) -> None:
    made = drawn(name, 900)
    assert fmean(one.cost for one in made) == pytest.approx(MEAN_COST[name], rel=0.12)
    assert fmean(len(one.calls) for one in made) == pytest.approx(MEAN_CALLS[name], rel=0.06)


@pytest.mark.skipif(not TRAIN.exists(), reason=f"no shared workloads at {TRAIN}; set JUSTITIA_SHARED")
def test_costs_and_lengths_are_near_those_of_the_shared_workload() -> None:
    with TRAIN.open(encoding="utf-8") as file:
        shared = list(read_workload(itertools.islice(file, 1000)))
    for name in TYPES:
        theirs, ours = [one for one in shared if one.application_type == name], drawn(name)
        measures: list[Callable[[TraceApplication], float]] = [
            lambda one: one.cost,
            lambda one: len(one.calls),
            lambda one: fmean(call.prompt_tokens for call in one.calls),
            lambda one: fmean(call.output_tokens for call in one.calls),
        ]
        for tolerance, measured in zip((0.2, 0.1, 0.1, 0.1), measures, strict=True):
            assert fmean(map(measured, ours)) == pytest.approx(fmean(map(measured, theirs)), rel=tolerance), name
        stages = [{call.name.rstrip("0123456789_") for one in group for call in one.calls} for group in (ours, theirs)]
        assert stages[0] == stages[1], name


def stages(application: TraceApplication) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for call in application.calls:
        found.setdefault(call.name.rstrip("0123456789"), []).append(call.name)
    return found


def after(application: TraceApplication) -> dict[str, tuple[str, ...]]:
    return {call.name: call.after for call in application.calls}


def test_maps_are_reduced_by_at_most_six_until_one_is_left() -> None:
    for application in drawn("MRS", 200):
        waits, calls = after(application), {call.name: call for call in application.calls}
        read = [name for names in waits.values() for name in names]
        assert sorted(read) == sorted(set(read)) == sorted(set(waits) - {application.calls[-1].name})
        for name, names in waits.items():
            assert name.startswith("map") == (not names)
            assert len(names) <= FAN_IN
            if names:
                assert calls[name].prompt_tokens == 80 + sum(calls[one].output_tokens for one in names)


def test_documents_are_merged_scored_put_together_and_improved() -> None:
    for application in drawn("DM", 100):
        waits, found = after(application), stages(application)
        assert 3 <= len(found["merge"]) == len(found["score"]) <= 8
        assert all(waits[f"score{number}"] == (f"merge{number}",) for number in range(len(found["score"])))
        assert waits["aggregate"] == tuple(found["score"])
        assert waits["improve"] == ("aggregate",)


def test_samples_ask_the_same_side_by_side() -> None:
    for application in drawn("SC", 100):
        assert 10 <= len(application.calls) <= 22
        assert {call.after for call in application.calls} == {()}
        assert len({call.prompt_tokens for call in application.calls}) == 1


def test_claims_are_looked_up_and_verified_one_by_one() -> None:
    for application in drawn("FV", 100):
        waits = after(application)
        pairs = (len(waits) - 1) // 2
        assert 1 <= pairs <= 10
        for number in range(pairs):
            assert waits[f"query{number}"] == ("claims",)
            assert waits[f"verify{number}"] == (f"query{number}",)


@pytest.mark.parametrize(
    ("name", "first", "middle", "last", "least", "most"),
    [("PE", "plan", "step", "join", 2, 5), ("KBQAV", "decompose", "answer", "verify", 1, 5)],
)
def test_a_question_is_taken_apart_and_put_together(
    name: str, first: str, middle: str, last: str, least: int, most: int
) -> None:
    counts = set()
    for application in drawn(name, 300):
        waits, parts = after(application), stages(application)[middle]
        counts.add(len(parts))
        assert list(waits) == [first, *parts, last]
        assert all(waits[part] == (first,) for part in parts)
        assert waits[last] == tuple(parts)
    assert counts == set(range(least, most + 1))


def test_checks_follow_the_extraction_of_equations() -> None:
    for application in drawn("EV", 100):
        waits = after(application)
        assert waits.pop("extract") == ()
        assert 1 <= len(waits) <= 9
        assert set(waits.values()) == {("extract",)}


def test_three_tests_and_three_solutions_are_judged() -> None:
    for application in drawn("CC", 20):
        parts = [f"{stage}{number}" for stage in ("test", "solve") for number in range(3)]
        assert after(application) == {**dict.fromkeys(parts, ()), "judge": tuple(parts)}


def test_turns_read_all_that_was_said_before() -> None:
    for application in drawn("ALFWI", 100):
        assert 6 <= len(application.calls) <= 29
        for before, call in itertools.pairwise(application.calls):
            assert call.after == (before.name,)
            assert call.prompt_tokens > before.prompt_tokens + before.output_tokens


def test_the_elephant_has_as_many_maps_as_stated() -> None:
    elephant = draw_elephant(random.Random(1), "e", 0.0)
    assert sum(call.name.startswith("map") for call in elephant.calls) == ELEPHANT_MAPS
    assert len(elephant.calls) == ELEPHANT_MAPS + 5 + 1


# ---- lengths and prompts


def test_a_spread_has_the_median_deviation_and_correlation_that_it_states() -> None:
    spread = Spread(1000, 1, 10**6, among=0.5, follows=0.8)
    draw = random.Random(9)
    items = [Item(draw) for _ in range(4000)]
    logs = [math.log(item.one(spread)) for item in items]
    mean = fmean(logs)
    assert mean == pytest.approx(math.log(1000), abs=0.03)
    assert math.sqrt(fmean((one - mean) ** 2 for one in logs)) == pytest.approx(0.5, abs=0.02)
    assert correlation([item.size for item in items], logs) == pytest.approx(0.8, abs=0.03)


@given(st.floats(1, 5000), st.integers(1, 100), st.integers(0, 4000), st.integers(0, 10**6))
@settings(max_examples=50)
def test_lengths_stay_within_their_limits(median: float, least: int, room: int, seed: int) -> None:
    spread = Spread(median, least, least + room, among=2.0, within=2.0, follows=0.5)
    item = Item(random.Random(seed))
    assert least <= item.one(spread) <= least + room
    for call in item.stage("c", 5, spread, spread, joint=0.5):
        assert least <= call.prompt_tokens <= least + room
        assert least <= call.output_tokens <= least + room


def log_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    return correlation(*(list(map(math.log, side)) for side in zip(*pairs, strict=True)))


def test_long_prompts_have_long_outputs_where_the_type_says_so() -> None:
    maps = [(c.prompt_tokens, c.output_tokens) for one in drawn("MRS") for c in one.calls if c.name.startswith("map")]
    solutions = [(one.calls[3].prompt_tokens, one.calls[3].output_tokens) for one in drawn("CC")]
    plans = [(one.calls[0].prompt_tokens, one.calls[0].output_tokens) for one in drawn("PE")]
    assert 0.35 < log_correlation(maps) < 0.65
    assert 0.35 < log_correlation(solutions) < 0.75
    assert abs(log_correlation(plans)) < 0.15


@pytest.mark.parametrize("name", TYPES)
def test_prompts_tell_the_type_and_something_of_the_cost(name: str) -> None:
    made = drawn(name)
    assert all(one.prompt.startswith(TYPES[name].request) for one in made)
    assert log_correlation([(len(one.prompt), one.cost) for one in made]) > 0.2
    by_word: dict[str, list[float]] = {}
    for one in made:
        by_word.setdefault(one.prompt.partition("(")[2].partition(")")[0], []).append(one.cost)
    assert set(by_word) == set(SIZE_WORDS)
    assert fmean(by_word["large"]) > fmean(by_word["small"])


def test_no_two_types_ask_alike() -> None:
    assert len({kind.request for kind in TYPES.values()}) == len(TYPES)


def test_size_words_go_from_small_to_large() -> None:
    assert [size_word(size) for size in (-2.0, -1.0, 0.0, 1.0, 2.0)] == list(SIZE_WORDS)


# ---- mixes


def kinds_of(applications: Iterable[TraceApplication]) -> Counter[str]:
    return Counter(application.application_type for application in applications)


def test_even_means_alike_and_skewed_means_mostly_small() -> None:
    even, skewed = (kinds_of(generate(kind, Load(applications=1800), 1)) for kind in ("even", "skewed"))
    assert set(even) == set(TYPES)
    assert all(140 <= count <= 260 for count in even.values())
    assert 0.01 < sum(skewed[name] for name in ("MRS", "DM", "SC")) / 1800 < 0.035


def test_a_mix_is_a_name_or_types_with_weights() -> None:
    assert parse_mix("even") is EVEN
    assert parse_mix("SC=2, EV") == {"SC": 2.0, "EV": 1.0}
    made = kinds_of(generate("even", Load(applications=600, mix=parse_mix("SC=2,EV=1,DM=0")), 1))
    assert set(made) == {"SC", "EV"}
    assert 1.6 < made["SC"] / made["EV"] < 2.5


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no type ''"),
        ("XY", "no type 'XY'; known: MRS"),
        ("SC=two", "'SC=two': write TYPE=WEIGHT"),
        ("SC=", "write TYPE=WEIGHT"),
        ("SC=1,SC=2", "SC stands twice"),
        ("SC=-1", "the weight of SC must be finite and not negative, got -1.0"),
        ("SC=nan", "the weight of SC"),
        ("SC=0", "no type weighs more than 0"),
    ],
)
def test_a_bad_mix_is_refused_in_words(text: str, what: str) -> None:
    with pytest.raises(GeneratorError, match=what):
        parse_mix(text)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"applications": 0}, "at least 1 application"),
        ({"window_s": -1.0}, "the window"),
        ({"window_s": math.inf}, "the window"),
        ({"shift_factor": 0.0}, "the factor of a shift"),
        ({"shift_type": "XY"}, "no type 'XY'"),
        ({"mix": {}}, "no type weighs"),
    ],
)
def test_a_bad_load_is_refused_in_words(fields: dict[str, object], what: str) -> None:
    with pytest.raises(GeneratorError, match=what):
        Load(**fields)  # type: ignore[arg-type]


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(GeneratorError, match="no kind 'odd'; known: even, skewed, elephant"):
        generate("odd", Load())


# ---- arrivals


def arrivals(warp: Callable[[float], float], count: int = 3000, tick_s: float = TICK_S) -> list[float]:
    return list(spread_arrivals(random.Random(8), count, warp, tick_s))


def test_steady_arrivals_stand_on_ticks_and_fill_the_window() -> None:
    moments = arrivals(steady(1080.0), 300)
    assert all(abs(moment / TICK_S - round(moment / TICK_S)) < 1e-3 for moment in moments)
    assert 170 < len(set(moments)) < 280, "some arrive together"
    thirds = Counter(int(moment // 360) for moment in arrivals(steady(1080.0)))
    assert all(900 < thirds[third] < 1100 for third in range(3))


def test_arrivals_without_ticks_are_uniform() -> None:
    moments = arrivals(steady(1.0), tick_s=0.0)
    steps = enumerate(moments, start=1)
    assert max(abs(moment - number / 3000) for number, moment in steps) < 1.63 / math.sqrt(3000)


def test_bursts_are_followed_by_silences() -> None:
    moments = arrivals(on_and_off(1200.0), tick_s=0.0)
    assert {moment // BURST_S for moment in moments} == set(range(0, 20, 2))
    in_bursts = Counter(moment // BURST_S for moment in moments)
    assert all(230 < count < 370 for count in in_bursts.values())


def test_an_overload_is_four_times_the_rate_for_a_third() -> None:
    thirds = Counter(int(moment // 400) for moment in arrivals(overloaded(1200.0)))
    assert set(thirds) == {0, 1, 2}
    assert thirds[1] / thirds[0] == pytest.approx(4, rel=0.2)
    assert thirds[1] / thirds[2] == pytest.approx(4, rel=0.2)


# ---- scenarios


@pytest.mark.parametrize("mice_tenant", ["default", "others"])
def test_an_elephant_is_followed_by_a_mouse_a_second(mice_tenant: str) -> None:
    elephant, *mice = generate("elephant", Load(applications=100, mice_tenant=mice_tenant), 1)
    assert (elephant.application_type, elephant.arrival_s, elephant.tenant) == ("MRS", 0.0, "default")
    assert [mouse.arrival_s for mouse in mice] == [float(second) for second in range(1, 101)]
    assert set(kinds_of(mice)) == {"KBQAV", "CC", "ALFWI"}
    assert {mouse.tenant for mouse in mice} == {mice_tenant}
    assert elephant.cost > 15 * fmean(mouse.cost for mouse in mice)


def test_on_off_traffic_is_beside_a_steady_tenant() -> None:
    made = list(generate("on_off", Load(applications=400), 1))
    moments = {tenant: [one.arrival_s for one in made if one.tenant == tenant] for tenant in ("steady", "bursty")}
    assert len(moments["steady"]) == len(moments["bursty"]) == 200
    in_odd_minutes = {tenant: sum(one // BURST_S % 2 for one in times) for tenant, times in moments.items()}
    assert in_odd_minutes["bursty"] < 10
    assert in_odd_minutes["steady"] > 70


def test_a_shift_lengthens_one_types_answers_from_the_middle_on() -> None:
    load = Load(applications=900, shift_type="SC", shift_factor=2.5)
    made = list(generate("shift", load, 1))
    plain = list(generate("shift", replace(load, shift_factor=1.0), 1))
    for shifted, one in zip(made, plain, strict=True):
        assert shifted.prompt == one.prompt
        if one.application_type != "SC" or one.arrival_s < load.seconds / 2:
            assert shifted == one
        else:
            outputs = [(a.output_tokens, b.output_tokens) for a, b in zip(shifted.calls, one.calls, strict=True)]
            assert all(ours == round(2.5 * theirs) for ours, theirs in outputs)
    assert made != plain


def test_a_minter_splits_the_same_work_into_ids_and_the_honest_tenant_does_not() -> None:
    made = list(generate("minting", Load(applications=200), 1))
    calls: dict[str, list[int]] = {"honest": [], "minter": []}
    for application in made:
        calls[application.tenant].append(len(application.calls))
    assert len(calls["honest"]) == 100
    assert set(calls["minter"]) == {1}
    assert sum(calls["minter"]) == pytest.approx(sum(calls["honest"]), rel=0.1)


def test_splitting_keeps_all_calls_and_waits_for_none() -> None:
    (application,) = drawn("DM", 1)
    pieces = list(split_into_ids(application))
    assert sum(piece.cost for piece in pieces) == application.cost
    assert all(call.after == () for piece in pieces for call in piece.calls)
    assert {piece.arrival_s for piece in pieces} == {application.arrival_s}


def rejoined(minted: Iterable[TraceApplication]) -> list[TraceApplication]:
    """The same work as if nobody had split any."""
    whole: dict[str, TraceApplication] = {}
    for one in minted:
        name = one.application_id.rpartition("-")[0] if one.tenant == "minter" else one.application_id
        calls = whole[name].calls if name in whole else ()
        whole[name] = replace(one, application_id=name, calls=(*calls, *one.calls))
    return list(whole.values())


def test_minting_costs_others_much_unless_tenants_share() -> None:
    minted = list(generate("minting", Load(applications=30, window_s=60.0), 1))
    harm = {}
    for tenant_level in (True, False):
        whole, split = (
            fmean(
                one.completion_s
                for one in simulated(work, "justitia", tenant_level=tenant_level).applications
                if one.tenant == "honest"
            )
            for work in (rejoined(minted), minted)
        )
        harm[tenant_level] = split / whole
    assert harm[True] < 1.15
    assert harm[False] > 1.5


def test_tenants_get_their_weights_and_equal_numbers() -> None:
    made = list(among_tenants(generate("even", Load(applications=600), 1), {"gold": 3.0, "free": 1.0}, 1))
    assert {(one.tenant, one.weight) for one in made} == {("gold", 3.0), ("free", 1.0)}
    assert 250 < sum(one.tenant == "gold" for one in made) < 350
    assert [one.calls for one in made] == [one.calls for one in generate("even", Load(applications=600), 1)]


# ---- prefixes


def test_calls_of_a_type_share_its_system_prompt_and_nothing_beyond() -> None:
    made = list(with_shared_prefixes(generate("even", Load(applications=200), 1)))
    blocks: dict[str, set[int]] = {}
    for application in made:
        system_blocks = TYPES[application.application_type].system_tokens // PREFIX_BLOCK_TOKENS
        for call in application.calls:
            assert len(call.prefix) <= call.prompt_tokens // PREFIX_BLOCK_TOKENS
            assert len(set(call.prefix)) == len(call.prefix)
            blocks.setdefault(application.application_type, set()).update(call.prefix[:system_blocks])
    for name, found in blocks.items():
        assert len(found) == TYPES[name].system_tokens // PREFIX_BLOCK_TOKENS
    assert len(set().union(*blocks.values())) == sum(map(len, blocks.values()))


@pytest.mark.parametrize("name", ["SC", "DM", "ALFWI"])
def test_calls_that_repeat_their_applications_prompt_share_all_of_it(name: str) -> None:
    first, second = with_shared_prefixes(drawn(name, 2))
    stage = next(iter(TYPES[name].own_prompt))
    repeated = [call for call in first.calls if call.name.startswith(stage)]
    for before, call in itertools.pairwise(repeated):
        assert call.prefix[: len(before.prefix)] == before.prefix
        assert len(call.prefix) == call.prompt_tokens // PREFIX_BLOCK_TOKENS
    system_blocks = TYPES[name].system_tokens // PREFIX_BLOCK_TOKENS
    assert set(first.calls[0].prefix) & set(second.calls[0].prefix) == set(first.calls[0].prefix[:system_blocks])


def test_a_prefix_cache_saves_prefill_on_shared_prefixes() -> None:
    def prefilled(applications: Iterator[TraceApplication]) -> int:
        return simulated(applications, "fcfs", prefix_cache_blocks=4000).prefilled_tokens

    load = Load(applications=20, mix=MIXES["mice"])
    assert prefilled(with_shared_prefixes(generate("even", load, 1))) < 0.5 * prefilled(generate("even", load, 1))


def test_applications_of_other_types_keep_their_prefixes() -> None:
    strange = replace(drawn("SC", 1)[0], application_type="strange")
    assert list(with_shared_prefixes([strange])) == [strange]


def test_prefixes_survive_json() -> None:
    made = list(with_shared_prefixes(generate("even", Load(applications=9), 1)))
    assert list(read_workload(lines(made))) == made
    assert all(block < 2**53 for line in lines(made) for call in json.loads(line)["calls"] for block in call["prefix"])


def test_skewed_weights_are_of_known_types() -> None:
    assert set(SKEWED) == set(TYPES)
