"""The page of a run: right numbers, nothing from elsewhere, nothing that obeys the texts of an episode."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from openmanus_rl.config.changes import changed_keys
from openmanus_rl.config.load import load_config
from openmanus_rl.config.schema import Config
from openmanus_rl.data.jsonl import write_trajectories
from openmanus_rl.data.rate import Rate
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
from openmanus_rl.tracking import history
from openmanus_rl.tracking.charts import Series, line_chart, y_ticks
from openmanus_rl.tracking.metrics_file import MetricsFile
from openmanus_rl.tracking.report import write_report

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>"


def config_of(folder: Path, *more: str) -> Config:
    words = ["env.env_name=bandit", "actor_rollout_ref.model.path=init:nano", f"trainer.default_local_dir={folder}"]
    return load_config(None, None, [*words, "algorithm.gamma=0.9", "trainer.seed=7", *more])


def write_metrics(folder: Path) -> None:
    """Validation goes 10 %, 60 %, 40 % of 20 + 20 episodes; task type `b` is won in the last one only."""
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(5):
        line = {"reward": step / 4, "reward_std": 0.5, "success": step / 8, "episodes": 8.0, "time/collect": 2.0}
        line |= {"actor/kl_loss": 0.01 * step, "actor/entropy": 1.0, "time/update_actor": 1.0, "time/step": 3.0}
        if step % 2 == 0:
            share = {0: 0.1, 2: 0.6, 4: 0.4}[step]
            for split in history.SPLITS:
                line |= {f"val/{split}/success": share, f"val/{split}/episodes": 20.0}
                line |= {f"val/{split}/success/a": share, f"val/{split}/episodes/a": 10.0}
                line |= {f"val/{split}/success/b": float(step == 4), f"val/{split}/episodes/b": 10.0}
        file.write(step, line)


def write_episodes(folder: Path) -> None:
    (folder / "trajectories").mkdir()
    turns = (Turn(observation=HOSTILE, response_text=HOSTILE, action=HOSTILE, reward=1.0),)
    for step in (0, 4):
        episodes = [
            Trajectory(HOSTILE, f"{k}", f"{k}", turns, reason, task_type=HOSTILE)
            for k, reason in enumerate((StopReason.WON, StopReason.STEP_LIMIT))
        ]
        write_trajectories(folder / "trajectories" / f"val_{step:06d}.jsonl", episodes)


class Tags(HTMLParser):
    """Which elements and attributes a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_a_page_of_a_run(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    write_episodes(tmp_path)
    path = write_report(config_of(tmp_path), tmp_path, f"openmanus-rl train trainer.default_local_dir={tmp_path}")
    page = path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    low, high = Rate(24, 40).interval
    assert f"60.0 % ({100 * low:.0f} to {100 * high:.0f}), 24 of 40" in page  # best
    assert "10.0 % (" in page  # first
    assert "4 of 40" in page
    assert "16 of 40" in page  # last
    assert "<td>b</td><td>0.0 % (0 to 16), 0 of 20</td>" in page
    for part in ("algorithm.gamma", "0.9", "seed 7", "collect", "10 s", "At the start", "Won at the end", "Not won"):
        assert part in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 4  # success, reward, KL, entropy
    for picture in pictures:
        ET.fromstring(picture)
    assert pictures[0].count("<polygon") == 3
    assert pictures[0].count("<circle") == 6


def test_texts_are_shown_and_not_obeyed_and_nothing_is_fetched(tmp_path: Path) -> None:
    write_metrics(tmp_path)
    write_episodes(tmp_path)
    page = write_report(config_of(tmp_path), tmp_path, HOSTILE).read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert not tags.seen & {"script", "img", "link", "iframe", "object"}
    assert not tags.attributes & {"src", "href", "onerror"}
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"https?:|url\(|@import", page)


def test_the_page_names_no_folder_and_no_machine(tmp_path: Path) -> None:
    import socket

    write_metrics(tmp_path)
    config = config_of(tmp_path, "env.options={'data': '/home/somebody/secret/data.json'}")
    page = write_report(config, tmp_path, f"openmanus-rl train --config {tmp_path}/my.yaml").read_text(encoding="utf-8")
    assert str(tmp_path.parent) not in page
    assert "somebody" not in page
    assert "…/my.yaml" in page
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", page)


@pytest.mark.parametrize("lines", [0, 1])
def test_a_page_before_there_is_much_to_tell(tmp_path: Path, lines: int) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(lines):
        file.write(step, {"val/valid_seen/success": 0.5, "val/valid_seen/episodes": 2.0, "reward": float("nan")})
    page = write_report(config_of(tmp_path), tmp_path).read_text(encoding="utf-8")
    assert ("No step is done yet" in page) == (lines == 0)
    assert ("1 of 2" in page) == (lines == 1)


def test_axes_have_round_numbers_and_stay_above_zero() -> None:
    series = [Series("x", [(0, 0.03), (1, 0.41)])]
    assert y_ticks(series, None, 3) == (0.0, pytest.approx(0.6), 0.2)
    assert y_ticks([Series("x", [(0, 0.0), (1, 0.0)])], None, 3)[0] == 0.0
    assert y_ticks([Series("x", [(0, -2.0)])], None, 3)[0] < -2.0
    assert line_chart([Series("x", [])], "nothing", str) == ""


def test_only_what_differs_from_the_defaults_is_a_change(tmp_path: Path) -> None:
    config = config_of(tmp_path, "algorithm.adv_estimator=gae", "critic.optim.lr=0.5", "trainer.logger=console,wandb")
    assert dict(changed_keys(config)) == {
        "algorithm.gamma": "0.9",
        "actor_rollout_ref.model.path": "init:nano",
        "critic.optim.lr": "0.5",
        "env.env_name": "bandit",
        "trainer.default_local_dir": str(tmp_path),
        "trainer.logger": "[console, wandb]",
        "trainer.seed": "7",
    }
