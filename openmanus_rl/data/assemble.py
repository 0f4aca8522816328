"""Trajectories to training samples. This is the one place where it happens, and it never touches text.

Turn k+1's prompt normally is turn k's prompt and response, followed by what was observed since: then the
turns are one sequence, each token is computed once, and the agent's tokens are exactly those it sampled. Where
the prompt is something else (a window that moved on, a template that rewrites the past, a context that was
cut), a new sample starts from that prompt. The prefix is compared for every turn; it is never assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from openmanus_rl.data.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from openmanus_rl.data.trajectory import Trajectory, Turn


def assemble(trajectory: Trajectory, max_tokens: int | None = None) -> list[Sample]:
    """The training samples of one trajectory, in order.

    Every token that the agent wrote is in exactly one sample as an action. A turn with an empty response adds
    no action, and its reward goes to the written turn before it (at the start, to the one after); a run of turns
    without any gives no sample. A sample longer than `max_tokens` is an error: it
    must have been stopped while it was collected, and cutting it here would hide that.

    >>> from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn
    >>> first = Turn("a door", "open", prompt_ids=[1, 2, 3], response_ids=[7, 8], response_logprobs=[-1, -1])
    >>> then = Turn("a room", "in", prompt_ids=[1, 2, 3, 7, 8, 4, 5], response_ids=[9], response_logprobs=[-1])
    >>> [sample] = assemble(Trajectory("task", "group", "traj", (first, then), StopReason.WON))
    >>> sample.action_mask.astype(int)
    array([0, 0, 0, 1, 1, 0, 0, 1])
    """
    rewards = _rewards_of_written_turns(trajectory)
    runs = [run for run in _runs(trajectory) if any(len(turn.response_ids) for _, turn in run)]
    samples = [_join(trajectory, run, rewards) for run in runs]
    if max_tokens is not None:
        for sample in samples:
            if len(sample) > max_tokens:
                raise ValueError(
                    f"trajectory {trajectory.traj_id}: a sample of {len(sample)} tokens is longer than {max_tokens}"
                )
    return samples


def _runs(trajectory: Trajectory) -> list[list[tuple[int, Turn]]]:
    """Split the numbered turns wherever a prompt does not continue what came before."""
    runs: list[list[tuple[int, Turn]]] = []
    for index, turn in enumerate(trajectory.turns):
        if runs and continues(runs[-1][-1][1], turn):
            runs[-1].append((index, turn))
        else:
            runs.append([(index, turn)])
    return runs


def continues(before: Turn, turn: Turn) -> bool:
    """Whether `turn`'s prompt starts with all of `before`'s prompt and response."""
    prompt, response = len(before.prompt_ids), len(before.response_ids)
    return (
        len(turn.prompt_ids) >= prompt + response > 0
        and np.array_equal(turn.prompt_ids[:prompt], before.prompt_ids)
        and np.array_equal(turn.prompt_ids[prompt : prompt + response], before.response_ids)
    )


def _rewards_of_written_turns(trajectory: Trajectory) -> dict[int, float]:
    """Each written turn's reward, with those of the silent turns that follow it (or open the episode)."""
    rewards: dict[int, float] = {}
    owner, opening = -1, 0.0
    for index, turn in enumerate(trajectory.turns):
        if len(turn.response_ids):
            owner = index
            rewards[owner], opening = turn.reward + opening, 0.0
        elif owner >= 0:
            rewards[owner] += turn.reward
        else:
            opening += turn.reward
    return rewards


def _join(trajectory: Trajectory, run: Sequence[tuple[int, Turn]], rewards: dict[int, float]) -> Sample:
    """One sample from turns that continue one another."""
    # Turns at the end that wrote nothing are observations nobody answered: no action depends on them.
    last = max(position for position, (_, turn) in enumerate(run) if len(turn.response_ids))
    token_ids: list[NDArray[np.int32]] = []
    logprobs: list[NDArray[np.float32]] = []
    actions: list[NDArray[np.bool_]] = []
    turn_index: list[NDArray[np.int32]] = []
    length = 0
    for index, turn in run[: last + 1]:
        observed, written = len(turn.prompt_ids) - length, len(turn.response_ids)
        token_ids += [turn.prompt_ids[length:], turn.response_ids]
        logprobs += [np.zeros(observed, np.float32), turn.response_logprobs]
        actions += [np.zeros(observed, np.bool_), np.ones(written, np.bool_)]
        turn_index.append(np.full(observed + written, index, np.int32))
        length += observed + written
    acted = [(index, turn) for index, turn in run if len(turn.response_ids)]
    return Sample(
        group_id=trajectory.group_id,
        traj_id=trajectory.traj_id,
        token_ids=np.concatenate(token_ids),
        action_mask=np.concatenate(actions),
        turn_index=np.concatenate(turn_index),
        old_logprobs=np.concatenate(logprobs),
        turns=tuple(index for index, _ in acted),
        anchors=tuple(turn.anchor for _, turn in acted),
        step_rewards=np.array([rewards[index] for index, _ in acted]),
        weights_versions=tuple(turn.weights_version for _, turn in acted),
    )
