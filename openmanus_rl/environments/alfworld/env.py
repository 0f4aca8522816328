"""ALFWorld as a text environment: `make_env("alfworld")`, or by its published name `alfworld/AlfredTWEnv`."""

from __future__ import annotations

import functools
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from openmanus_rl.environments.alfworld.engine import NOTHING_HAPPENS, Engine, Layout
from openmanus_rl.environments.alfworld.expert import AlfworldExpert
from openmanus_rl.environments.alfworld.export import Wording, game_data
from openmanus_rl.environments.alfworld.game import load_game, read_game
from openmanus_rl.environments.alfworld.generator import Size, generate
from openmanus_rl.environments.alfworld.vocabulary import TASK_TYPES
from openmanus_rl.environments.base import SPLITS, NumberedTasks, Split, StepResult, TextEnv, parse_numbered_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openmanus_rl.environments.base import AnchorMode, Expert, Info

# Before the ids of generated games where there are others, too.
GENERATED = "generated/"

# What upstream calls the two validation splits.
SPLIT_ALIASES: dict[str, Split] = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}


class Player(Protocol):
    """A play-through: the native engine, or the reference in a process of its own."""

    observation: str
    won: bool

    @property
    def commands(self) -> Iterable[str]:
        """The admissible commands."""

    def step(self, command: str) -> str:
        """Carry out a command."""


class AlfredTWEnv(TextEnv):
    """Household tasks in a text room. See docs/environments/alfworld.md."""

    name: ClassVar[str] = "alfworld/AlfredTWEnv"

    def __init__(
        self,
        source: Literal["auto", "dataset", "generated", "mixed"] = "auto",
        data_dir: str | None = None,
        engine: Literal["native", "textworld"] = "native",
        size: Size = "full",
        seed: int = 0,
        wording: Wording = "new",
        anchor_mode: AnchorMode = "state",
        win_reward: float = 10.0,
        step_reward: float = 0.0,
        subgoal_reward: float = 0.0,
        train_games: int = 10_000,
        valid_games: int = 500,
    ) -> None:
        super().__init__(anchor_mode)
        if engine not in ("native", "textworld"):
            raise ValueError(f"engine must be native or textworld, got {engine!r}")
        if size not in ("micro", "mini", "full"):
            raise ValueError(f"size must be micro, mini or full, got {size!r}")
        if wording not in ("old", "new"):
            raise ValueError(f"wording must be old or new, got {wording!r}")
        if subgoal_reward and engine == "textworld":
            raise ValueError("subgoal_reward needs engine=native")
        self.engine, self.size, self.seed, self.wording = engine, size, seed, wording
        self.blocking = engine == "textworld"
        self.win_reward, self.step_reward, self.subgoal_reward = win_reward, step_reward, subgoal_reward
        self.root, self.mixed = find_dataset(source, data_dir), source == "mixed"
        self.counts: dict[Split, int] = {"train": train_games, "valid_seen": valid_games, "valid_unseen": valid_games}
        if min(self.counts.values()) < 1:
            raise ValueError("train_games and valid_games must be at least 1")
        if self.mixed and train_games > 1_000_000:
            raise ValueError(f"source=mixed takes at most 1,000,000 train_games, got {train_games:,}")
        extremes = [step_reward, step_reward + win_reward + 4 * subgoal_reward, 0.0]
        self.reward_bounds = (min(extremes), max(extremes))
        self.skipped: dict[str, Counter[str]] = {}
        self._player: Player | None = None

    def tasks(self, split: Split) -> Sequence[str]:
        """Game folders of the dataset, numbered generated games, or both; upstream's split names work too."""
        split = SPLIT_ALIASES.get(split, split)
        if split not in SPLITS:
            raise ValueError(f"no split {split!r}: there are {', '.join((*SPLITS, *SPLIT_ALIASES))}")
        if self.root is None:
            return NumberedTasks(split, self.counts[split])
        found, skipped = list_games(self.root, split)
        self.skipped[split] = Counter(dict(skipped))
        if self.mixed and split == "train":
            return [*found, *(GENERATED + task for task in NumberedTasks(split, self.counts[split]))]
        return found

    def expert(self) -> Expert:
        """Searches likely places first, remembers what it saw."""
        return AlfworldExpert()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start the game of a task."""
        super().reset(seed=seed)
        task = self.choose_task(seed, options)
        self.close()
        if self.engine == "native":
            layout = self._layout(task)
            self.task_type = layout.game.task_type
            self._player = player = Engine(layout)
            self._milestones = player.milestones()  # a room may start with a step done
        else:
            from openmanus_rl.environments.alfworld.reference import ReferencePlayer

            game, self.task_type = self._reference_game(task)
            self._player = ReferencePlayer(game)
        info = self._info(True)
        self.begin(info)
        return self._player.observation, info

    def _file(self, task: str) -> Path | None:
        """The file of a released game; None for a generated one."""
        if self.root is None or (self.mixed and task.startswith(GENERATED)):
            return None
        return dataset_file(self.root, task)

    def _numbered(self, task: str) -> tuple[Split, int]:
        """The split and the number of a generated game."""
        return parse_numbered_task(
            task.removeprefix(GENERATED) if self.mixed else task, self.name, self.counts.__getitem__
        )

    def _layout(self, task: str) -> Layout:
        if (file := self._file(task)) is not None:
            return layout_of_file(file)
        split, number = self._numbered(task)
        return layout_of_generated(split, number, self.size, self.seed, self.wording)

    def _reference_game(self, task: str) -> tuple[Path | dict[str, Any], str]:
        """A game as the reference takes it, and the type of its task; files that we cannot play included."""
        if (file := self._file(task)) is not None:
            kind = Path(task).parent.name.partition("-")[0]
            return file, kind if kind in TASK_TYPES else "unknown"
        split, number = self._numbered(task)
        blueprint = generate(str(number), split, self.size, self.seed)
        return game_data(blueprint, self.wording), blueprint.task_type

    def step(self, action: str) -> StepResult:
        """Carry out a command; one that is not admissible changes nothing."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        assert self._player is not None
        observation = self._player.step(action)
        won = self._player.won
        info = self._info(observation != NOTHING_HAPPENS)
        reward = self.step_reward + (self.win_reward if won else 0.0)
        if self.subgoal_reward and isinstance(self._player, Engine):
            reached = self._player.milestones()
            reward += self.subgoal_reward * max(0, reached - self._milestones)
            self._milestones = max(self._milestones, reached)
        if won:
            self.end(info)
        return observation, reward, won, False, info

    def _info(self, valid: bool) -> Info:
        assert self._player is not None
        state = self._player.state_key() if isinstance(self._player, Engine) else self._player.observation
        return self.describe(
            self._player.observation,
            state=state,
            won=self._player.won,
            task_type=self.task_type,
            admissible_actions=sorted(self._player.commands),
            action_valid=valid,
        )

    def close(self) -> None:
        """End the reference engine's process, if there is one."""
        player, self._player = getattr(self, "_player", None), None
        if player is not None and not isinstance(player, Engine):
            player.close()


