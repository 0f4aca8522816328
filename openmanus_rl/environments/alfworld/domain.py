"""The PDDL domain of a game file: checked against the rules that `engine.py` plays.

Two things differ between releases and are read from the file: where objects can be cleaned, and whether there is a
`help` action. Everything else must be the known rules, word for word (apart from comments and white space).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Domain:
    """What a domain leaves open."""

    cleaning_places: frozenset[str]
    has_help: bool


def parse_expressions(text: str) -> list[Any]:
    """Nested lists from S-expressions; `;` starts a comment. `(a (b c))` is `[["a", ["b", "c"]]]`."""
    root: list[Any] = []
    stack = [root]
    for token in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text)):
        if token == "(":
            stack[-1].append([])
            stack.append(stack[-1][-1])
        elif token == ")":
            if len(stack) == 1:
                break  # what follows the expression is not ours
            stack.pop()
        else:
            stack[-1].append(token)
    return root


@functools.lru_cache(maxsize=16)
def read_domain(text: str) -> Domain:
    """Check a domain; ValueError names the first action that is not as expected."""
    expressions = parse_expressions(text.lower())
    if not expressions or expressions[0][:1] != ["define"]:
        raise ValueError("its PDDL domain cannot be read")
    entries = [entry for entry in expressions[0] if isinstance(entry, list) and entry]
    known_parts = ("domain", ":requirements", ":types", ":predicates", ":functions", ":action")
    for entry in entries:
        if entry[0] not in known_parts:
            raise ValueError(f"its PDDL domain has a {entry[0]} part, which the native engine does not know")
    actions = {entry[1]: entry[2:] for entry in entries if entry[0] == ":action"}
    has_help = actions.pop("help", None) is not None
    places: frozenset[str] = frozenset()
    if "cleanobject" in actions:
        places = _cleaning_places(actions["cleanobject"])
    known = {entry[1]: entry[2:] for entry in parse_expressions(_RULES.lower())}
    for name in sorted(actions.keys() | known.keys()):
        if actions.get(name) != known.get(name):
            raise ValueError(
                f"its PDDL domain has another {name!r} action than the native engine plays; "
                "set env.alfworld.engine=textworld"
            )
    return Domain(places, has_help)


def _cleaning_places(action: list[Any]) -> frozenset[str]:
    """Take the kinds of receptacles out of `(or (receptacleType ?r SinkBasinType) ...)`; leave `(or)` behind."""
    try:
        options = action[3][2]
        if options[0] == "or" and all(option[:2] == ["receptacletype", "?r"] for option in options[1:]):
            action[3][2] = ["or"]
            return frozenset(option[2] for option in options[1:])
    except (IndexError, TypeError):
        return frozenset()  # not of that form: the comparison with the known rules says so
    return frozenset()


# The rules, in PDDL, as the engine plays them. CleanObject's places are left out: they come from the file.
_RULES = """
(:action look :parameters (?a - agent ?l - location)
  :precondition (and (atLocation ?a ?l)) :effect (and (checked ?l)))
(:action inventory :parameters (?a - agent) :precondition () :effect (and (checked ?a)))
(:action examineReceptacle :parameters (?a - agent ?r - receptacle)
  :precondition (and (exists (?l - location) (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l))))
  :effect (and (checked ?r)))
(:action examineObject :parameters (?a - agent ?o - object)
  :precondition (or
    (exists (?l - location, ?r - receptacle)
      (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r)
           (or (not (openable ?r)) (opened ?r))))
    (holds ?a ?o))
  :effect (and (checked ?o)))
(:action GotoLocation :parameters (?a - agent ?lStart - location ?lEnd - location ?r - receptacle)
  :precondition (and (atLocation ?a ?lStart) (receptacleAtLocation ?r ?lEnd))
  :effect (and (not (atLocation ?a ?lStart)) (atLocation ?a ?lEnd) (increase (total-cost) 1)))
