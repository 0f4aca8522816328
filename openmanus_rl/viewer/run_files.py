"""A run directory, read for the page: settings, metrics, and an index of the episodes in it.

Files are read again only when they have changed, and an episode itself only when it is asked for, so that a run of
thousands of episodes opens at once and is followed while it grows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from openmanus_rl.config.load import load_config
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.config.sources import read_plain
from openmanus_rl.data import credit as credit_lines
from openmanus_rl.data import jsonl
from openmanus_rl.data.json_values import check_count, check_text, plain_number, shown
from openmanus_rl.data.plain_files import leads_out
from openmanus_rl.tracking.metrics_file import read_metrics
from openmanus_rl.tracking.record import is_run, read_record, without_folders
from openmanus_rl.tracking.trajectories import NAME, credit_path, files_of

if TYPE_CHECKING:
    from pathlib import Path

    from openmanus_rl.config.schema import Config
    from openmanus_rl.data.credit import Credit
    from openmanus_rl.data.trajectory import Trajectory

Row = dict[str, Any]
TEXTS = ("task_id", "task_type", "split", "group_id", "traj_id", "stop_reason")
Stamp = tuple[int, int]


class NotThereError(Exception):
    """No such episode, or none that can be read."""


@dataclass(slots=True)
class EpisodeFile:
    """One file of `trajectories/`: a row for each line that can be read, where the line starts, and what was done.

    Of the lines that cannot, how many there are, and what is wrong with the first.
    """

    stamp: tuple[Stamp, Stamp]
    rows: list[Row] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    actions: list[tuple[str, ...]] = field(default_factory=list)
    unreadable: int = 0
    first_fault: str = ""


class RunFiles:
    """Reads one run directory; ValueError if it is none."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ValueError(f"{path} is not a directory")
        if not is_run(path):
            raise ValueError(f"{path} is not a run: it has no config.yaml. Give the directory that `train` wrote")
        if leads_out(path, path / "config.yaml"):
            raise ValueError(f"{path}: its config.yaml is a link to somewhere else, which is not read")
        self.path = path
        self.name = path.resolve().name
        self.config: Config | None = None
        self.config_fault = ""
        self.settings = self._read_settings()
        self.metrics_fault = ""
        self._metrics: tuple[Stamp, list[dict[str, Any]]] | None = None
        self._episodes: dict[str, EpisodeFile] = {}
        self._credits: dict[str, tuple[Stamp, dict[tuple[str, str], Credit]]] = {}

    # --- settings -----------------------------------------------------------------------------------------

    def _read_settings(self) -> dict[str, Any]:
        """The resolved config; of a run that this version cannot load, what its file says."""
        path = self.path / "config.yaml"
        try:
            self.config = load_config(None, path, ())
        except ConfigError as error:
            self.config_fault = str(error).splitlines()[0]
        else:
            dumped: dict[str, Any] = self.config.model_dump(mode="json")
            return dumped
        return read_plain(path)

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting by its dotted key; the default where the run has none."""
        found: Any = self.settings
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                return default
            found = found[part]
        return default if found is None else found

    def number(self, key: str, default: float | None) -> float | None:
        """A setting that must be a number; the default where a broken config has something else."""
        found = self.setting(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else default

    def record(self) -> dict[str, Any]:
        """What the run was made with."""
        return read_record(self.path) or {}

    # --- metrics ------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of the metrics file so far; none of one that cannot be read, and `metrics_fault` says why."""
        path = self.path / "metrics.jsonl"
        stamp = stamp_of(path)
        if self._metrics is None or self._metrics[0] != stamp:
            self.metrics_fault, lines = "", []
            try:
                if leads_out(self.path, path):
                    raise ValueError("it is a link to somewhere else")
                lines = read_metrics(path)
            except (OSError, ValueError) as error:
                self.metrics_fault = without_folders(str(error))[:300]
            self._metrics = (stamp, lines)
        return self._metrics[1]

    def stamp(self) -> str:
        """Another one as soon as anything that the page shows has changed."""
        files = [self.path / name for name in ("metrics.jsonl", "references.json", "run.json")]
        folder = self.path / "trajectories"
        if folder.is_dir():
            files += sorted(folder.glob("*.jsonl"))
        return f"{hash(tuple((path.name, stamp_of(path)) for path in files)) & (2**63 - 1):x}"

    # --- episodes -----------------------------------------------------------------------------------------

    def episode_paths(self) -> list[Path]:
        """The files with episodes: training steps, then validations, oldest first. Links that lead out are not read."""
        folder = self.path / "trajectories"
        found = files_of(folder, "step") + files_of(folder, "val")
        return [path for path in found if path.is_file() and not leads_out(self.path, path)]

    def episode_file(self, path: Path) -> EpisodeFile:
        """The index of one file."""
        stamp = (stamp_of(path), stamp_of(credit_path(path)))
        known = self._episodes.get(path.stem)
        if known is None or known.stamp != stamp:
            known = self._episodes[path.stem] = _index(path, stamp)
        return known

    def rows(self) -> list[Row]:
        """One row per episode that is kept."""
        return [row for path in self.episode_paths() for row in self.episode_file(path).rows]

    def unreadable(self) -> int:
        """How many lines of the files are no episodes."""
        return sum(self.episode_file(path).unreadable for path in self.episode_paths())

    def faults(self) -> list[str]:
        """Which of the files that were read have such lines, and what is wrong with the first of each."""
        told = []
        for path in self.episode_paths():
            file = self._episodes.get(path.stem)
            if file is not None and file.unreadable:
                lines = "1 line is no episode" if file.unreadable == 1 else f"{file.unreadable} lines are no episodes"
                told.append(f"{path.name}: {lines} that this version can read ({file.first_fault})")
        return told

    def actions(self, row_id: str) -> tuple[str, ...]:
        """What was done in an episode, turn by turn."""
        path, place = self._find(row_id)
        return self.episode_file(path).actions[place]

    def trajectory(self, row_id: str) -> Trajectory:
        """An episode in full."""
        path, place = self._find(row_id)
        with path.open("rb") as file:
            file.seek(self.episode_file(path).offsets[place])
            line = file.readline()
        try:
            return jsonl.loads(line)
        except ValueError as error:
            raise NotThereError(f"episode {row_id} {error}") from None

    def credits_beside(self, row_id: str) -> dict[tuple[str, str], Credit]:
        """The credit of all episodes of the file that this one is in, by group and name."""
        path = credit_path(self._find(row_id)[0])
        stamp = stamp_of(path)
        known = self._credits.get(path.stem)
        if known is None or known[0] != stamp:
            known = (stamp, {} if leads_out(self.path, path) else _credits(path))
            self._credits = {path.stem: known}  # one file's is enough: what is looked at is of one step
        return known[1]

    def _find(self, row_id: str) -> tuple[Path, int]:
        stem, _, number = row_id.partition(":")
        name = f"{stem}.jsonl"
        path = self.path / "trajectories" / name
        # The name is compared with the pattern, so that no id can point out of the directory; nor may a link.
        is_ours = NAME.fullmatch(name) is not None and number.isdecimal() and path.is_file()
        if not is_ours or leads_out(self.path, path):
            raise NotThereError(f"no episode {row_id[:80]!r}; it may have been dropped since")
        for place, row in enumerate(self.episode_file(path).rows):
            if row["id"] == row_id:
                return path, place
        raise NotThereError(f"no episode {row_id[:80]!r}")


