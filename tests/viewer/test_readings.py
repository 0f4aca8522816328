"""What the page is told: numbers, signs of health, references, texts of tokens, and how much a report holds."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from openmanus_rl.data.rate import Rate
from openmanus_rl.data.trajectory import StopReason
from openmanus_rl.environments.grid import GridEnv
from openmanus_rl.tracking.metrics_file import MetricsFile, read_metrics
from openmanus_rl.trainer import stages
from openmanus_rl.trainer.credit import credit_of, samples_of
from openmanus_rl.viewer import references, report
from openmanus_rl.viewer.compare import differing_settings, same_tasks
from openmanus_rl.viewer.detail import episode_detail
from openmanus_rl.viewer.health import CHECKS, health, limits_of
from openmanus_rl.viewer.overview import overview, without_folders
from openmanus_rl.viewer.run_files import NotThereError, RunFiles
from openmanus_rl.viewer.tokens import Pieces, find_tokenizer
from tests.conftest import REPOSITORY
from tests.viewer.runs import in_progress, make_config, make_run, make_tokenizer, play


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run") / "one", steps=2)


# --- credit as the trainer computes it --------------------------------------------------------------------------


def played_group(size: int = 3) -> list[Any]:
    env, tokenizer = GridEnv(), make_tokenizer()
    return [play(env, tokenizer, "train/3", ("g", f"g-{k}"), "train", 0.2 * k, 0, 8) for k in range(size)]


def test_credit_of_an_episode_in_several_samples_is_in_the_order_of_its_turns(tmp_path: Path) -> None:
    """Where the context is cut, an episode is several training sequences; its credit is still one column."""
    whole = played_group()
    apart = [
        replace(t, turns=tuple(replace(u, prompt_ids=np.array([9, k])) for k, u in enumerate(t.turns))) for t in whole
    ]
    config = make_config(tmp_path)
    found = []
    for trajectories in (whole, apart):
        batch = stages.make_batch(trajectories, config.algorithm, config.actor_rollout_ref.actor)
        batch = stages.compute_advantages(batch, config.algorithm)
        samples = samples_of(batch, trajectories[1:])
        found.append(credit_of(batch, samples, batch.old_logprobs, config.algorithm))
        assert (len(samples) > 2) == (trajectories is apart)
    assert [credit.traj_id for credit in found[0]] == ["g-1", "g-2"]
    for one, other, trajectory in zip(*found, whole[1:], strict=True):
        sampled = np.concatenate([turn.response_logprobs for turn in trajectory.turns])
        np.testing.assert_allclose(one.columns["old_logprobs"], sampled)
        np.testing.assert_allclose(other.columns["old_logprobs"], sampled)
        for name in ("grpo", "gigpo"):
            np.testing.assert_allclose(one.estimators[name], other.estimators[name], atol=1e-6)
        assert one.turns.tolist() == other.turns.tolist() == list(range(len(trajectory.turns)))


def test_grpo_by_hand_and_gae_without_a_critic(tmp_path: Path) -> None:
    """Scores 0, 0, 3 in a group: mean 1, std sqrt(3). GAE's values are zero: discounted rewards, whitened."""
    group = [replace(t, score=score) for t, score in zip(played_group(), (0.0, 0.0, 3.0), strict=True)]
    config = make_config(tmp_path, "algorithm.whiten_advantages=false")
    batch = stages.make_batch(group, config.algorithm, config.actor_rollout_ref.actor)
    batch = stages.compute_advantages(batch, config.algorithm)
    credits_ = credit_of(batch, samples_of(batch, group), batch.old_logprobs, config.algorithm)
    assert [float(c.estimators["grpo"][0]) for c in credits_] == pytest.approx([-(3**-0.5), -(3**-0.5), 2 * 3**-0.5])
    gae = credits_[2].estimators["gae"]
    assert gae[-1] == pytest.approx(3.0)
    assert gae[-2] == pytest.approx(3.0 * 0.95, abs=1e-5)
    assert torch.equal(torch.tensor(credits_[0].estimators["gigpo"]), torch.tensor(credits_[0].columns["advantages"]))


