"""Generated games as `game.tw-pddl` files: our engine reads them, and so does the reference AlfredTWEnv."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Literal

from openmanus_rl.environments.alfworld.domain import DOMAIN_TEXT
from openmanus_rl.environments.alfworld.texts import GRAMMAR_TEXT, WORDINGS
from openmanus_rl.environments.alfworld.vocabulary import (
    ACCEPTS,
    CLEANABLE,
    CONTAINERS,
    COOLABLE,
    HEATABLE,
    IMMOVABLE,
    LAMPS,
    ROOMS,
    SLICEABLE,
    USUAL_PLACES,
)

if TYPE_CHECKING:
    from pathlib import Path

    from openmanus_rl.environments.alfworld.generator import Blueprint

Wording = Literal["old", "new"]

# First floor-plan number of each kind of room, as in the dataset's folder names.
FLOOR_PLANS = {"kitchen": 0, "livingroom": 200, "bedroom": 300, "bathroom": 400}


def game_data(blueprint: Blueprint, wording: Wording = "new") -> dict[str, Any]:
    """The content of the game's file."""
    grammar = GRAMMAR_TEXT
    for key, text in WORDINGS[wording].items():
        grammar = grammar.replace(f"<{key}>", text)
    task = json.dumps(f"Your task is to: {blueprint.goal_text}")
    return {
        "pddl_domain": DOMAIN_TEXT,
        "grammar": grammar.replace('"<task>"', task),
        "pddl_problem": _problem(blueprint),
        "solvable": True,
    }


def export_game(blueprint: Blueprint, folder: Path, wording: Wording = "new") -> Path:
    """Write the game in the dataset's layout below `folder` (a split): TASK-OBJECT-None-RECEPTACLE-ROOM/TRIAL/."""
    room = FLOOR_PLANS[blueprint.room] + blueprint.room_number
    last = blueprint.destination or "desklamp"
    trial = folder / f"{blueprint.task_type}-{blueprint.target}-None-{last}-{room}" / f"trial_{blueprint.name}"
    trial.mkdir(parents=True, exist_ok=True)
    facts = {"task_type": blueprint.task_type, "task_id": trial.name, "turk_annotations": {"anns": []}}
    (trial / "traj_data.json").write_text(json.dumps(facts), encoding="utf-8")
    path = trial / "game.tw-pddl"
    path.write_text(json.dumps(game_data(blueprint, wording)), encoding="utf-8")
    return path


def _problem(blueprint: Blueprint) -> str:
    rng = random.Random(f"coordinates/{blueprint.name}")
    coordinates = iter(rng.sample(range(1000, 9999), 3 * (len(blueprint.receptacles) + len(blueprint.things)) + 3))

    def mangled(kind: str) -> str:
        """`Mug|+01.23|+00.45|-02.10` in the form that PDDL allows."""
        numbers = [next(coordinates) for _ in range(3)]
        signs = [("_plus_", "_minus_")[number % 2] for number in numbers]
        position = "_bar_".join(f"{s}{n // 100:02d}_dot_{n % 100:02d}" for s, n in zip(signs, numbers, strict=True))
        owner, _, basin = kind.partition("basin")
        return f"{owner}_bar_{position}" + (f"_bar_{kind}" if basin == "" and kind != owner else "")

    receptacles = [mangled(kind) for kind in blueprint.receptacles]
    things = [mangled(thing.kind) for thing in blueprint.things]
    locations = [f"loc_bar_{k + 1}_bar_{k % 7}_bar_{k % 4}_bar_30" for k in range(len(receptacles) + 1)]
    *stands, start = locations
    places = [stands[location] for location in blueprint.locations]
    object_kinds, receptacle_kinds = _all_kinds()
    declared = [
        "agent1 - agent",
        *(f"{location} - location" for location in locations),
        *(f"{kind}type - otype" for kind in object_kinds),
        *(f"{kind}type - rtype" for kind in receptacle_kinds),
        *(f"{receptacle} - receptacle" for receptacle in receptacles),
        *(f"{thing} - object" for thing in things),
    ]
    facts = [f"(atLocation agent1 {start})"]
    for receptacle, kind, opens, place in zip(
        receptacles, blueprint.receptacles, blueprint.openable, places, strict=True
    ):
        facts += [f"(receptacleType {receptacle} {kind}type)", f"(receptacleAtLocation {receptacle} {place})"]
        facts += [f"(openable {receptacle})"] if opens else []
    for name, thing in zip(things, blueprint.things, strict=True):
        facts += [f"(objectType {name} {thing.kind}type)", f"(inReceptacle {name} {receptacles[thing.place]})"]
        facts.append(f"(objectAtLocation {name} {places[thing.place]})")
        facts += [f"({affordance} {name})" for affordance in _affordances(thing.kind)]
    facts += [f"(canContain {r}type {o}type)" for r, accepted in ACCEPTS.items() for o in sorted(accepted)]
    listed, held = "\n  ".join(declared), "\n  ".join(facts)
    return (
        f"(define (problem {_identifier(blueprint.name)})\n(:domain alfred)\n(:objects\n  {listed}\n)\n"
        f"(:init\n  {held}\n)\n(:goal {_goal(blueprint)})\n)\n"
    )


def _identifier(name: str) -> str:
    return "plan_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def _all_kinds() -> tuple[list[str], list[str]]:
    """Every kind that the domain or a table names must be declared, used or not."""
    objects = set(USUAL_PLACES) | {kind for accepted in ACCEPTS.values() for kind in accepted} | LAMPS
    receptacles = set(ACCEPTS) | {kind for furniture in ROOMS.values() for kind in furniture} | {"sink"}
    return sorted(objects), sorted(receptacles)


def _affordances(kind: str) -> list[str]:
    if kind in LAMPS:
        return ["toggleable"]
    if kind in IMMOVABLE:
        return []
    able = [
        name
        for name, kinds in (
            ("cleanable", CLEANABLE),
            ("heatable", HEATABLE),
            ("coolable", COOLABLE),
            ("sliceable", SLICEABLE),
            ("isReceptacleObject", CONTAINERS),
        )
        if kind in kinds
    ]
    return ["pickupable", *able]


def _goal(blueprint: Blueprint) -> str:
    target, destination = f"{blueprint.target}type", f"{blueprint.destination}type"
    placed = f"(objectType ?o {target}) (receptacleType ?r {destination}) (inReceptacle ?o ?r)"
    state = {
        "pick_and_place_simple": "",
        "pick_clean_then_place_in_recep": "(cleanable ?o) (isClean ?o) ",
        "pick_heat_then_place_in_recep": "(heatable ?o) (isHot ?o) ",
        "pick_cool_then_place_in_recep": "(coolable ?o) (isCool ?o) ",
    }
    if blueprint.task_type in state:
        return f"(and (exists (?r - receptacle) (exists (?o - object) (and {state[blueprint.task_type]}{placed}))))"
    if blueprint.task_type == "look_at_obj_in_light":
        lit = (
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot desklamptype) "
            "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
        )
        return f"(and {lit} (exists (?o - object ?a - agent) (and (objectType ?o {target}) (holds ?a ?o))))"
    second = f"(exists (?o2 - object) (and (not (= ?o ?o2)) {placed.replace('?o ', '?o2 ')}))"
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {placed} {second}))))"
