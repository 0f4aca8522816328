"""Games for where no dataset is: rooms with plausible furniture, things in likely places, a task that can be solved.

A game is named by its split and a number, and everything about it follows from that name and the seed: the same name
is the same game, on any machine. Rooms are numbered as in the dataset: 7 to 30 are for training and `valid_seen`, 1
to 6 for `valid_unseen`. Which objects are to be brought where is disjoint too: a pair that `valid_unseen` asks for is
never asked for in training.
"""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from openmanus_rl.environments.alfworld.vocabulary import (
    ACCEPTS,
    DOORS,
    FIXTURES,
    ROOM_OBJECTS,
    ROOM_THINGS,
    ROOMS,
    STAND_AT,
    TASK_ROOMS,
    TASK_TYPES,
    TREATMENTS,
    USUAL_PLACES,
)

Size = Literal["micro", "mini", "full"]
Split = Literal["train", "valid_seen", "valid_unseen"]

# Receptacles and things besides those the task needs; None: as many as the room has.
SIZES: dict[str, tuple[int | None, tuple[int, int] | None]] = {
    "micro": (3, (2, 2)),
    "mini": (6, (4, 6)),
    "full": (None, None),
}
# Of so many rooms, one has more of something than is usual.
LARGE = 6

TRAINING_ROOMS, HELD_OUT_ROOMS = range(7, 31), range(1, 7)

TEMPLATES: dict[str, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {obj} in {recep}.", "put some {obj} on {recep}."),
    "look_at_obj_in_light": ("look at {obj} under the {toggle}.", "examine the {obj} with the {toggle}."),
    "pick_clean_then_place_in_recep": ("put a clean {obj} in {recep}.", "clean some {obj} and put it in {recep}."),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}.", "heat some {obj} and put it in {recep}."),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}.", "cool some {obj} and put it in {recep}."),
    "pick_two_obj_and_place": ("put two {obj} in {recep}.", "find two {obj} and put them in {recep}."),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """An object and the receptacle it starts on, both by their position in the room's lists."""

    kind: str
    place: int


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A generated game before it becomes a game file."""

    name: str
    task_type: str
    room: str
    room_number: int
    receptacles: tuple[str, ...]
    openable: tuple[bool, ...]
    locations: tuple[int, ...]
    """Where each receptacle stands; some of a full-size room stand together."""
    things: tuple[Thing, ...]
    target: str
    destination: str | None
    goal_text: str


def generate(name: str, split: Split, size: Size = "full", seed: int = 0) -> Blueprint:
    """The game of this name. Names are free; `split` decides which rooms and pairs it may use."""
    rng = random.Random(f"{seed}/{size}/{split}/{name}")
    while True:
        blueprint = _attempt(name, split, size, seed, rng)
        if blueprint is not None:
            return blueprint


def is_held_out(target: str, destination: str) -> bool:
    """Whether bringing this kind of object to this kind of receptacle is asked for in valid_unseen only: a fifth of
    pairs, but no receptacle that takes one kind only. Nobody could learn that things are brought there at all.
    """
    if len(ACCEPTS.get(destination, ())) == 1:
        return False
    return hashlib.sha256(f"{target}->{destination}".encode()).digest()[0] % 5 == 0


def _attempt(name: str, split: Split, size: Size, seed: int, rng: random.Random) -> Blueprint | None:
    task_type = rng.choice(TASK_TYPES)
    room = rng.choice(TASK_ROOMS[task_type])
    number = rng.choice(HELD_OUT_ROOMS if split == "valid_unseen" else TRAINING_ROOMS)
    furniture = _furniture(room, number, seed)
    target, destination = _choose_pair(task_type, room, furniture, split == "valid_unseen", rng)
    if target is None:
        return None
    limit, distractors = SIZES[size]
    least, most = distractors or ROOM_THINGS[room]
    needed = [kind for kind in (destination, TREATMENTS[task_type][2] if task_type in TREATMENTS else None) if kind]
    receptacles = _some(furniture, needed, target, destination, limit, task_type, rng)
    if receptacles is None:
        return None
    things = _place_things(task_type, room, receptacles, target, destination, rng.randint(least, most), rng)
    if things is None:
        return None
    locations = tuple(range(len(receptacles)))
    if limit is None:
        things += _fixtures(room, receptacles, rng)
        receptacles, locations = _arrange(receptacles, f"{seed}/{room}/{number}/arranged")
    # An eighth of all arrangements is kept for valid_seen: none of its games is a training game under another name.
    arrangement = repr((task_type, room, number, receptacles, things, target, destination))
    kept_back = hashlib.sha256(arrangement.encode()).digest()[0] % 8 == 0
    if split != "valid_unseen" and kept_back != (split == "valid_seen"):
        return None
    template = rng.choice(TEMPLATES[task_type])
    return Blueprint(
        name=name,
        task_type=task_type,
        room=room,
        room_number=number,
        receptacles=tuple(kind for kind, _ in receptacles),
        openable=tuple(opens for _, opens in receptacles),
        locations=locations,
        things=tuple(things),
        target=target,
        destination=destination,
        goal_text=template.format(obj=target, recep=destination or "", toggle="desklamp"),
    )


@functools.lru_cache(maxsize=1024)
def _furniture(room: str, number: int, seed: int) -> tuple[tuple[str, bool], ...]:
    """The receptacles of a room and whether they open: the same for every game that is set in it.

    No held-out room is furnished like a training room.
    """
    taken: set[tuple[tuple[str, bool], ...]] = set()
    if number in HELD_OUT_ROOMS:
        taken = {_draw_furniture(room, f"{seed}/{room}/{other}") for other in TRAINING_ROOMS}
    name = f"{seed}/{room}/{number}"
    while (furniture := _draw_furniture(room, name)) in taken:
        name += "+"
    return furniture


def _draw_furniture(room: str, name: str) -> tuple[tuple[str, bool], ...]:
    rng = random.Random(name)
    doors = rng.random() < 0.85
    opens = {"fridge": True, "microwave": True, "safe": True, "cabinet": doors, "drawer": doors}
    return tuple(
        (kind, opens.get(kind, False))
        for kind, (least, most, extreme) in ROOMS[room].items()
        for _ in range(rng.randint(least, extreme if rng.randrange(LARGE) == 0 else most))
    )


def _arrange(receptacles: list[tuple[str, bool]], name: str) -> tuple[list[tuple[str, bool]], tuple[int, ...]]:
    """Doors on some cabinets and drawers only, receptacles that stand together: the same in every game of a room."""
    rng = random.Random(name)
    with_doors = {kind: rng.choices(list(parts), list(parts.values()))[0] for kind, parts in DOORS.items()}
    arranged: list[tuple[str, bool]] = []
    locations: list[int] = []
    last: dict[str, int] = {}  # where the last one of a kind stands
    for k, (kind, opens) in enumerate(receptacles):
        beside, often = STAND_AT.get(kind, ("", 0))
        last[kind] = last[beside] if beside in last and rng.randrange(100) < often else k
        locations.append(last[kind])
        arranged.append((kind, rng.random() < with_doors[kind] if kind in with_doors else opens))
    return arranged, tuple(locations)


def _choose_pair(
    task_type: str, room: str, furniture: tuple[tuple[str, bool], ...], held_out: bool, rng: random.Random
) -> tuple[str | None, str | None]:
    kinds = {kind for kind, _ in furniture}
    if task_type == "look_at_obj_in_light":
        # The pair is object and lamp; what is held out is the object.
        options = [o for o in ROOM_OBJECTS[room] if is_held_out(o, "desklamp") == held_out]
        return (rng.choice(options), None) if options and kinds & USUAL_PLACES["desklamp"].keys() else (None, None)
    treatable = TREATMENTS[task_type][1] if task_type in TREATMENTS else None
    appliance = TREATMENTS[task_type][2] if task_type in TREATMENTS else None
    if appliance is not None and appliance not in kinds:
        return None, None
    pairs = [
        (target, destination)
        for target in ROOM_OBJECTS[room]
        if treatable is None or target in treatable
        for destination in sorted(kinds)
        if destination != appliance and target in ACCEPTS.get(destination, ())
        if is_held_out(target, destination) == held_out
        if any(place != destination for place in USUAL_PLACES[target].keys() & kinds)
    ]
    return rng.choice(pairs) if pairs else (None, None)


def _some(
    furniture: tuple[tuple[str, bool], ...],
    needed: list[str],
    target: str,
    destination: str | None,
    limit: int | None,
    task_type: str,
    rng: random.Random,
) -> list[tuple[str, bool]] | None:
    """The room's receptacles, or a few of them: those the task needs, a place for the target, and others by chance."""
    if limit is None:
        return list(furniture)
    pool = list(furniture)
    rng.shuffle(pool)
    chosen: list[tuple[str, bool]] = []

    def take(kinds: set[str]) -> bool:
        for entry in pool:
            if entry[0] in kinds:
                pool.remove(entry)
                chosen.append(entry)
                return True
        return False

    for kind in needed:
        if not take({kind}):
            return None
    if task_type == "look_at_obj_in_light" and not take(set(USUAL_PLACES["desklamp"])):
        return None
    if not take(USUAL_PLACES[target].keys() - {destination}):
        return None
    chosen += pool[: max(0, limit - len(chosen))]
    if len(chosen) != limit:
        return None
    rng.shuffle(chosen)
    return chosen