# --- reading ----------------------------------------------------------------------------------------------------


def test_an_overview_has_the_numbers_of_the_metrics(run: Path) -> None:
    shown = overview(RunFiles(run))
    lines = read_metrics(run / "metrics.jsonl")
    training = next(curve for curve in shown["success"] if curve["name"] == "training")
    step, share, low, high, won, total = training["points"][0]
    rate = Rate(round(lines[1]["success"] * 12), 12)
    assert (step, won, total) == (1, rate.count, 12)
    assert (share, low, high) == pytest.approx((rate.value, *rate.interval), abs=1e-4)
    assert shown["rewards"]["names"] == ["format", "step"]
    assert shown["rewards"]["points"][0][1] == pytest.approx(-0.05)
    assert shown["moments"][0]["both"][4] == 8
    assert shown["step"] == 2
    assert shown["command"] == "openmanus-rl train trainer.default_local_dir=…/one"
    assert str(run.parent) not in str(shown)


def test_whether_a_run_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    with in_progress(run):
        assert overview(RunFiles(run))["status"] == "running"
    assert overview(RunFiles(run))["status"] == "interrupted"
    MetricsFile(run / "metrics.jsonl", resume_after=1).write(6, {"reward": 1.0})
    assert overview(RunFiles(run))["status"] == "finished"


