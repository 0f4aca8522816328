"""Turns become samples by prefix, and by nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.data.assemble import assemble
from openmanus_rl.data.sample import Sample
from openmanus_rl.data.trajectory import Trajectory
from tests.data.builders import trajectories, trajectory, turn


def shown(sample: Sample) -> tuple[list[int], str, list[int]]:
    mask = "".join("x" if written else "." for written in sample.action_mask)
    return sample.token_ids.tolist(), mask, sample.turn_index.tolist()


def test_append_only_history_is_one_sample() -> None:
    episode = trajectory(
        turn([1, 2, 3], [7, 8], reward=0.5, anchor="start", weights_version=4),
        turn([1, 2, 3, 7, 8, 4, 5], [9], reward=1.0, anchor={"room": 2}, weights_version=5),
        turn([1, 2, 3, 7, 8, 4, 5, 9, 6], [10, 11], reward=0.0, anchor="end", weights_version=5),
    )
    [sample] = assemble(episode)
    assert shown(sample) == ([1, 2, 3, 7, 8, 4, 5, 9, 6, 10, 11], "...xx..x.xx", [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_allclose(sample.old_logprobs, [0, 0, 0, -0.1, -0.2, 0, 0, -0.1, 0, -0.1, -0.2], rtol=1e-6)
    assert sample.turns == (0, 1, 2)
    assert sample.anchors == ("start", {"room": 2}, "end")
    assert sample.step_rewards.tolist() == [0.5, 1.0, 0.0]
    assert sample.weights_versions == (4, 5, 5)
    assert (sample.group_id, sample.traj_id, sample.n_action_tokens) == ("g0", "g0-0", 5)


def test_a_window_gives_one_sample_a_turn() -> None:
    episode = trajectory(turn([1, 20], [7]), turn([1, 21], [8]), turn([1, 22], [9]))
    assert [shown(s) for s in assemble(episode)] == [
        ([1, 20, 7], "..x", [0, 0, 0]),
        ([1, 21, 8], "..x", [1, 1, 1]),
        ([1, 22, 9], "..x", [2, 2, 2]),
    ]


def test_a_template_that_rewrites_the_past_starts_a_new_sample_there() -> None:
    """The thought (70) of turn 0 is dropped from turn 1's prompt; turn 2 continues turn 1 as it stands."""
    episode = trajectory(turn([1], [70, 7]), turn([1, 7, 2], [71, 8]), turn([1, 7, 2, 71, 8, 3], [9]))
    assert [shown(s) for s in assemble(episode)] == [
        ([1, 70, 7], ".xx", [0, 0, 0]),
        ([1, 7, 2, 71, 8, 3, 9], "...xx.x", [1, 1, 1, 1, 1, 2, 2]),
    ]


def test_a_context_cut_on_the_left_starts_a_new_sample() -> None:
    episode = trajectory(turn([1, 2, 3], [7]), turn([1, 2, 3, 7, 4], [8]), turn([3, 7, 4, 8, 5], [9]))
    assert [s.turns for s in assemble(episode)] == [(0, 1), (2,)]


def test_retokenised_text_is_caught() -> None:
    """The same text in other tokens (7 8 read back as 78) is not a continuation."""
    episode = trajectory(turn([1], [7, 8]), turn([1, 78, 2], [9]))
    assert [s.turns for s in assemble(episode)] == [(0,), (1,)]


def test_empty_responses_add_no_action() -> None:
    episode = trajectory(turn([1], [7]), turn([1, 7, 2], []), turn([1, 7, 2, 3], [9]), turn([1, 7, 2, 3, 9, 4], []))
    [sample] = assemble(episode)
    assert shown(sample) == ([1, 7, 2, 3, 9], ".x..x", [0, 0, 1, 2, 2])
    assert sample.turns == (0, 2)
    assert assemble(trajectory(turn([1], []), turn([1, 2], []))) == []


def test_the_reward_of_a_silent_turn_is_not_lost() -> None:
    episode = trajectory(
        turn([1], [], reward=1.0),
        turn([1, 2], [7], reward=2.0),
        turn([1, 2, 7], [], reward=4.0),
        turn([9], [8], reward=8.0),
    )
    assert [s.step_rewards.tolist() for s in assemble(episode)] == [[7.0], [8.0]]


def test_an_identical_prompt_after_an_empty_response_continues() -> None:
    assert [s.turns for s in assemble(trajectory(turn([1], []), turn([1], [5])))] == [(1,)]


def test_a_text_only_trajectory_gives_nothing_to_train_on() -> None:
    assert assemble(trajectory(turn([], []), turn([], []))) == []


def test_too_long_is_an_error_not_a_cut() -> None:
    episode = trajectory(turn([1, 2, 3], [7, 8]))
    assert len(assemble(episode, max_tokens=5)) == 1
    with pytest.raises(ValueError, match="trajectory g0-0: a sample of 5 tokens is longer than 4"):
        assemble(episode, max_tokens=4)


@given(trajectories())
def test_every_sampled_token_is_trained_exactly_once(episode: Trajectory) -> None:
    samples = assemble(episode)
    trained = [int(t) for s in samples for t in s.token_ids[s.action_mask]]
    logprobs = [float(p) for s in samples for p in s.old_logprobs[s.action_mask]]
    assert trained == [int(t) for turn_ in episode.turns for t in turn_.response_ids]
    assert logprobs == [float(p) for turn_ in episode.turns for p in turn_.response_logprobs]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 2**31))
def test_append_only_prompts_always_merge(shape: list[tuple[int, int]], seed: int) -> None:
    """Whatever the lengths, a sample's tokens before a turn's response are exactly that turn's prompt."""
    rng = np.random.default_rng(seed)
    history: list[int] = []
    turns = []
    for observed, written in shape:
        prompt = history + rng.integers(0, 5, observed).tolist()
        response = rng.integers(0, 5, written).tolist()
        turns.append(turn(prompt, response))
        history = prompt + response
    samples = assemble(trajectory(*turns))
    assert len(samples) == (1 if any(written for _, written in shape) else 0)
    for sample in samples:
        for index in sample.turns:
            start = int(np.flatnonzero(sample.action_mask & (sample.turn_index == index))[0])
            assert sample.token_ids[:start].tolist() == turns[index].prompt_ids.tolist()
