"""A game file (`game.tw-pddl`) as plain data: what is where at the start, what can be done with it, and the goal.

The file holds a PDDL domain (the rules, the same for all games), a PDDL problem (this room), and the text grammar.
The reference engine grounds the rules with Fast Downward; here they are known (`engine.py`), and a file whose domain
says anything else is refused rather than played wrongly.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.environments.alfworld.domain import ACTIONS, Domain, parse_expressions, read_domain
from openmanus_rl.environments.alfworld.grammar import Grammar, read_grammar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Pair = tuple[str, str]

UNARY = ("openable", "opened", "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable",
         "isclean", "ishot", "iscool", "issliced", "istoggled", "ison", "isreceptacleobject")  # fmt: skip
BINARY = ("receptacletype", "objecttype", "receptacleatlocation", "objectatlocation", "inreceptacle",
          "inreceptacleobject", "cancontain", "atlocation")  # fmt: skip
_IGNORED = ("isreceptacleobjectfull", "wasinreceptacle", "checked", "examined", "full", "moveable", "=")


class GameError(ValueError):
    """A file that is not a game, or not one that the native engine can play exactly."""


@dataclass(frozen=True, slots=True)
class Game:
    """One game, never changed by playing it; ids are the file's own, in lower case."""

    name: str
    task: str
    domain: Domain
    grammar: Grammar
    agent: str
    start: str
    names: Mapping[str, str]
    facts: Mapping[str, frozenset[Any]]
    goal: tuple[tuple[Any, ...], ...]
    receptacles: tuple[str, ...]

    @property
    def task_type(self) -> str:
        """Which of the six types of task the goal is."""
        wanted = {atom[0] for group in self.goal for atom in group}
        for predicate, name in _TYPE_BY_PREDICATE.items():
            if predicate in wanted:
                return name
        return "pick_and_place_simple"


_TYPE_BY_PREDICATE = {
    "istoggled": "look_at_obj_in_light",
    "isclean": "pick_clean_then_place_in_recep",
    "ishot": "pick_heat_then_place_in_recep",
    "iscool": "pick_cool_then_place_in_recep",
    "!=": "pick_two_obj_and_place",
}


