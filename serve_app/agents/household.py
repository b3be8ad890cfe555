"""A small world in text: rooms, furniture that opens, things that can be carried, and one task.

`World(seed)` is the same for the same seed. `act` takes one command and answers with what is seen; a command that
cannot be done answers that, and changes nothing. Laws. A thing is in one place: on or in a piece of furniture, or in
the hand, which holds one. What lies in a closed piece is neither seen nor taken. The task can always be done:
doors do not lock, and the thing that it names exists once.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from random import Random

OPEN, CLOSED = "open", "closed"
HOUSE = {
    "kitchen": {"fridge": CLOSED, "cupboard": CLOSED, "counter": OPEN},
    "bedroom": {"wardrobe": CLOSED, "bed": OPEN},
    "bathroom": {"cabinet": CLOSED, "sink": OPEN},
    "study": {"desk": OPEN, "drawer": CLOSED},
}
"""Rooms, each with its furniture: some of it has a door."""
THINGS = ("apple", "book", "candle", "cup", "key", "soap", "towel")
HAND = "hand"
NOTHING_HAPPENS = "Nothing happens."

VERBS = frozenset({"go", "open", "take", "put", "look"})
FURNITURE = tuple(piece for room in HOUSE.values() for piece in room)

_WORD = re.compile(r"[a-z]+")


class World:
    """One household and one task, `goal` in words."""

    def __init__(self, seed: int = 1) -> None:
        chance = Random(seed)
        self.room = chance.choice(sorted(HOUSE))
        self.places = {thing: chance.choice(FURNITURE) for thing in THINGS}
        self._closed = {piece for room in HOUSE.values() for piece, door in room.items() if door == CLOSED}
        self.thing = chance.choice(THINGS)
        self.target = chance.choice([piece for piece in FURNITURE if piece != self.places[self.thing]])
        self.goal = f"Put the {self.thing} into the {self.target} of the {room_of(self.target)}."

    @property
    def done(self) -> bool:
        return self.places[self.thing] == self.target

    def act(self, command: str) -> str:
        """Do the first thing that `command` asks for; what is seen then. Words without a meaning are passed over."""
        words = _WORD.findall(command.lower())
        verb = next((word for word in words if word in VERBS), "")
        words = words[words.index(verb) + 1 :] if verb else []
        room, piece, thing = (_first(words, known) for known in (HOUSE, FURNITURE, THINGS))
        match verb:
            case "look":
                return self.look()
            case "go" if room:
                self.room = room
                return self.look()
            case "open" if piece in self._closed and piece in HOUSE[self.room]:
                self._closed.discard(piece)
                return f"You open the {piece}. {self._seen_at(piece)}"
            case "take" if self._can_take(thing):
                self.places[thing] = HAND
                return f"You take the {thing}."
            case "put" if self.places.get(thing) == HAND and self._reachable(piece):
                self.places[thing] = piece
                return f"You put the {thing} into the {piece}."
        return NOTHING_HAPPENS

    def look(self) -> str:
        """The room and what is seen in it."""
        seen = " ".join(self._seen_at(piece) for piece in HOUSE[self.room])
        return f"You are in the {self.room}. {seen} You hold {self._named(HAND)}."

    def possible(self) -> list[str]:
        """Every command that would do something, looking around left out."""
        commands = [f"go {room}" for room in HOUSE if room != self.room]
        commands += [f"open {piece}" for piece in HOUSE[self.room] if piece in self._closed]
        commands += [f"take {thing}" for thing in THINGS if self._can_take(thing)]
        held = [thing for thing in THINGS if self.places[thing] == HAND]
        reachable = [piece for piece in HOUSE[self.room] if self._reachable(piece)]
        return commands + [f"put {thing} {piece}" for thing in held for piece in reachable]

    def _can_take(self, thing: str) -> bool:
        return HAND not in self.places.values() and self._reachable(self.places.get(thing, ""))

    def _reachable(self, piece: str) -> bool:
        return piece in HOUSE[self.room] and piece not in self._closed

    def _seen_at(self, piece: str) -> str:
        return f"The {piece} is closed." if piece in self._closed else f"The {piece} holds {self._named(piece)}."

    def _named(self, place: str) -> str:
        names = [f"the {thing}" for thing, where in self.places.items() if where == place]
        return " and ".join(names) or "nothing"


def _first(words: Sequence[str], known: Container[str]) -> str:
    return next((word for word in words if word in known), "")


def room_of(piece: str) -> str:
    """The room that a piece of furniture stands in. Raises KeyError for none of the house's."""
    for room, pieces in HOUSE.items():
        if piece in pieces:
            return room
    raise KeyError(piece)
