"""The rules of ALFWorld on plain Python data: the same texts and the same commands as TextWorld, hundreds of times
faster.

Why our own: TextWorld grounds each game with a planner (a second to load), keeps all facts as objects, and re-derives
every text and every command with a parser at each step (tens of milliseconds). Here a step touches the few sets it
changes. `tests/environments/alfworld` compares the two command by command.

Details of the reference that a reader would not guess:

- `examine OBJECT` works on a held object only: the rule's other branch has a typing error (`location,`) that empties
  it.
- Going to where one is already is not offered: the planner drops an action whose effect is its own precondition.
  Others that change nothing, like cooling what is cool, are offered.
- "not" in a text's query is a fact of its own. It becomes true when an action makes the opposite false, and is not
  true before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openmanus_rl.environments.alfworld.game import UNARY
from openmanus_rl.environments.alfworld.grammar import Literal, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from openmanus_rl.environments.alfworld.game import Game
    from openmanus_rl.environments.alfworld.grammar import Binding

NOTHING_HAPPENS = "Nothing happens."


class Relation:
    """A set of pairs that can be asked from both sides."""

    __slots__ = ("backward", "forward")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.forward: dict[str, set[str]] = {}
        self.backward: dict[str, set[str]] = {}
        for left, right in pairs:
            self.add(left, right)

    def copy(self) -> Relation:
        """A relation of its own with the same pairs."""
        made = Relation()
        made.forward = {left: set(rights) for left, rights in self.forward.items()}
        made.backward = {right: set(lefts) for right, lefts in self.backward.items()}
        return made

    def add(self, left: str, right: str) -> None:
        """Make it hold."""
        self.forward.setdefault(left, set()).add(right)
        self.backward.setdefault(right, set()).add(left)

    def discard(self, left: str, right: str) -> None:
        """Make it not hold."""
        if (left, right) in self:
            self.forward[left].discard(right)
            self.backward[right].discard(left)

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return pair[1] in self.forward.get(pair[0], ())

    def find(self, left: str | None, right: str | None) -> list[tuple[str, ...]]:
        """All pairs that match, sorted; None matches anything."""
        if left is not None:
            if right is not None:
                return [(left, right)] if (left, right) in self else []
            return [(left, other) for other in sorted(self.forward.get(left, ()))]
        if right is not None:
            return [(other, right) for other in sorted(self.backward.get(right, ()))]
        return sorted((one, other) for one, others in self.forward.items() for other in others)


class Layout:
    """What playing never changes, indexed once per game and shared by everyone who plays it."""

    def __init__(self, game: Game) -> None:
        facts = game.facts
        self.game = game
        self.static: dict[str, Relation] = {
            kind: Relation(facts[kind])
            for kind in ("receptacleatlocation", "receptacletype", "objecttype", "inreceptacleobject")
        }
        self.location_of: dict[str, str] = {}
        for receptacle, location in facts["receptacleatlocation"]:
            if self.location_of.setdefault(receptacle, location) != location:
                raise ValueError(f"{game.name}: {receptacle} is at two locations")
        self.receptacles_at: dict[str, list[str]] = {}
        for receptacle in game.receptacles:
            self.receptacles_at.setdefault(self.location_of[receptacle], []).append(receptacle)
        accepts = Relation(facts["cancontain"])
        kind_of: dict[str, str] = dict(facts["receptacletype"])
        self.accepts = {r: accepts.forward.get(kind_of.get(r, ""), set()) for r in game.receptacles}
        self.object_kinds = self.static["objecttype"].forward
        self.knives = {o for o, kind in facts["objecttype"] if kind in ("knifetype", "butterknifetype")}

        def places(kinds: Collection[str]) -> frozenset[str]:
            return frozenset(r for r in game.receptacles if kind_of.get(r, "") in kinds)

        # (action, places, objects)
        self.treatments = (
            ("cleanobject", places(game.domain.cleaning_places), facts["cleanable"]),
            ("heatobject", places(["microwavetype"]), facts["heatable"]),
            ("coolobject", places(["fridgetype"]), facts["coolable"]),
        )
        self.contents = Relation(facts["inreceptacle"])
        self.object_places = Relation(facts["objectatlocation"])
        self.go_commands = {r: self.command("gotolocation", r=r, lend=self.location_of[r]) for r in game.receptacles}
        self.intro = ""

    def command(self, action: str, **binding: str) -> str:
        """The words of an action on these entities."""
        template = self.game.grammar.actions[action].template
        if (
            "[" in template
        ):  # the grammar lists the receptacle by a query; with the receptacle given it is just its name
            return template.partition("[")[0] + self.game.names[binding["r"]]
        return template.format(**{variable: self.game.names[entity] for variable, entity in binding.items()})


class Engine:
    """One play-through. `observation`, `commands` and `won` describe the present; `step` moves on."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        game = layout.game
        self.location = game.start
        self.holding: str | None = None
        self.contents = layout.contents.copy()
        self.object_places = layout.object_places.copy()
        self.not_in = Relation()
        self.taken: set[str] = set()
        self.flags: dict[str, set[str]] = {
            kind: set(game.facts[kind])
            for kind in ("opened", "isclean", "ishot", "iscool", "issliced", "istoggled", "ison")
        }
        self.relations = {
            "inreceptacle": self.contents,
            "objectatlocation": self.object_places,
            "not_inreceptacle": self.not_in,
            **layout.static,
        }
        if not layout.intro:
            layout.intro = self._introduction()
        self.observation = layout.intro
        self.won = self._goal_holds()
        self._commands: dict[str, tuple[str, Binding]] | None = None

    # --- what is asked of the state ---------------------------------------------------------------------

    def find(self, predicate: str, arguments: tuple[str | None, ...]) -> list[tuple[str, ...]]:
        """All facts that match, sorted: the grammar's and the goal's view of the state."""
        if len(arguments) == 2:
            left, right = arguments
            if predicate in self.relations:
                return self.relations[predicate].find(left, right)
            return self._find_agent(predicate, left, right)
        [argument] = arguments
        if predicate == "holdsany":
            return (
                [(self.layout.game.agent,)]
                if self.holding is not None and argument in (None, self.layout.game.agent)
                else []
            )
        if predicate.startswith("not_"):
            return []  # of the facts about single things, none that a text asks for is ever made false
        members = self.flags.get(predicate) if predicate in self.flags else self.layout.game.facts.get(predicate)
        if members is None or predicate not in UNARY:
            raise ValueError(f"{self.layout.game.name}: a text asks for {predicate!r}, which is not known")
        if argument is not None:
            return [(argument,)] if argument in members else []
        return [(member,) for member in sorted(members)]

    def describe(self, entity: str, attribute: str) -> str:
        """An entity's `name`, its article, or its id."""
        if attribute == "name":
            return self.layout.game.names[entity]
        return {"indefinite": "a", "definite": "the", "id": entity}[attribute]

    def _find_agent(self, predicate: str, agent: str | None, other: str | None) -> list[tuple[str, ...]]:
        """Where the agent is, and what it holds."""
        mine = self.layout.game.agent
        held = {"atlocation": self.location, "holds": self.holding}
        if predicate not in held:
            raise ValueError(f"{self.layout.game.name}: a text asks for {predicate!r}, which is not known")
        present = held[predicate]
        if present is None or agent not in (None, mine) or other not in (None, present):
            return []
        return [(mine, present)]

    def _introduction(self) -> str:
        game = self.layout.game
        symbols = list(game.grammar.rules["intro"][0].symbols)
        return game.grammar.render(
            tuple(Literal(game.task) if symbol == Rule("task") else symbol for symbol in symbols), self, {}
        )

    def _goal_holds(self) -> bool:
        return all(self._satisfiable(group, 0, {}) for group in self.layout.game.goal)

    def _satisfiable(self, atoms: tuple[tuple[str, ...], ...], depth: int, binding: Binding) -> bool:
        if depth == len(atoms):
            return True
        predicate, *arguments = atoms[depth]
        if predicate == "!=":
            left, right = (binding.get(argument, argument) for argument in arguments)
            return left != right and self._satisfiable(atoms, depth + 1, binding)
        pattern = tuple(binding.get(a) if a.startswith("?") else a for a in arguments)
        for found in self.find(predicate, pattern):
            new = {a: entity for a, entity in zip(arguments, found, strict=True) if a.startswith("?")}
            if self._satisfiable(atoms, depth + 1, binding | new):
                return True
        return False

    # --- what can be done -------------------------------------------------------------------------------

    @property
    def commands(self) -> dict[str, tuple[str, Binding]]:
        """Every admissible command, with the action and the entities that it means."""
        if self._commands is None:
            self._commands = self._list_commands()
        return self._commands

    def _list_commands(self) -> dict[str, tuple[str, Binding]]:
        layout, game = self.layout, self.layout.game
        here = layout.receptacles_at.get(self.location, [])
        found: dict[str, tuple[str, Binding]] = {}

        def offer(action: str, **binding: str) -> None:
            found[layout.command(action, **binding)] = (action, binding)

        for receptacle, text in layout.go_commands.items():
            location = layout.location_of[receptacle]
            if location != self.location:
                found[text] = ("gotolocation", {"r": receptacle, "lstart": self.location, "lend": location})
        offer("look", l=self.location)
        offer("inventory")
        if game.domain.has_help:
            offer("help")
        held = self.holding
        if held is not None:
            offer("examineobject", o=held)
        opened, openable = self.flags["opened"], game.facts["openable"]
        for receptacle in here:
            offer("examinereceptacle", r=receptacle)
            if receptacle in openable:
                offer("closeobject" if receptacle in opened else "openobject", r=receptacle, l=self.location)
            inside = self.contents.backward.get(receptacle, ())
            for item in inside:
                if item in game.facts["toggleable"]:
                    offer("toggleobject", o=item, r=receptacle, l=self.location)
            if receptacle in openable and receptacle not in opened:
                continue
            if held is None:
                for item in inside:
                    if item in game.facts["pickupable"]:
                        offer("pickupobject", o=item, r=receptacle, l=self.location)
            elif not layout.accepts[receptacle].isdisjoint(layout.object_kinds.get(held, ())):
                offer("putobject", o=held, r=receptacle, l=self.location)
        if held is not None:
            self._offer_treatments(held, here, offer)
        return found

    def _offer_treatments(self, held: str, here: list[str], offer: Callable[..., None]) -> None:
        for action, places, objects in self.layout.treatments:
            if held in objects:
                for receptacle in here:
                    if receptacle in places:
                        offer(action, o=held, r=receptacle, l=self.location)
        if held in self.layout.knives:
            sliceable = self.layout.game.facts["sliceable"]
            for item in self.object_places.backward.get(self.location, ()):
                if item in sliceable:
                    offer("sliceobject", co=item, ko=held, l=self.location)

    # --- doing it ---------------------------------------------------------------------------------------

    def step(self, command: str) -> str:
        """Carry out a command; anything that is not admissible changes nothing."""
        chosen = self.commands.get(command.strip())
        if chosen is None:
            self.observation = NOTHING_HAPPENS
            return self.observation
        action, binding = chosen
        if self._apply(action, binding):
            self._commands = None
            self.won = self._goal_holds()
        game = self.layout.game
        self.observation = game.grammar.render(
            game.grammar.actions[action].feedback, self, {"a": game.agent, **binding}
        )
        return self.observation

    def _apply(self, action: str, binding: Binding) -> bool:
        """Change the state; False if the action only looks."""
        if action == "gotolocation":
            self.location = binding["lend"]
        elif action == "openobject":
            self.flags["opened"].add(binding["r"])
        elif action == "closeobject":
            self.flags["opened"].discard(binding["r"])
        elif action == "pickupobject":
            item, receptacle = binding["o"], binding["r"]
            self.contents.discard(item, receptacle)
            self.not_in.add(item, receptacle)
            self.object_places.discard(item, self.location)
            self.holding = item
            self.taken.add(item)
        elif action == "putobject":
            item, receptacle = binding["o"], binding["r"]
            self.contents.add(item, receptacle)
            self.not_in.discard(item, receptacle)
            self.object_places.add(item, self.location)
            self.holding = None
        elif action in ("cleanobject", "heatobject", "coolobject"):
            self._treat(action, binding["o"])
        elif action == "toggleobject":
            self.flags["ison"].symmetric_difference_update((binding["o"],))
            self.flags["istoggled"].add(binding["o"])
        elif action == "sliceobject":
            self.flags["issliced"].add(binding["co"])
        else:
            return False
        return True

    def _treat(self, action: str, item: str) -> None:
        if action == "cleanobject":
            self.flags["isclean"].add(item)
        elif action == "heatobject":
            self.flags["ishot"].add(item)
            self.flags["iscool"].discard(item)
        else:
            self.flags["iscool"].add(item)
            self.flags["ishot"].discard(item)

    def milestones(self) -> int:
        """How many steps towards the goal are done: a target was taken, was treated, is in its place; the lamp is
        on.
        """
        game, done = self.layout.game, 0
        atoms = [atom for group in game.goal for atom in group]
        kinds = {atom[2] for atom in atoms if atom[0] == "objecttype"}
        targets = {item for kind in kinds for item in self.layout.static["objecttype"].backward.get(kind, ())}
        done += bool(targets & self.taken)
        for flag in ("isclean", "ishot", "iscool", "istoggled"):
            done += any(atom[0] == flag for atom in atoms) and bool(targets & self.flags[flag])
        places = {atom[2] for atom in atoms if atom[0] == "receptacletype"}
        if places:
            receptacles = {r for kind in places for r in self.layout.static["receptacletype"].backward.get(kind, ())}
            inside = max((len(targets & self.contents.backward.get(r, set())) for r in receptacles), default=0)
            done += min(inside, 2 if any(atom[0] == "!=" for atom in atoms) else 1)
        return done

    def state_key(self) -> str:
        """The exact state, as a text: two play-throughs of a game with equal keys cannot be told apart from here on."""
        layout, names = self.layout, self.layout.game.names
        parts = [self.location, self.holding or ""]
        for kind, members in self.flags.items():
            changed = members ^ layout.game.facts[kind]
            parts.append(f"{kind}:{','.join(sorted(names[m] for m in changed))}")
        for mark, now, start in (
            (">", self.contents, layout.contents),
            ("@", self.object_places, layout.object_places),
        ):
            parts += sorted(
                f"{names[item]}{mark}{'|'.join(sorted(names[place] for place in places))}"
                for item, places in now.forward.items()
                if places != start.forward.get(item, set())
            )
        # Having been taken out of a receptacle shows in `look` while the object lies beside it, at a shared location.
        parts += sorted(
            f"{names[item]}<{names[receptacle]}"
            for item, receptacles in self.not_in.forward.items()
            for receptacle in receptacles
            if len(layout.receptacles_at[layout.location_of[receptacle]]) > 1
        )
        return ";".join(parts)
