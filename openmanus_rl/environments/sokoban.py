"""Sokoban: push every box onto a goal. Rooms are made by playing backwards from the solution, so each has one."""

from __future__ import annotations

import random
import re
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from openmanus_rl.environments.base import NumberedEnv, Split, StepResult, belongs_to, check_between

if TYPE_CHECKING:
    from openmanus_rl.data.json_values import Json
    from openmanus_rl.environments.base import AnchorMode, Expert, Info

Cell = tuple[int, int]
MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
WALL_PROBABILITY = 0.2
RULES = (
    "Push every box onto a goal. Moves: up, down, left, right.\n"
    "Legend: # wall, _ floor, . goal, $ box, * box on a goal, @ you, + you on a goal."
)


class Room(NamedTuple):
    """What does not move: the floor (goals included) and the goals."""

    floor: frozenset[Cell]
    goals: frozenset[Cell]


class Situation(NamedTuple):
    """What moves."""

    player: Cell
    boxes: frozenset[Cell]


class SokobanEnv(NumberedEnv):
    """A room of `size` x `size` cells, outer walls included, with as many boxes as goals, all of it in view.

    A box in a corner cannot be moved again; the episode goes on all the same, as in the game.
    """

    name: ClassVar[str] = "sokoban"

    def __init__(
        self, size: int = 6, boxes: int = 1, anchor_mode: AnchorMode = "state", tasks_per_split: int = 1000
    ) -> None:
        super().__init__(anchor_mode, tasks_per_split)
        check_between("size", size, 5, 12)
        check_between("boxes", boxes, 1, min(4, size - 4))
        check_between("tasks_per_split", tasks_per_split, 1, 10**9)
        self.size, self.boxes = size, boxes

    def expert(self) -> Expert:
        """Searches for a solution on the board that it is shown."""
        return SokobanExpert()

    def _start(self, task: str, split: Split) -> str:
        """Set up the room of a task."""
        rng = random.Random(f"sokoban/{self.size},{self.boxes}/{task}")
        self.room, self.now = _make_room(rng, self.size, self.boxes, split)
        return f"{RULES}\n{self._board()}"

    def step(self, action: str) -> StepResult:
        """Move, pushing what stands in the way if it can be pushed; an impossible action changes nothing."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        action = action.strip()
        following = moved(self.room, self.now, action) if action in MOVES else None
        self.now = following or self.now
        won = self.now.boxes == self.room.goals
        prefix = "Nothing happens.\n" if following is None else "Every box is on a goal.\n" if won else ""
        observation = prefix + self._board()
        info = self._info(observation, following is not None)
        if won:
            self.end(info)
        return observation, float(won), won, False, info

    def _board(self) -> str:
        return "\n".join("".join(self._symbol((r, c)) for c in range(self.size)) for r in range(self.size))

    def _symbol(self, cell: Cell) -> str:
        if cell not in self.room.floor:
            return "#"
        symbols = "+*." if cell in self.room.goals else "@$_"
        return symbols[0 if cell == self.now.player else 1 if cell in self.now.boxes else 2]

    def _info(self, observation: str, valid: bool) -> Info:
        won = self.now.boxes == self.room.goals
        boxes: list[Json] = [[*box] for box in sorted(self.now.boxes)]
        possible = [name for name in MOVES if not won and moved(self.room, self.now, name) is not None]
        return self.describe(
            observation,
            state=[[*self.now.player], boxes],
            won=won,
            score=len(self.now.boxes & self.room.goals) / self.boxes,
            task_type=f"boxes_{self.boxes}",
            admissible_actions=possible,
            action_valid=valid,
        )


class SokobanExpert:
    """Solves the board with A* and plays the solution; a board that it did not expect is solved anew."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.expected: Situation | None = None

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        room, now = read_board(observation)
        if now != self.expected:
            self.plan = solve(room, now) or []
        action = self.plan.pop(0) if self.plan else str(info["admissible_actions"][0])
        self.expected = moved(room, now, action)
        return action


def moved(room: Room, now: Situation, direction: str) -> Situation | None:
    """The situation after a move, or None where a wall or a box that cannot be pushed is in the way."""
    ahead = _beside(now.player, direction)
    if ahead not in now.boxes:
        return Situation(ahead, now.boxes) if ahead in room.floor else None
    behind = _beside(ahead, direction)
    if behind not in room.floor or behind in now.boxes:
        return None
    return Situation(ahead, now.boxes - {ahead} | {behind})