def _place_things(
    task_type: str,
    room: str,
    receptacles: list[tuple[str, bool]],
    target: str,
    destination: str | None,
    distractors: int,
    rng: random.Random,
) -> list[Thing] | None:
    wanted = [target] * (2 if task_type == "pick_two_obj_and_place" else 1)
    if rng.random() < 0.3 and distractors > 2:
        wanted.append(target)
    if task_type == "look_at_obj_in_light":
        wanted.append("desklamp")
    others = [kind for kind in ROOM_OBJECTS[room] if kind != target]
    things: list[Thing] = []
    for kind in wanted:
        place = _place(kind, receptacles, destination if kind == target else None, rng)
        if place is None:
            return None
        things.append(Thing(kind, place))
    for _ in range(distractors):
        kind = rng.choice(others)
        place = _place(kind, receptacles, None, rng)
        if place is not None:
            things.append(Thing(kind, place))
    return things


def _fixtures(room: str, receptacles: list[tuple[str, bool]], rng: random.Random) -> list[Thing]:
    """What stands in some rooms whatever the task is, lamps among it."""
    found = [kind for kind, often in FIXTURES[room].items() if rng.randrange(100) < often]
    places = [(kind, _place(kind, receptacles, None, rng)) for kind in found]
    return [Thing(kind, place) for kind, place in places if place is not None]


def _place(kind: str, receptacles: list[tuple[str, bool]], never: str | None, rng: random.Random) -> int | None:
    """A likely receptacle for this kind of object; the target never starts where it is to be brought."""
    usual = USUAL_PLACES[kind]
    options = [k for k, (receptacle, _) in enumerate(receptacles) if receptacle in usual and receptacle != never]
    if not options:
        return None
    return rng.choices(options, [usual[receptacles[k][0]] for k in options])[0]
