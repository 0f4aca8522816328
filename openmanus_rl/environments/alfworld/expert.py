"""An expert that plays ALFWorld from the texts alone: it searches likely places first and remembers what it saw.

It understands the templated tasks ("put two mug in desk."), in both wordings of the commands, since it picks commands
from the admissible ones. Tasks in people's own words are beyond it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openmanus_rl.environments.alfworld.vocabulary import USUAL_PLACES

if TYPE_CHECKING:
    from openmanus_rl.environments.base import Info

_TASKS = (
    (r"(?:look at|examine the) (\w+) (?:under|with) the (\w+)", "light"),
    (r"(?:put a clean|clean some) (\w+) (?:in|and put it in) (\w+)", "clean"),
    (r"(?:put a hot|heat some) (\w+) (?:in|and put it in) (\w+)", "heat"),
    (r"(?:put a cool|cool some) (\w+) (?:in|and put it in) (\w+)", "cool"),
    (r"(?:put two|find two) (\w+) (?:in|and put them in) (\w+)", "two"),
    (r"put (?:a|some) (\w+) (?:in|on) (\w+)", "place"),
)
_APPLIANCES = {"clean": ("sinkbasin",), "heat": ("microwave",), "cool": ("fridge",)}
_TAKEN = re.compile(r"You pick up the (\w+ \d+) from the (\w+ \d+)")
_PUT = re.compile(r"You (?:put|move) the (\w+ \d+) (?:in/on|to) the (\w+ \d+)")
_TREATED = re.compile(r"You (?:clean|heat|cool) the (\w+ \d+) using")
_SEEN = re.compile(r"(?:On the ([\w ]+?), you see|The ([\w ]+?) is open\. In it, you see) (.*?)\.(?:\s|$)")


@dataclass
class AlfworldExpert:
    """One episode's player. All it knows it read in observations and in the lists of admissible commands."""

    verb: str = ""
    target: str = ""
    destination: str = ""
    receptacles: set[str] = field(default_factory=set)
    seen: dict[str, list[str]] = field(default_factory=dict)
    treated: set[str] = field(default_factory=set)
    visited: set[str] = field(default_factory=set)
    put_into: str | None = None
    held: str | None = None
    here: tuple[str, ...] = ()
    searches: int = 0

    def act(self, observation: str, info: Info) -> str:
        """The next command."""
        commands: tuple[str, ...] = info["admissible_actions"]
        if not self.verb:
            self._read_task(observation)
        self.receptacles.update(command[6:] for command in commands if command.startswith("go to "))
        near = [command[8:] for command in commands if command.startswith("examine ")]
        self.here = tuple(thing for thing in near if thing in self.receptacles)
        self.held = next((thing for thing in near if thing not in self.receptacles), None)
        self._remember(observation)
        return self._choose(commands)

    def _read_task(self, observation: str) -> None:
        task = observation.partition("Your task is to: ")[2].strip().rstrip(".")
        for pattern, verb in _TASKS:
            if match := re.fullmatch(pattern, task):
                self.verb, self.target, self.destination = verb, match[1], match[2]
                return
        raise ValueError(f"the expert does not understand the task {task!r}")

    def _remember(self, observation: str) -> None:
        for on, inside, listed in _SEEN.findall(observation):
            self.seen[on or inside] = re.findall(r"an? (\w+ \d+)", listed)
            self.visited.add(on or inside)
        for thing, place in _TAKEN.findall(observation):
            if thing in self.seen.get(place, ()):
                self.seen[place].remove(thing)
        for thing, place in _PUT.findall(observation):
            self.seen.setdefault(place, []).append(thing)
            if _kind(thing) == self.target and _kind(place) == self.destination:
                self.put_into = place
        self.treated.update(_TREATED.findall(observation))

    def _choose(self, commands: tuple[str, ...]) -> str:
        if self.held is None:
            return self._fetch(commands)
        if _kind(self.held) != self.target:
            return self._drop(commands)
        if self.verb == "light":
            return self._use_lamp(commands)
        if self.verb in _APPLIANCES and self.held not in self.treated:
            for command in commands:
                if command.startswith(f"{self.verb} {self.held} with"):
                    return command
            return self._visit_kind(_APPLIANCES[self.verb], commands)
        return self._deliver(commands)

    def _fetch(self, commands: tuple[str, ...]) -> str:
        for command in commands:
            if command.startswith(f"take {self.target} ") and not self._is_delivered(command.partition(" from ")[2]):
                return command
        for place, things in self.seen.items():
            if any(_kind(thing) == self.target for thing in things) and not self._is_delivered(place):
                return self._approach(place, commands)
        return self._search(self.target, commands)

    def _drop(self, commands: tuple[str, ...]) -> str:
        """Get rid of something that is not asked for, at the next place that takes it."""
        for command in commands:
            if re.match(rf"(?:put|move) {self.held} (?:in/on|to) ", command):
                return command
        for place in self.here:
            if f"open {place}" in commands:
                return f"open {place}"
        return self._anything(commands)

    def _is_delivered(self, place: str) -> bool:
        """Whether a target there is where it belongs already; one that must be treated is taken out again."""
        if self.verb == "two":
            return place == self.put_into
        return self.verb == "place" and _kind(place) == self.destination

    def _use_lamp(self, commands: tuple[str, ...]) -> str:
        for command in commands:
            if command.startswith("use ") and _kind(command[4:]) == self.destination:
                return command
        for place, things in self.seen.items():
            if any(_kind(thing) == self.destination for thing in things):
                return self._approach(place, commands)
        return self._search(self.destination, commands)

    def _deliver(self, commands: tuple[str, ...]) -> str:
        wanted = self.put_into if self.verb == "two" else None
        for command in commands:
            if re.match(rf"(?:put|move) {self.held} (?:in/on|to) ", command):
                place = " ".join(command.split()[-2:])
                if place == wanted or (wanted is None and _kind(place) == self.destination):
                    return command
        if wanted is not None:
            return self._approach(wanted, commands)
        return self._visit_kind((self.destination,), commands)

    def _visit_kind(self, kinds: tuple[str, ...], commands: tuple[str, ...]) -> str:
        """Go to a receptacle of a kind, and open it if it is closed."""
        for place in self.here:
            if _kind(place) in kinds and f"open {place}" in commands:
                return f"open {place}"
        places = [command for command in commands if command.startswith("go to ") and _kind(command[6:]) in kinds]
        return places[-1] if places else self._anything(commands)

    def _approach(self, place: str, commands: tuple[str, ...]) -> str:
        for command in (f"open {place}", f"go to {place}"):
            if command in commands:
                return command
        return self._anything(commands)

    def _search(self, kind: str, commands: tuple[str, ...]) -> str:
        """The likeliest place that was not looked into yet."""
        for place in self.here:
            if place not in self.visited and f"open {place}" in commands:
                return f"open {place}"
        usual = USUAL_PLACES.get(kind, {})
        places = [c[6:] for c in commands if c.startswith("go to ") and c[6:] not in self.visited]
        if not places:
            return self._anything(commands)
        counts: dict[str, int] = {}
        for place in places:
            counts[_kind(place)] = counts.get(_kind(place), 0) + 1
        best = max(places, key=lambda place: (usual.get(_kind(place), 0.1) / counts[_kind(place)] ** 0.5, place))
        return f"go to {best}"

    def _anything(self, commands: tuple[str, ...]) -> str:
        """Everything was looked at and nothing was found: look again, somewhere else each time."""
        self.visited.clear()
        self.searches += 1
        places = sorted(command for command in commands if command.startswith("go to "))
        return places[self.searches % len(places)] if places else "look"


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]