(:action OpenObject :parameters (?a - agent ?l - location ?r - receptacle)
  :precondition (and (openable ?r) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (not (opened ?r)))
  :effect (and (opened ?r) (checked ?r) (increase (total-cost) 1)))
(:action CloseObject :parameters (?a - agent ?l - location ?r - receptacle)
  :precondition (and (openable ?r) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (opened ?r))
  :effect (and (not (opened ?r)) (increase (total-cost) 1)))
(:action PickupObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
  :precondition (and (pickupable ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r)
                     (not (holdsAny ?a)) (or (not (openable ?r)) (opened ?r)))
  :effect (and (not (inReceptacle ?o ?r)) (holds ?a ?o) (holdsAny ?a) (not (objectAtLocation ?o ?l))
               (increase (total-cost) 1)))
(:action PutObject
  :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
  :precondition (and (holds ?a ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
                     (or (not (openable ?r)) (opened ?r))
                     (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot))
  :effect (and (inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))
               (increase (total-cost) 1)))
(:action CleanObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
  :precondition (and (cleanable ?o) (or) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (holds ?a ?o))
  :effect (and (increase (total-cost) 5) (isClean ?o)))
(:action HeatObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
  :precondition (and (heatable ?o) (or (receptacleType ?r MicrowaveType)) (atLocation ?a ?l)
                     (receptacleAtLocation ?r ?l) (holds ?a ?o))
  :effect (and (increase (total-cost) 5) (isHot ?o) (not (isCool ?o))))
(:action CoolObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
  :precondition (and (coolable ?o) (or (receptacleType ?r FridgeType)) (atLocation ?a ?l)
                     (receptacleAtLocation ?r ?l) (holds ?a ?o))
  :effect (and (increase (total-cost) 5) (isCool ?o) (not (isHot ?o))))
(:action ToggleObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
  :precondition (and (toggleable ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r))
  :effect (and (increase (total-cost) 5) (when (isOn ?o) (not (isOn ?o))) (when (not (isOn ?o)) (isOn ?o))
               (isToggled ?o)))
(:action SliceObject :parameters (?a - agent ?l - location ?co - object ?ko - object)
  :precondition (and (sliceable ?co) (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType))
                     (atLocation ?a ?l) (objectAtLocation ?co ?l) (holds ?a ?ko))
  :effect (and (increase (total-cost) 5) (isSliced ?co)))
"""

ACTIONS = frozenset(entry[1] for entry in parse_expressions(_RULES.lower()))
"""The names of the actions, in lower case."""

DOMAIN_TEXT = (
    """(define (domain alfred)
(:requirements :adl :action-costs :typing)
(:types agent location receptacle object rtype otype)
(:predicates
  (atLocation ?a - agent ?l - location) (receptacleAtLocation ?r - receptacle ?l - location)
  (objectAtLocation ?o - object ?l - location) (openable ?r - receptacle) (opened ?r - receptacle)
  (inReceptacle ?o - object ?r - receptacle) (isReceptacleObject ?o - object)
  (inReceptacleObject ?innerObject - object ?outerObject - object) (checked ?r - receptacle)
  (receptacleType ?r - receptacle ?t - rtype) (canContain ?rt - rtype ?ot - otype) (objectType ?o - object ?t - otype)
  (holds ?a - agent ?o - object) (holdsAny ?a - agent) (isClean ?o - object) (cleanable ?o - object)
  (isHot ?o - object) (heatable ?o - object) (isCool ?o - object) (coolable ?o - object) (pickupable ?o - object)
  (toggleable ?o - object) (isOn ?o - object) (isToggled ?o - object) (sliceable ?o - object) (isSliced ?o - object))
(:functions (distance ?from ?to) (total-cost) - number)
"""
    + _RULES.replace("(and (cleanable ?o) (or) ", "(and (cleanable ?o) (or (receptacleType ?r SinkBasinType)) ")
    + ")\n"
)
"""The whole domain, for games that we write."""