def stamp_of(path: Path) -> Stamp:
    """When a file was last changed, and its size; zeros where there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _index(path: Path, stamp: tuple[Stamp, Stamp]) -> EpisodeFile:
    """Read a file once, keeping a row for each episode."""
    found = EpisodeFile(stamp)
    kind = path.stem.partition("_")[0]
    step = int(path.stem.partition("_")[2])
    has_credit = stamp[1] != (0, 0)
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    row, actions = _row(orjson.loads(line))
                except (ValueError, RecursionError) as error:
                    found.unreadable += 1
                    found.first_fault = found.first_fault or f"line {number + 1}: {str(error)[:200]}"
                else:
                    row |= {"id": f"{path.stem}:{number}", "kind": kind, "step": step, "credit": has_credit}
                    found.rows.append(row)
                    found.offsets.append(offset)
                    found.actions.append(actions)
            offset += len(line)
    return found


def _row(record: Any) -> tuple[Row, tuple[str, ...]]:
    """What a list of episodes shows of one, and its actions; ValueError says what is wrong with it.

    Every field that is shown is checked, so that one line cannot keep all others from the page.
    """
    texts = {name: _field(record, name) for name in TEXTS}
    for name, text in texts.items():
        check_text(name, text)
    check_count("seed", seed := _field(record, "seed"))
    turns = _field(record, "turns")
    if not isinstance(turns, list):
        raise ValueError(f"turns must be a list, got {shown(turns)}")
    actions = tuple(_action(turn) for turn in turns)
    row = {
        "task": texts["task_id"],
        "type": texts["task_type"],
        "split": texts["split"],
        "seed": seed,
        "group": texts["group_id"],
        "traj": texts["traj_id"],
        "outcome": texts["stop_reason"],
        "turns": len(turns),
        "reward": float(plain_number("score", _field(record, "score"))),
        "invalid": sum(not _field(turn, "action_valid") for turn in turns),
    }
    return row, actions


def _action(turn: Any) -> str:
    """What was done in a turn, or said where that was no action."""
    action = _field(turn, "action")
    text = _field(turn, "response_text") if action is None else action
    check_text("an action", text)
    return str(text)


def _field(record: Any, name: str) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"there is no {name}")
    return record[name]


def _credits(path: Path) -> dict[tuple[str, str], Credit]:
    """What can be read of a credit file, by group and name."""
    if not path.is_file():
        return {}
    found = {}
    for line in path.read_bytes().splitlines():
        try:
            credit = credit_lines.loads(line)
        except ValueError:
            continue  # the page says of an episode without credit that it has none
        found[credit.group_id, credit.traj_id] = credit
    return found
