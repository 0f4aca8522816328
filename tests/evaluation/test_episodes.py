"""Which episodes are played."""

import pytest

from openmanus_rl.environments.base import NumberedTasks
from openmanus_rl.evaluation.episodes import next_group, plan_episodes

TASKS = NumberedTasks("valid_seen", 5)


def test_groups_share_their_task_and_every_task_comes_once_before_one_comes_again() -> None:
    planned = plan_episodes(TASKS, "valid_seen", 20, group_size=2, seed=3)
    assert len({episode.traj_id for episode in planned}) == 20
    groups = [planned[k : k + 2] for k in range(0, 20, 2)]
    assert all(one.task == two.task and one.group_id == two.group_id for one, two in groups)
    tasks = [group[0].task for group in groups]
    assert set(tasks[:5]) == set(tasks[5:]) == set(TASKS)
    assert tasks[:5] != tasks[5:]
    assert len({episode.address for episode in planned}) == 20
    assert {(episode.split, episode.seed) for episode in planned} == {("valid_seen", 3)}


def test_a_later_call_goes_on_where_an_earlier_one_ended() -> None:
    whole = plan_episodes(TASKS, "train", 8, seed=1)
    first = plan_episodes(TASKS, "train", 3, seed=1)
    start = next_group([episode.group_id for episode in first])
    assert whole == [*first, *plan_episodes(TASKS, "train", 5, seed=1, first_group=start)]
    assert next_group([]) == next_group(["of-another-kind", "²"]) == 0
    assert [e.task for e in plan_episodes(TASKS, "train", 5, seed=2)] != [e.task for e in whole[:5]]


def test_what_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match="5 episodes cannot be split into groups of 2"):
        plan_episodes(TASKS, "train", 5, 2)
    with pytest.raises(ValueError, match="no tasks in valid_unseen"):
        plan_episodes([], "valid_unseen", 1)
