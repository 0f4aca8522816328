"""A small grid in text: pick up the key, open the door, reach the goal. For tests and learning checks."""

from __future__ import annotations

import functools
import random
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from openmanus_rl.environments.base import NumberedEnv, Split, StepResult, belongs_to, check_between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.data.json_values import Json
    from openmanus_rl.environments.base import AnchorMode, Expert, Info

Cell = tuple[int, int]
MOVES: dict[str, Cell] = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class Room(NamedTuple):
    """Where things are at the start. The wall is the door's column."""

    agent: Cell
    key: Cell
    door: Cell
    goal: Cell


class GridEnv(NumberedEnv):
    """A room of `size` x `size` cells, split by a wall with one door; the key is on the agent's side, the goal behind.

    The agent sees its cell and the four beside it. Actions: north, south, west, east, take key, open door.
    No two tasks of a split are the same room, so a small grid may have fewer tasks than `tasks_per_split`.
    """

    name: ClassVar[str] = "grid"

    def __init__(self, size: int = 4, anchor_mode: AnchorMode = "state", tasks_per_split: int = 1000) -> None:
        super().__init__(anchor_mode, tasks_per_split)
        check_between("size", size, 3, 50)
        check_between("tasks_per_split", tasks_per_split, 1, 100_000)
        self.size = size

    def count(self, split: Split) -> int:
        """How many rooms the split has."""
        return len(rooms(self.size, split, self.tasks_per_split))

    def expert(self) -> Expert:
        """Explores what it has not seen, nearest first."""
        return GridExpert()

    def _start(self, task: str, split: Split) -> str:
        """Enter the room of a task."""
        number = int(task.rpartition("/")[2])
        self.agent, self.key, self.door, self.goal = rooms(self.size, split, self.tasks_per_split)[number]
        self.has_key = self.door_open = False
        return f"Find the key, open the door, reach the goal.\n{self._look()}"

    def step(self, action: str) -> StepResult:
        """Do it; an impossible action changes nothing."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        action = action.strip()
        valid = action in self._possible()
        if valid and action in MOVES:
            self.agent = _beside(self.agent, action)
        elif valid and action == "take key":
            self.has_key = True
        elif valid:
            self.door_open = True
        won = self.agent == self.goal
        observation = ("" if valid else "Nothing happens. ") + ("You reach the goal." if won else self._look())
        info = self._info(observation, valid)
        if won:
            self.end(info)
        return observation, float(won), won, False, info

    def _possible(self) -> list[str]:
        actions = [name for name in MOVES if self._passable(_beside(self.agent, name))]
        if self.agent == self.key and not self.has_key:
            actions.append("take key")
        if self.has_key and not self.door_open and self.door in (_beside(self.agent, name) for name in MOVES):
            actions.append("open door")
        return actions

    def _passable(self, cell: Cell) -> bool:
        row, column = cell
        if not (0 <= row < self.size and 0 <= column < self.size):
            return False
        return column != self.door[1] or (cell == self.door and self.door_open)

    def _look(self) -> str:
        around = ", ".join(f"{name}: {self._what(_beside(self.agent, name))}" for name in MOVES)
        here = " There is a key here." if self.agent == self.key and not self.has_key else ""
        carried = " You carry the key." if self.has_key else ""
        return f"You are at row {self.agent[0]}, column {self.agent[1]}.{here}{carried} {around}."

    def _what(self, cell: Cell) -> str:
        if cell == self.door:
            return "open door" if self.door_open else "closed door"
        if cell == self.goal:
            return "goal"
        if cell == self.key and not self.has_key:
            return "key"
        return "floor" if self._passable(cell) else "wall"

    def _info(self, observation: str, valid: bool) -> Info:
        state: list[Json] = [*self.agent, self.has_key, self.door_open]
        won = self.agent == self.goal
        return self.describe(
            observation, state=state, won=won, task_type="grid", admissible_actions=self._possible(), action_valid=valid
        )


@functools.lru_cache(maxsize=64)
def rooms(size: int, split: Split, most: int) -> tuple[Room, ...]:
    """The first rooms of a split, at most as many as asked for, in an order that does not depend on how many."""
    shuffled = (_room(size, number) for number in _shuffled(_room_count(size), random.Random(f"grid/{size}/{split}")))
    ours = (room for room in shuffled if belongs_to(f"{room.agent} {room.key} {room.door} {room.goal}", split))
    return tuple(islice(ours, most))


def _shuffled(count: int, rng: random.Random) -> Iterator[int]:
    """The numbers below `count` in random order, drawn as they are asked for: there are 3 x 10^12 rooms of 50 x 50."""
    moved: dict[int, int] = {}
    for place in range(count):
        chosen = rng.randrange(place, count)
        yield moved.get(chosen, chosen)
        moved[chosen] = moved.pop(place, place)


def _room_count(size: int) -> int:
    return sum(_rooms_of_wall(size, wall) for wall in range(1, size - 1))


def _rooms_of_wall(size: int, wall: int) -> int:
    near, far = size * wall, size * (size - wall - 1)
    return near * (near - 1) * size * far


def _room(size: int, number: int) -> Room:
    """The room of a number: the wall's column, then the cells of goal, door, agent and key."""
    wall = 1
    while number >= (of_wall := _rooms_of_wall(size, wall)):
        number, wall = number - of_wall, wall + 1
    number, goal = divmod(number, size * (size - wall - 1))
    number, door = divmod(number, size)
    key, agent = divmod(number, size * wall)
    key += key >= agent  # the key is not where the agent starts
    return Room(
        (agent // wall, agent % wall), (key // wall, key % wall), (door, wall),
        (goal % size, wall + 1 + goal // size),
    )  # fmt: skip


class GridExpert:
    """Keeps a map of what it has seen, and walks to the nearest thing it needs or the nearest unknown cell."""

    def __init__(self) -> None:
        self.map: dict[Cell, str] = {}

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        actions = info["admissible_actions"]
        for urgent in ("take key", "open door"):
            if urgent in actions:
                return urgent
        here = self._remember(observation)
        for wanted in ("goal", "key", "unknown"):
            step = self._towards(here, wanted, "carry the key" in observation)
            if step is not None:
                return step
        return str(actions[0])

    def _remember(self, observation: str) -> Cell:
        words = observation.replace(".", " ").replace(",", " ").split()
        here = (int(words[words.index("row") + 1]), int(words[words.index("column") + 1]))
        self.map[here] = "floor"
        for name in MOVES:
            self.map[_beside(here, name)] = observation.rpartition(f"{name}: ")[2].partition(",")[0].rstrip(".")
        return here

    def _towards(self, start: Cell, wanted: str, has_key: bool) -> str | None:
        """The first step of a shortest way over known cells to the nearest wanted one."""
        passable = {"floor", "key", "goal", "open door"}
        queue = deque([(start, "")])
        seen = {start}
        while queue:
            cell, first = queue.popleft()
            beside_door = has_key and any(self.map.get(_beside(cell, n)) == "closed door" for n in MOVES)
            if first and (self.map.get(cell, "unknown") == wanted or (wanted == "key" and beside_door)):
                return first
            if self.map.get(cell) not in passable:
                continue
            for name in MOVES:
                following = _beside(cell, name)
                if following not in seen:
                    seen.add(following)
                    queue.append((following, first or name))
        return None


def _beside(cell: Cell, direction: str) -> Cell:
    return cell[0] + MOVES[direction][0], cell[1] + MOVES[direction][1]