def test_a_run_that_this_version_cannot_load_still_opens(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "old"
    other.mkdir()
    text = (run / "config.yaml").read_text() + "not_a_key: 1\n"
    (other / "config.yaml").write_text(text)
    shown = overview(RunFiles(other))
    assert shown["estimator"] == "gigpo"
    assert any("cannot load the run's config" in note for note in shown["notes"])
    assert any("no run.json" in note for note in shown["notes"])
    for folder, message in ((tmp_path / "none", "not a directory"), (tmp_path, "is not a run")):
        with pytest.raises(ValueError, match=message):
            RunFiles(folder)


@pytest.mark.parametrize("row_id", ["../config:0", "step_000001:99", "step_000001:x", "step_9:0", "", "val_000000"])
def test_no_id_leads_out_of_the_directory(run: Path, row_id: str) -> None:
    with pytest.raises(NotThereError):
        RunFiles(run).trajectory(row_id)


def test_files_that_change_are_read_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    files = RunFiles(run)
    before, stamp = len(files.rows()), files.stamp()
    assert files.stamp() == stamp
    path = run / "trajectories" / "step_000001.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert files.stamp() != stamp
    assert len(files.rows()) == before - 7


def test_credit_of_other_tokens_is_not_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    path = run / "trajectories" / "step_000001.credit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    first = orjson.loads(lines[0])
    for columns in (first["columns"], first["estimators"]):
        columns |= {name: column[1:] for name, column in columns.items()}
    path.write_bytes(orjson.dumps(first) + b"\njunk\n" + b"".join(lines[2:]))
    files = RunFiles(run)
    assert episode_detail(files, "step_000001:0", None)["advantages"] == {}
    assert episode_detail(files, "step_000001:1", None)["missing"][1].startswith("This run kept no credit")
    assert episode_detail(files, "step_000001:2", None)["advantages"].keys() == {"gigpo", "gae", "grpo"}


def test_pieces_joined_are_the_text() -> None:
    tokenizer = make_tokenizer()
    pieces = Pieces(tokenizer)
    for text in ("open the door", "naïve 🙂🙂 café\n", "  two  spaces", "", "日本語", "<|im_end|>"):
        ids = tokenizer.encode(text).ids
        found = pieces.pieces(ids)
        assert "".join(found) == text
        assert len(found) == len(ids)
    emoji = tokenizer.encode("🙂").ids
    assert pieces.pieces(emoji) == ["", "", "", "🙂"]
    assert pieces.pieces(emoji[:2]) == ["", "\ufffd"], "a character that was cut off is shown as such"


class Counted:
    """No token completes a character, and every id that is decoded is counted."""

    decoded = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        self.decoded += len(ids)
        return "\ufffd" * len(ids)


def test_tokens_that_never_make_a_character_take_as_long_as_they_are_many() -> None:
    counted: Any = Counted()
    found = Pieces(counted).pieces([1] * 10_000)
    assert (len(found), "".join(found)) == (10_000, "\ufffd" * 10_000)
    assert counted.decoded < 70 * 10_000


def test_a_tokenizer_is_found_or_not(run: Path, tmp_path: Path) -> None:
    assert find_tokenizer(run, "init:nano") is not None
    assert find_tokenizer(tmp_path, "init:nano") is None
    assert find_tokenizer(run.parent, str(run)) is not None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert find_tokenizer(tmp_path, "") is None


# --- health -----------------------------------------------------------------------------------------------------


def line(step: int, **metrics: float) -> dict[str, Any]:
    return {"step": step, "time/step": 1.0, **{name.replace("__", "/"): value for name, value in metrics.items()}}


def states(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {sign["key"]: sign["state"] for sign in health(lines)}


@pytest.mark.parametrize("check", [c for c in CHECKS if not c.relative], ids=lambda check: check.key)
def test_each_limit_is_where_the_table_says(check: Any) -> None:
    name = check.metrics[0].replace("/", "__")
    for value, state in (
        (check.watch, "ok"),
        (check.watch * 1.01, "watch"),
        (check.off, "watch"),
        (check.off * 1.01, "off"),
    ):
        sign = next(s for s in health([line(k, **{name: value}) for k in range(8)]) if s["key"] == check.key)
        assert sign["state"] == state
        assert bool(sign["advice"]) == (state != "ok")


def test_entropy_is_compared_with_the_start_and_one_odd_step_is_no_alarm() -> None:
    steady = [line(k, actor__entropy=1.0) for k in range(10)]
    assert states(steady)["entropy"] == "ok"
    assert states([*steady, line(10, actor__entropy=0.0)])["entropy"] == "ok"
    assert states([*steady, *(line(k, actor__entropy=0.2) for k in range(10, 15))])["entropy"] == "watch"
    assert states([*steady, *(line(k, actor__entropy=0.0) for k in range(10, 15))])["entropy"] == "off"
    assert states([*steady, *(line(k, actor__entropy=9.0) for k in range(10, 15))])["entropy"] == "off"


def test_the_advice_on_groups_without_spread_depends_on_success() -> None:
    def advice(success: float) -> str:
        lines = [line(k, zero_spread_groups=1.0, success=success) for k in range(5)]
        return str(next(s for s in health(lines) if s["key"] == "zero_spread")["advice"])

    assert "too hard" in advice(0.0)
    assert "have been learned" in advice(1.0)


def test_of_the_two_kls_the_one_to_the_reference_counts() -> None:
    assert "update_kl" in states([line(1, actor__approx_kl=0.01)])
    both = states([line(1, actor__approx_kl=0.01, actor__kl_loss=0.01)])
    assert "kl" in both
    assert "update_kl" not in both
    assert states([])["gap"] == "unknown"


# --- references, comparison -------------------------------------------------------------------------------------


def test_references_are_played_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, "env.max_steps=60")
    found = references.find_references(tmp_path, config)
    assert (found["expert"]["count"], found["expert"]["total"]) == (8, 8)
    assert found["random"]["count"] < 8
    assert references.play_references(config) == found, "seeded"
    monkeypatch.setattr(references, "play_references", lambda _: pytest.fail("played again"))
    assert references.find_references(tmp_path, config) == found


def test_references_that_cannot_be_had_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GridEnv, "expert", lambda _: None)
    found = references.play_references(make_config(tmp_path))
    assert found["random"] is not None
    assert found["note"] == "No expert line: this environment has no expert."
    monkeypatch.setattr(GridEnv, "step", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in references.play_references(make_config(tmp_path))["note"]
    remote = make_config(tmp_path, "env.env_name=remote:http://127.0.0.1:1")
    assert "on a server" in references.play_references(remote)["note"]
    monkeypatch.undo()
    monkeypatch.setattr(references, "MAX_SECONDS", -1.0)
    assert "too slow" in references.play_references(make_config(tmp_path))["note"]
    monkeypatch.undo()
    assert not references.find_references(tmp_path, make_config(tmp_path))["failed"], "what failed is tried again"


def test_code_that_a_config_names_is_not_run_to_look_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "somebodys.py").write_text("from openmanus_rl.environments.grid import GridEnv\nran = True\n")
    config = make_config(tmp_path, "env.env_name=somebodys:GridEnv")
    assert "code of your own" in references.find_references(tmp_path, config)["note"]
    assert "somebodys" not in sys.modules
    assert references.find_references(tmp_path, config, run_own_code=True)["expert"]["total"] == 8