def read_board(observation: str) -> tuple[Room, Situation]:
    """The board that an observation shows."""
    lines = re.findall(r"^[#_.$*@+]+$", observation, re.MULTILINE)
    cells = {(row, column): symbol for row, line in enumerate(lines) for column, symbol in enumerate(line)}
    of = {kind: frozenset(cell for cell, symbol in cells.items() if symbol in kind) for kind in ("_.$*@+", ".*+", "$*")}
    [player] = [cell for cell, symbol in cells.items() if symbol in "@+"]
    return Room(of["_.$*@+"], of[".*+"]), Situation(player, of["$*"])


def solve(room: Room, start: Situation) -> list[str] | None:
    """A shortest solution by A*, or None; a box is at least as far away as it is from its nearest goal."""
    pushes = _pushes_to_a_goal(room)
    ticket = count()
    queue: list[tuple[int, int, list[str], Situation]] = [(0, next(ticket), [], start)]
    seen = set()
    while queue:
        _, _, path, now = heappop(queue)
        if now.boxes == room.goals:
            return path
        if now in seen:
            continue
        seen.add(now)
        for name in MOVES:
            following = moved(room, now, name)
            if following is not None and following not in seen and following.boxes <= pushes.keys():
                total = len(path) + 1 + sum(pushes[box] for box in following.boxes)
                heappush(queue, (total, next(ticket), [*path, name], following))
    return None


def _pushes_to_a_goal(room: Room) -> dict[Cell, int]:
    """From each cell the pushes to the nearest goal if nothing else were in the room; other cells are dead ends."""
    far = dict.fromkeys(room.goals, 0)
    queue = list(room.goals)
    for cell in queue:
        for name in MOVES:
            # Pulled backwards: the box goes from `cell` to `before`, the player stands one further.
            before = _beside(cell, name)
            if before not in far and before in room.floor and _beside(before, name) in room.floor:
                far[before] = far[cell] + 1
                queue.append(before)
    return far


def _make_room(rng: random.Random, size: int, boxes: int, split: Split) -> tuple[Room, Situation]:
    """A room, and the boxes where they were hardest while a random player pulled them away from the goals.

    Hardest counts pushes, at least two a box.
    """
    inside = [(row, column) for row in range(1, size - 1) for column in range(1, size - 1)]
    while True:
        floor = frozenset(cell for cell in inside if rng.random() >= WALL_PROBABILITY)
        if len(floor) < boxes + 2:
            continue
        *goals, player = rng.sample(sorted(floor), boxes + 1)
        room = Room(floor, frozenset(goals))
        if not belongs_to(f"{sorted(floor)} {sorted(goals)}", split):
            continue
        pushes = _pushes_to_a_goal(room)
        now, hardest, most = Situation(player, room.goals), None, 2 * boxes - 1
        for _ in range(20 * size):
            now = _pulled(room, now, rng.choice(list(MOVES)))
            far = sum(pushes[box] for box in now.boxes)
            if far > most and not now.boxes & room.goals:
                hardest, most = now, far
        if hardest is not None:
            return room, _strolled(room, hardest, rng)


def _strolled(room: Room, now: Situation, rng: random.Random) -> Situation:
    """The player anywhere that can be walked to without a push: not always beside the box that came last."""
    reached = [now.player]
    for cell in reached:
        around = [_beside(cell, name) for name in MOVES]
        reached += [to for to in around if to in room.floor and to not in now.boxes and to not in reached]
    return Situation(rng.choice(reached), now.boxes)


def _pulled(room: Room, now: Situation, direction: str) -> Situation:
    """A push played backwards: step away from the box and take it along; without a box just a step, if possible."""
    to = _beside(now.player, direction)
    if to not in room.floor or to in now.boxes:
        return now
    box = (2 * now.player[0] - to[0], 2 * now.player[1] - to[1])
    return Situation(to, now.boxes - {box} | {now.player} if box in now.boxes else now.boxes)


def _beside(cell: Cell, direction: str) -> Cell:
    return cell[0] + MOVES[direction][0], cell[1] + MOVES[direction][1]