def find_dataset(source: str, data_dir: str | None) -> Path | None:
    """The folder that holds the splits, or None to generate games."""
    if source not in ("auto", "dataset", "generated", "mixed"):
        raise ValueError(f"source must be auto, dataset, generated or mixed, got {source!r}")
    if source == "generated":
        return None
    given = data_dir or os.environ.get("ALFWORLD_DATA")
    if not given:
        if source != "auto":
            raise ValueError(f"source={source} needs data_dir, or $ALFWORLD_DATA to point at the dataset")
        return None
    origin = "data_dir" if data_dir else "$ALFWORLD_DATA"
    folder = Path(given).expanduser()
    for root in (folder / "json_2.1.1", folder):
        if any((root / split).is_dir() for split in SPLITS):
            return root
    raise ValueError(f"{origin}={given} holds no ALFWorld dataset: json_2.1.1/train (or valid_seen, ...) is expected")


def dataset_file(root: Path, task: str) -> Path:
    """The game file of a task id; an id that leads out of the dataset is refused."""
    file = root / task / "game.tw-pddl"
    try:
        found = ".." not in Path(task).parts and not Path(task).is_absolute() and file.is_file()
    except OSError:  # no file can have such a name
        found = False
    if not found:
        raise ValueError(f"no ALFWorld game {task[:200]!r} in {root}")
    return file


@functools.lru_cache(maxsize=32)
def list_games(root: Path, split: str) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """The playable games of a split in a fixed order, and how many were left out, by reason."""
    found: list[str] = []
    skipped: Counter[str] = Counter()
    for file in sorted((root / split).rglob("game.tw-pddl")):
        folder = file.parent.relative_to(root).as_posix()
        if "movable" in folder or "Sliced" in folder:
            skipped["movable or sliced"] += 1
        elif b'"solvable": true' not in (content := file.read_bytes()) and b'"solvable":true' not in content:
            skipped["unsolvable"] += 1
        else:
            found.append(folder)
    return tuple(found), tuple(skipped.items())


# Layouts are read-only, so everyone who plays a game shares one; the caches keep those of a training step.
@functools.lru_cache(maxsize=64)
def layout_of_file(path: Path) -> Layout:
    """A dataset game, read and indexed."""
    return Layout(load_game(path))


@functools.lru_cache(maxsize=64)
def layout_of_generated(split: Split, number: int, size: Size, seed: int, wording: Wording) -> Layout:
    """A generated game, read and indexed."""
    blueprint = generate(str(number), split, size, seed)
    return Layout(read_game(game_data(blueprint, wording), f"{split}/{number}"))
