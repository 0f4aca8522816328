"""A frozen lake as a text map: walk from start to goal and stay out of the holes."""

from __future__ import annotations

import random
import re
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from openmanus_rl.environments.base import NumberedEnv, Split, StepResult, belongs_to, check_between

if TYPE_CHECKING:
    from openmanus_rl.environments.base import AnchorMode, Expert, Info

Cell = tuple[int, int]
# In turning order: a slip goes to one of the two neighbours in this circle.
MOVES: dict[str, Cell] = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
HOLE_PROBABILITY = 0.25
RULES = "Walk from S to G. F is ice, H is a hole: if you fall in, you lose. Moves: up, right, down, left."
SLIPPERY = "The ice is slippery: two moves in three go to one side of where you wanted."


class FrozenLakeEnv(NumberedEnv):
    """A map of `size` x `size` cells with a safe way from S to G, the whole of it in view.

    With `slippery`, a move goes where it should with probability 1/3, and to either side of that with 1/3 each, as in
    Gymnasium's FrozenLake. The slips belong to the task: the same moves always slip in the same way.
    """

    name: ClassVar[str] = "frozenlake"

    def __init__(
        self,
        size: int = 4,
        slippery: bool = False,
        anchor_mode: AnchorMode = "state",
        tasks_per_split: int = 1000,
    ) -> None:
        super().__init__(anchor_mode, tasks_per_split)
        check_between("size", size, 3, 20)
        check_between("tasks_per_split", tasks_per_split, 1, 10**9)
        if not isinstance(slippery, bool):
            raise ValueError(f"slippery must be true or false, got {slippery!r}")
        self.size, self.slippery = size, slippery

    def expert(self) -> Expert:
        """Plans on the map that it is shown."""
        return FrozenLakeExpert()

    def _start(self, task: str, split: Split) -> str:
        """Freeze the lake of a task."""
        self._rng = random.Random(f"frozenlake/{self.size},{self.slippery}/{task}")
        self.rows = _make_map(self._rng, self.size, split)
        self.position = _find(self.rows, "S")
        return f"{RULES}{' ' + SLIPPERY if self.slippery else ''}\n{self._look()}"

    def step(self, action: str) -> StepResult:
        """Move; a move off the map, and anything else, changes nothing."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        action = action.strip()
        valid = action in self._possible()
        if valid:
            turn = self._rng.choice((-1, 0, 1)) if self.slippery else 0
            self.position = _moved(self.rows, self.position, _turned(action, turn))
        here = self._here()
        prefix = {"G": "You reach the goal.\n", "H": "You fall into a hole.\n"}.get(
            here, "" if valid else "Nothing happens.\n"
        )
        observation = prefix + self._look()
        info = self._info(observation, valid)
        if here in "GH":
            self.end(info)
        return observation, float(info["won"]), here in "GH", False, info

    def _here(self) -> str:
        return self.rows[self.position[0]][self.position[1]]

    def _possible(self) -> list[str]:
        if self._here() in "GH":
            return []
        # On slippery ice a move off the map may still slip along the edge.
        return [name for name in MOVES if self.slippery or _moved(self.rows, self.position, name) != self.position]

    def _look(self) -> str:
        row, column = self.position
        return "\n".join(self.rows) + f"\nYou are at row {row + 1}, column {column + 1}."

    def _info(self, observation: str, valid: bool) -> Info:
        return self.describe(
            observation,
            state=[*self.position],
            won=self._here() == "G",
            task_type="slippery" if self.slippery else "firm",
            admissible_actions=self._possible(),
            action_valid=valid,
        )


class FrozenLakeExpert:
    """Takes the move with the best chance of arriving, soon rather than late: value iteration on the shown map."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.turns: tuple[int, ...] = (0,)
        self.values: dict[Cell, float] = {}

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        del info
        if not self.values:
            self.rows = re.findall(r"^[SFHG]+$", observation, re.MULTILINE)
            self.turns = (-1, 0, 1) if SLIPPERY in observation else (0,)
            self._plan()
        row, column = map(int, re.findall(r"row (\d+), column (\d+)", observation)[-1])
        here = (row - 1, column - 1)
        return max(MOVES, key=lambda name: self._worth(here, name))

    def _plan(self, discount: float = 0.98, tolerance: float = 1e-6) -> None:
        """V(cell) = discount * max over moves of the mean V of where it may lead; V(goal) = 1, V(hole) = 0."""
        ice = []
        for row, line in enumerate(self.rows):
            for column, kind in enumerate(line):
                self.values[row, column] = float(kind == "G")
                if kind in "SF":
                    ice.append((row, column))
        change = 1.0
        while change > tolerance:
            change = 0.0
            for cell in ice:
                value = discount * max(self._worth(cell, name) for name in MOVES)
                change = max(change, abs(value - self.values[cell]))
                self.values[cell] = value

    def _worth(self, cell: Cell, move: str) -> float:
        ends = [self.values[_moved(self.rows, cell, _turned(move, turn))] for turn in self.turns]
        return sum(ends) / len(ends)


def _make_map(rng: random.Random, size: int, split: Split) -> list[str]:
    """Random ice and holes, until the way from S to G is safe and at least size - 1 moves long."""
    while True:
        cells = ["H" if rng.random() < HOLE_PROBABILITY else "F" for _ in range(size * size)]
        start, goal = rng.sample(range(size * size), 2)
        cells[start], cells[goal] = "S", "G"
        rows = ["".join(cells[k : k + size]) for k in range(0, size * size, size)]
        if _distance(rows) >= size - 1 and belongs_to("\n".join(rows), split):
            return rows


def _distance(rows: list[str]) -> int:
    """The moves from S to G around the holes; -1 if there is no way."""
    start = _find(rows, "S")
    queue, distance = deque([start]), {start: 0}
    while queue:
        cell = queue.popleft()
        if rows[cell[0]][cell[1]] == "G":
            return distance[cell]
        for name in MOVES:
            following = _moved(rows, cell, name)
            if following not in distance and rows[following[0]][following[1]] != "H":
                distance[following] = distance[cell] + 1
                queue.append(following)
    return -1


def _find(rows: list[str], kind: str) -> Cell:
    return next((row, line.index(kind)) for row, line in enumerate(rows) if kind in line)


def _moved(rows: list[str], cell: Cell, direction: str) -> Cell:
    row, column = cell[0] + MOVES[direction][0], cell[1] + MOVES[direction][1]
    return (row, column) if 0 <= row < len(rows) and 0 <= column < len(rows) else cell


def _turned(direction: str, turn: int) -> str:
    circle = list(MOVES)
    return circle[(circle.index(direction) + turn) % len(circle)]
