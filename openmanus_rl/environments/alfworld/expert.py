"""An expert that plays ALFWorld from the texts alone: it searches likely places first and remembers what it saw.

It understands the templated tasks ("put two mug in desk."), in both wordings of the commands, since it picks
commands from
the admissible ones. Tasks in people's own words are beyond it.
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
_SEEN = re.compile(r"(?:On the ([\w ]+?), you see|The ([\w ]+?) is open\. In it, you see) (.*?)\.(?:\s|$)")


@dataclass
class AlfworldExpert:
    """One episode's player."""

    verb: str = ""
    target: str = ""
    destination: str = ""
    seen: dict[str, list[str]] = field(default_factory=dict)
    held: str | None = None
    treated: set[str] = field(default_factory=set)
    put_into: str | None = None
    placed: int = 0
    visited: set[str] = field(default_factory=set)
    here: str | None = None

    def act(self, observation: str, info: Info) -> str:
        """The next command."""
        commands: tuple[str, ...] = info["admissible_actions"]
        if not self.verb:
            self._read_task(observation)
        self._remember(observation)
        command = self._choose(commands)
        self._expect(command)
        return command

    def _read_task(self, observation: str) -> None:
        task = observation.partition("Your task is to: ")[2].strip().rstrip(".")
        for pattern, verb in _TASKS:
            if match := re.fullmatch(pattern, task):
                self.verb, self.target, self.destination = verb, match[1], match[2]
                return
        raise ValueError(f"the expert does not understand the task {task!r}")

    def _remember(self, observation: str) -> None:
        for on, inside, listed in _SEEN.findall(observation):
            self.seen[on or inside] = re.findall(r"an? ([\w]+ \d+)", listed)
            self.visited.add(on or inside)

    def _expect(self, command: str) -> None:
        """What the command will change, as far as the texts do not repeat it."""
        words = command.split()
        if command.startswith("go to "):
            self.here = command[6:]
        elif words[0] == "take":
            self.held = f"{words[1]} {words[2]}"
            for things in self.seen.values():
                if self.held in things:
                    things.remove(self.held)
        elif words[0] in ("put", "move") and self.held is not None:
            place = f"{words[-2]} {words[-1]}"
            self.seen.setdefault(place, []).append(self.held)
            self.placed += _kind(place) == self.destination
            self.put_into, self.held = place, None
        elif words[0] in _APPLIANCES and self.held is not None:
            self.treated.add(self.held)

    def _choose(self, commands: tuple[str, ...]) -> str:
        if self.held is None:
            return self._fetch(commands)
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

    def _is_delivered(self, place: str) -> bool:
        """Whether a target there is where it belongs already (for treated ones, only after it was treated)."""
        if _kind(place) != self.destination or self.verb == "light":
            return False
        if self.verb in _APPLIANCES:
            return False
        return self.verb != "two" or place == self.put_into

    def _use_lamp(self, commands: tuple[str, ...]) -> str:
        for command in commands:
            if command.startswith("use ") and _kind(command[4:]) == self.destination:
                return command
        for place, things in self.seen.items():
            if any(_kind(thing) == self.destination for thing in things):
                return self._approach(place, commands)
        return self._search(self.destination, commands)

    def _deliver(self, commands: tuple[str, ...]) -> str:
        wanted = self.put_into if self.verb == "two" and self.placed else None
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
        if self.here is not None and _kind(self.here) in kinds and f"open {self.here}" in commands:
            return f"open {self.here}"
        places = [command for command in commands if command.startswith("go to ") and _kind(command[6:]) in kinds]
        return places[-1] if places else self._anything(commands)

    def _approach(self, place: str, commands: tuple[str, ...]) -> str:
        for command in (f"open {place}", f"go to {place}"):
            if command in commands:
                return command
        return self._anything(commands)

    def _search(self, kind: str, commands: tuple[str, ...]) -> str:
        """The likeliest place that was not looked into yet."""
        if self.here is not None and self.here not in self.visited and f"open {self.here}" in commands:
            return f"open {self.here}"
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
        places = sorted(c for c in commands if c.startswith("go to "))
        return places[len(self.treated) + self.placed % max(1, len(places))] if places else "look"


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]