def test_settings_and_tasks_of_two_runs(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", "algorithm.gamma=0.5", steps=1, skill=0.9)
    left, right = RunFiles(run), RunFiles(other)
    changed = {row["key"]: row["values"] for row in differing_settings([left, right])}
    assert changed["algorithm.gamma"] == ["0.95", "0.5"]
    assert changed["trainer.default_local_dir"] == ["…/one", "…/other"]
    pairs = same_tasks(left, right)
    assert {pair["left"]["kind"] for pair in pairs} == {"val", "step"}
    for pair in pairs:
        assert (pair["left"]["task"], pair["left"]["seed"]) == (pair["right"]["task"], pair["right"]["seed"])
        if pair["left"]["kind"] == "step":
            assert pair["left"]["step"] == pair["right"]["step"] == 1
    assert all(pair["first_difference"] is None for pair in same_tasks(left, left))


# --- the report -------------------------------------------------------------------------------------------------


def test_a_report_is_bounded_and_has_both_ends_of_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_EPISODES", 20)
    episodes: dict[str, Any] = {}
    rows = report._fill(RunFiles(run), 0, 10**7, 20, episodes)
    assert len(rows) == len(episodes) == 20
    assert {row["id"].split(":")[0] for row in rows} >= {"step_000002", "val_000002", "step_000001"}
    small: dict[str, Any] = {}
    assert len(report._fill(RunFiles(run), 0, 30_000, 99, small)) < 5
    page = report.write_report([RunFiles(run)], tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data-episode=") == 20
    assert "http://" not in page
    assert "https://" not in page


def test_paths_are_cut_wherever_they_stand() -> None:
    assert without_folders("a=/home/me/x.yaml --config ~/my/file '/tmp/y'") == "a=…/x.yaml --config …/file '…/y'"
    assert without_folders("alfworld/AlfredTWEnv runs/x") == "alfworld/AlfredTWEnv runs/x"


def test_a_failed_episode_has_its_error(tmp_path: Path) -> None:
    from openmanus_rl.data.jsonl import write_trajectories

    run = make_run(tmp_path / "run", steps=1)
    failed = replace(played_group(1)[0], stop_reason=StopReason.ENV_ERROR, error="the server hung up", turns=())
    write_trajectories(run / "trajectories" / "step_000009.jsonl", [failed])
    detail = episode_detail(RunFiles(run), "step_000009:0", None)
    assert detail["error"] == "the server hung up"
    assert detail["turns"] == []


def test_the_documented_limits_are_those_of_the_table() -> None:
    rows = (REPOSITORY / "docs" / "viewer.md").read_text(encoding="utf-8").splitlines()
    for check in CHECKS:
        row = next(row for row in rows if row.startswith(f"| {check.title} |"))
        assert all(f"`{name}`" in row for name in check.metrics)
        assert limits_of(check) in row