def load_game(path: Path) -> Game:
    """Read a game file; GameError names it and says what is wrong."""
    try:
        data = orjson.loads(path.read_bytes())
    except OSError as error:
        raise GameError(f"{path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise GameError(f"{path}: is not JSON: {error}") from None
    try:
        return read_game(data, str(path))
    except (ValueError, RecursionError) as error:
        raise GameError(f"{path}: {error}") from None
    except (AttributeError, LookupError, TypeError) as error:  # a list where a text belongs, an action without a name
        raise GameError(f"{path}: is not built like a game: {type(error).__name__}: {error}") from None


def read_game(data: Any, name: str) -> Game:
    """The game in the parsed content of a file."""
    wanted = ("pddl_domain", "pddl_problem", "grammar")
    missing = [key for key in wanted if not isinstance(data, dict) or not isinstance(data.get(key), str)]
    if missing:
        raise GameError(f"is not a game: it has no {', '.join(missing)}")
    grammar, task = read_grammar(data["grammar"])
    problem = re.sub(r";[^\n]*", "", data["pddl_problem"]).lower()
    init, goal = problem.find("(:init"), problem.find("(:goal")
    if not 0 <= init < goal:
        raise GameError("its PDDL problem has no (:init ...) before its (:goal ...)")
    if re.search(r"\(\s*not\b", problem[init:goal]):
        raise GameError("its start says what is not so, which the native engine does not know")
    facts = _read_facts(problem[init:goal])
    agents = facts["atlocation"]
    if len(agents) != 1:
        raise GameError(f"it has {len(agents)} agents, not one")
    [(agent, start)] = agents
    domain = read_domain(data["pddl_domain"])
    needed = ACTIONS | ({"help"} if domain.has_help else set())
    if unnamed := sorted(needed - grammar.actions.keys()):
        raise GameError(f"its grammar has no words for {', '.join(unnamed)}")
    entities = {entity for kind in BINARY for pair in facts[kind] for entity in pair}
    entities |= {entity for kind in UNARY for entity in facts[kind]}
    return Game(
        name=name,
        task=task,
        domain=domain,
        grammar=grammar,
        agent=agent,
        start=start,
        names=_display_names(entities),
        facts=facts,
        goal=_read_goal(problem[goal:]),
        receptacles=tuple(sorted({receptacle for receptacle, _ in facts["receptacleatlocation"]})),
    )


_FACT = re.compile(r"\(\s*+([\w=-]++)\s++([^()]*+)\)")  # without going back, see grammar.py


def _read_facts(text: str) -> dict[str, frozenset[Any]]:
    facts: dict[str, set[Any]] = {kind: set() for kind in (*UNARY, *BINARY)}
    known: dict[str, str] = {}  # one string per entity, however many facts name it
    for kind, arguments in _FACT.findall(text):
        words = [known.setdefault(word, word) for word in arguments.split()]
        if kind in UNARY and len(words) == 1:
            facts[kind].add(words[0])
        elif kind in BINARY and len(words) == 2:
            facts[kind].add((words[0], words[1]))
        elif kind not in _IGNORED and kind not in ("distance", "total-cost"):
            raise GameError(f"its start holds ({' '.join([kind, *words])}), which the native engine does not know")
    return {kind: _shared(frozenset(found)) for kind, found in facts.items()}


@functools.lru_cache(maxsize=256)
def _shared(facts: frozenset[Any]) -> frozenset[Any]:
    """One object for equal sets: what can contain what is the same in all rooms."""
    return facts


def _display_names(entities: set[str]) -> dict[str, str]:
    """`drawer_bar__minus_00_dot_68...` to `drawer 3`: numbers run down over the sorted ids of a kind."""
    kind_of: dict[str, str] = {}
    for entity in sorted(entities):
        kind, separator, _ = entity.partition("_bar_")
        if separator:
            kind_of[entity] = f"{kind}basin" if "basin" in entity else kind
    left = Counter(kind_of.values())
    names: dict[str, str] = {}
    for entity in sorted(entities):
        if entity in kind_of:
            kind = kind_of[entity]
            names[entity] = f"{kind} {left[kind]}"
            left[kind] -= 1
        else:
            names[entity] = f"{entity} "  # the reference leaves this space; such entities are not named in texts
    return names


def _read_goal(text: str) -> tuple[tuple[Any, ...], ...]:
    """The goal as groups of atoms; each group must have an answer. Groups do not share variables.

    An atom is (predicate, argument, ...) with variables as `?x`; ("!=", a, b) demands different entities.
    """
    [(_, formula)] = parse_expressions(text)[:1]
    groups: list[tuple[Any, ...]] = []
    for part in formula[1:] if formula[0] == "and" else [formula]:
        atoms: list[tuple[str, ...]] = []
        _flatten(part, atoms)
        groups.append(_ordered(atoms))
    return tuple(groups)


def _flatten(formula: Any, atoms: list[tuple[str, ...]]) -> None:
    head = formula[0]
    if head == "and":
        for part in formula[1:]:
            _flatten(part, atoms)
    elif head == "exists":
        _flatten(formula[2], atoms)
    elif head == "not" and formula[1][0] == "=":
        atoms.append(("!=", formula[1][1], formula[1][2]))
    elif head in UNARY or head in BINARY or head in ("holds", "holdsany"):
        atoms.append(tuple(formula))
    else:
        raise GameError(f"its goal uses ({head} ...), which the native engine does not know")


def _ordered(atoms: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Most selective first: kinds of things, then what is held and where the agent is, then the rest; != last."""
    rank = {"objecttype": 0, "holds": 1, "atlocation": 1, "receptacletype": 3, "!=": 4}
    return tuple(sorted(dict.fromkeys(atoms), key=lambda atom: rank.get(atom[0], 2)))
