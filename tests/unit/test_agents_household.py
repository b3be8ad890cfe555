"""The household: what can be done, what cannot, and that its task always can."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.agents.household import FURNITURE, HAND, HOUSE, NOTHING_HAPPENS, THINGS, World, room_of
from serve_app.agents.household_task import MOST_STEPS, chosen

SEEN = re.compile(r"The (\w+) holds ([^.]*)\.")


def play(world: World) -> int:
    """Do the task from what is seen alone; how many actions it took."""
    thing, target, target_room = re.fullmatch(r"Put the (\w+) into the (\w+) of the (\w+)\.", world.goal).groups()  # type: ignore[union-attr]
    actions = 0

    def act(command: str) -> str:
        nonlocal actions
        actions += 1
        seen = world.act(command)
        assert seen != NOTHING_HAPPENS, command
        return seen

    def find() -> None:
        here = re.match(r"You are in the (\w+)", world.look())[1]  # type: ignore[index]
        for room in (here, *(room for room in HOUSE if room != here)):
            seen = world.look() if room == here else act(f"go {room}")
            closed = re.findall(r"The (\w+) is closed", seen)
            for text in (seen, *(act(f"open {piece}") for piece in closed)):
                if any(f"the {thing}" in held for _, held in SEEN.findall(text)):
                    act(f"take {thing}")
                    return

    find()
    if world.room != target_room:
        act(f"go {target_room}")
    if f"The {target} is closed" in world.look():
        act(f"open {target}")
    act(f"put {thing} {target}")
    return actions


@pytest.mark.parametrize("seed", range(60))
def test_every_task_can_be_done_in_the_steps_there_are(seed: int) -> None:
    world = World(seed)
    assert not world.done
    assert play(world) <= MOST_STEPS
    assert world.done


def test_a_household_is_the_same_for_the_same_number() -> None:
    for seed in (-3, 0, 10**30):
        one, other = World(seed), World(seed)
        commands = [*one.possible(), "open fridge", "look"]
        assert [one.act(command) for command in commands] == [other.act(command) for command in commands]
    assert len({World(seed).goal for seed in range(50)}) > 20


COMMANDS = [f"{verb} {what}" for verb in ("go", "open", "take", "put") for what in (*HOUSE, *FURNITURE, *THINGS)]


@given(st.integers(), st.lists(st.text(max_size=30) | st.sampled_from(COMMANDS), max_size=40))
def test_whatever_is_tried_things_are_in_one_place_and_the_hand_holds_one(seed: int, commands: list[str]) -> None:
    world = World(seed)
    for command in commands:
        possible, before = world.possible(), (world.room, dict(world.places))
        seen = world.act(command)
        if seen == NOTHING_HAPPENS:
            assert (world.room, world.places) == before
            assert command not in possible
        assert set(world.places) == set(THINGS)
        assert set(world.places.values()) <= {*FURNITURE, HAND}
        assert list(world.places.values()).count(HAND) <= 1
        assert all(deepcopy(world).act(each) != NOTHING_HAPPENS for each in world.possible())


def test_what_lies_behind_a_door_is_neither_seen_nor_taken() -> None:
    world = World(1)
    world.room, world.places["cup"] = "kitchen", "fridge"
    assert "the cup" not in world.look()
    assert world.act("take cup") == NOTHING_HAPPENS
    assert world.act("Open the fridge, please!") == "You open the fridge. The fridge holds the cup."
    assert world.act("I will take the cup from the fridge.") == "You take the cup."
    assert world.act("take the apple") == NOTHING_HAPPENS
    assert world.act("open fridge") == NOTHING_HAPPENS
    assert world.act("put the cup into the cupboard") == NOTHING_HAPPENS
    assert world.act("put the cup on the counter") == "You put the cup into the counter."


@pytest.mark.parametrize(
    "command", ["", "go", "go moon", "dance", "put", "put cup", "take fridge", "open bed", "🙂", "42"]
)
def test_a_command_without_sense_does_nothing(command: str) -> None:
    assert World(1).act(command) == NOTHING_HAPPENS


def test_furniture_has_a_room() -> None:
    assert {room_of(piece) for piece in FURNITURE} == set(HOUSE)
    with pytest.raises(KeyError):
        room_of("moon")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("I will Go Kitchen, then open fridge.", "go kitchen"),
        ("Take the towel", "Take the towel"),
        ("I am going to the kitchen.", "go kitchen"),
        ("I'm good. The fridge is open? No, opening the fridge!", "open fridge"),
        ("\n\n  dance  \nsing", "dance"),
        ("", "unclear"),
    ],
)
def test_an_answer_is_read_as_an_action(text: str, action: str) -> None:
    assert chosen(text, ["open fridge", "go kitchen"]) == action
