"""One episode as the page shows it: turns, the text of each token, and the columns of numbers behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.data.jsonl import common_prefix_length

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openmanus_rl.data.credit import Credit
    from openmanus_rl.data.trajectory import Trajectory, Turn
    from openmanus_rl.viewer.run_files import RunFiles
    from openmanus_rl.viewer.tokens import Pieces

# A page that is asked for an episode of a million characters still opens.
MAX_TEXT = 20_000
MAX_PEERS = 60
NO_CREDIT = {
    "step": "This run kept no credit for this episode: it was made before credit was recorded, or the step did not "
    "learn from this episode. Shown are the log-probs of the engine.",
    "val": "Validation episodes are not trained on, so they have no advantages. Shown are the log-probs of the engine.",
}
NO_TOKENIZER = (
    "The run directory has no tokenizer.json, so the text of single tokens is not known: each turn is one piece."
)
NO_TOKENS = "These turns have text only, no token ids."
# How the page names the columns of `data/credit.py`.
SHORT = {
    "old_logprobs": "logprob", "new_logprobs": "new", "ref_logprobs": "ref", "values": "value",
    "token_rewards": "reward", "returns": "return",
}  # fmt: skip


def episode_detail(run: RunFiles, row_id: str, pieces: Pieces | None) -> dict[str, Any]:
    """Everything about one episode."""
    trajectory = run.trajectory(row_id)
    credits_ = run.credits_beside(row_id)
    credit = credits_.get((trajectory.group_id, trajectory.traj_id))
    count = sum(len(turn.response_ids) for turn in trajectory.turns)
    if credit is not None and credit.n_tokens != count:
        credit = None  # of other tokens than these
    kind = row_id.partition("_")[0]
    missing = []
    if count == 0:
        missing.append(NO_TOKENS)
    elif pieces is None:
        missing.append(NO_TOKENIZER)
    if credit is None:
        missing.append(NO_CREDIT.get(kind, NO_CREDIT["step"]))
    return {
        "id": row_id,
        "error": trajectory.error,
        "terms": {name: [term.raw, term.weighted] for name, term in trajectory.reward_breakdown.items()},
        "missing": missing,
        "estimator": None if credit is None else credit.estimator,
        "critic": credit is not None and "values" in credit.columns,
        "clip": clip_range(run),
        "columns": _columns(trajectory, credit),
        "advantages": {} if credit is None else {name: _plain(column) for name, column in credit.estimators.items()},
        "turns": _turns(run, row_id, trajectory, credits_ if credit is not None else {}, pieces),
    }


def clip_range(run: RunFiles) -> list[float]:
    """Between which ratios the policy loss of a run still moves a token."""
    actor = "actor_rollout_ref.actor."
    plain = run.number(f"{actor}clip_ratio", 0.2)
    low, high = (run.number(f"{actor}clip_ratio_{side}", plain) for side in ("low", "high"))
    return [1.0 - (low or 0.0), 1.0 + (high or 0.0)]


def _columns(trajectory: Trajectory, credit: Credit | None) -> dict[str, list[float]]:
    if credit is None:
        sampled = [turn.response_logprobs for turn in trajectory.turns]
        return {"logprob": _plain(np.concatenate(sampled)) if sampled else []}
    return {SHORT[name]: _plain(column) for name, column in credit.columns.items() if name in SHORT}


def _turns(
    run: RunFiles,
    row_id: str,
    trajectory: Trajectory,
    credits_: Mapping[tuple[str, str], Credit],
    pieces: Pieces | None,
) -> list[dict[str, Any]]:
    shown, start, seen = [], 0, np.empty(0, np.int32)
    anchors = _anchors(run, row_id, trajectory, credits_)
    for number, turn in enumerate(trajectory.turns):
        kept = common_prefix_length(seen, turn.prompt_ids)
        new = turn.prompt_ids[kept:]
        shown.append(
            {
                "observation": _cut(turn.observation),
                "prompt": _cut(pieces.text(new.tolist())) if pieces is not None and len(new) else None,
                "observed": len(new),
                "response": _cut(turn.response_text),
                "action": turn.action,
                "valid": turn.action_valid,
                "reward": round(turn.reward, 6),
                "from": start,
                "tokens": _pieces(turn, pieces),
                "version": turn.weights_version,
                "anchor": anchors.get(number),
            }
        )
        start += len(turn.response_ids)
        seen = np.concatenate((turn.prompt_ids, turn.response_ids))
    return shown


def _pieces(turn: Turn, pieces: Pieces | None) -> list[str]:
    """A piece a token; without a tokenizer the whole text is the first token's."""
    if not len(turn.response_ids):
        return []
    if pieces is None:
        return [_cut(turn.response_text), *[""] * (len(turn.response_ids) - 1)]
    return pieces.pieces(turn.response_ids.tolist())


def _anchors(
    run: RunFiles, row_id: str, trajectory: Trajectory, credits_: Mapping[tuple[str, str], Credit]
) -> dict[int, dict[str, Any]]:
    """For each written turn the step group that GiGPO compares it in, and where the other steps of it are."""
    own = credits_.get((trajectory.group_id, trajectory.traj_id))
    if own is None:
        return {}
    ids = {
        row["traj"]: row["id"]
        for path in run.episode_paths() if path.stem == row_id.partition(":")[0]
        for row in run.episode_file(path).rows if row["group"] == trajectory.group_id
    }  # fmt: skip
    steps: dict[int, list[dict[str, Any]]] = {}
    for (group, name), credit in credits_.items():
        if group == trajectory.group_id and name in ids:
            for turn, code, value in zip(credit.turns, credit.step_groups, credit.step_returns, strict=True):
                steps.setdefault(int(code), []).append(
                    {"id": ids[name], "traj": name, "turn": int(turn), "return": round(float(value), 6)}
                )
    return {
        int(turn): {
            "group": int(code),
            "size": int(size),
            "return": round(float(value), 6),
            "peers": [
                peer for peer in steps.get(int(code), ())
                if (peer["traj"], peer["turn"]) != (trajectory.traj_id, int(turn))
            ][:MAX_PEERS],
        }
        for turn, code, size, value in zip(
            own.turns, own.step_groups, own.step_group_sizes, own.step_returns, strict=True
        )
    }  # fmt: skip


def _plain(column: Any) -> list[float]:
    return [float(value) for value in np.round(np.asarray(column, np.float64), 6)]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters)"
