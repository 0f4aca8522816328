"""Every component by hand, and what it refuses."""

import math
from typing import Any

import pytest

from openmanus_rl.data.trajectory import StopReason, Trajectory, TrajectoryGroup, Turn
from openmanus_rl.rewards import (
    COMPONENTS,
    ExplorationReward,
    FormatReward,
    GoalReward,
    InvalidActionPenalty,
    KLReward,
    LengthPenalty,
    PolicyConsistencyReward,
    RewardComponent,
    RewardContext,
    StepReward,
    TimePenalty,
)
from tests.data.builders import trajectory, turn

NOTHING = RewardContext()


def lost(*turns: Any, **fields: Any) -> Trajectory:
    return trajectory(*turns, stop_reason=StopReason.LOST, **fields)


def test_goal() -> None:
    assert GoalReward(success_reward=10).compute(trajectory(turn([1], [2])), NOTHING) == 10
    assert GoalReward(failure_reward=-1).compute(lost(turn([1], [2])), NOTHING) == -1
    scored = lost(turn([1], [2]), turn([1], [2], info={"score": 0.75}))
    assert GoalReward(use="score", success_reward=10).compute(scored, NOTHING) == 7.5
    with pytest.raises(ValueError, match=r"gave no info\['score'\]"):
        GoalReward(use="score").compute(lost(turn([1], [2])), NOTHING)


@pytest.mark.parametrize(
    ("options", "length", "raw"),
    [
        ({"max_length": 100}, 110, -10),
        ({"max_length": 100, "penalty_type": "quadratic"}, 110, -100),
        ({"max_length": 100, "penalty_type": "log"}, 110, -math.log(11)),
        ({"max_length": 100}, 100, 0),
        ({"min_length": 5}, 3, -2),
        ({"min_length": 5, "max_length": 10}, 7, 0),
    ],
)
def test_length(options: dict[str, Any], length: int, raw: float) -> None:
    half = length // 2
    episode = trajectory(turn([1], [2] * half), turn([1], [2] * (length - half)))
    assert LengthPenalty(**options).compute(episode, NOTHING) == pytest.approx(raw)


def test_length_needs_tokens() -> None:
    with pytest.raises(ValueError, match="text only"):
        LengthPenalty(max_length=1).compute(trajectory(turn([], [])), NOTHING)


def test_notes_are_no_turns_that_the_agent_acted_in() -> None:
    """Four perfect answers and one note; the episode ends right after it."""
    perfect = "<think>go</think><action>go</action>"
    answers = [Turn("a door", perfect, [1], [2], [-0.1], info={"score": k / 4}) for k in (0, 1, 2, 3)]
    note = Turn("a door", "the key is west", [1], [2], [-0.1], info={"notes": True})
    for turns in ([*answers, note], [*answers[:2], note, *answers[2:]]):
        episode = lost(*turns)
        assert FormatReward().compute(episode, NOTHING) == 1.0
        assert TimePenalty().compute(episode, NOTHING) == -4
        assert GoalReward(use="score").compute(episode, NOTHING) == episode.final_score == 0.75
        assert LengthPenalty(max_length=4).compute(episode, NOTHING) == -1  # it was written all the same


def test_format() -> None:
    texts = [
        "<think>a\nb</think><action>go</action>",
        "<think></think> <action>x</action> ",
        "go",
        "<action>go</action>",
    ]
    turns = [turn([1], [2]) for _ in texts]
    for made, text in zip(turns, texts, strict=True):
        object.__setattr__(made, "response_text", text)
    assert FormatReward().compute(trajectory(*turns), NOTHING) == 0.5
    assert FormatReward(patterns=("<action>", "go")).compute(trajectory(*turns), NOTHING) == 0.5
    assert FormatReward(patterns="go").compute(trajectory(*turns), NOTHING) == 0.75


def test_step_time_and_invalid_actions() -> None:
    episode = trajectory(turn([1], [2], reward=0.5), turn([1], [2], reward=2, action_valid=False), turn([1], [2]))
    assert StepReward().compute(episode, NOTHING) == 2.5
    assert TimePenalty().compute(episode, NOTHING) == -3
    assert InvalidActionPenalty().compute(episode, NOTHING) == -1


def test_kl() -> None:
    """Log-probs -0.1, -0.2 and -0.1 against -0.6, -0.2 and 0.0: -(0.5 + 0 - 0.1)."""
    episode = trajectory(turn([1], [2, 3]), turn([1], [2]))
    context = RewardContext({"ref_logprobs": [[-0.6, -0.2], [0.0]]})
    assert KLReward().compute(episode, context) == pytest.approx(-0.4)
    closer = RewardContext({"ref_logprobs": [[-0.05, -0.1], [-0.05]]})
    assert KLReward().compute(episode, closer) == pytest.approx(0.05 + 0.1 + 0.05)
    for reference, message in [
        (None, "is not given"),
        ([[0.0]], "1 entries for 2 turns"),
        ([[0.0], [0.0]], r"ref_logprobs\[0\] has 1 entries for 2 tokens"),
    ]:
        with pytest.raises(ValueError, match=message):
            KLReward().compute(episode, RewardContext({"ref_logprobs": reference}))


def group_of_three() -> TrajectoryGroup:
    """At the door: open (0), open (1), knock (2). Only 0 saw the cellar; 0 and 1 the hall, where both went on."""

    def at(anchor: Any, action: str) -> Any:
        return turn([1], [2], anchor=anchor, action=action)

    door, hall = {"place": "door"}, ["hall", 1]
    failed = trajectory(at("cellar", "dig"), stop_reason=StopReason.ENV_ERROR, error="gone", traj_id="3")
    return TrajectoryGroup(
        "g0",
        (
            trajectory(at(door, "open"), at(hall, "on"), at("cellar", "dig"), traj_id="0"),
            trajectory(at(door, "open"), at(hall, "on"), traj_id="1"),
            trajectory(at(door, "knock"), traj_id="2"),
            failed,
        ),
    )


def test_consistency() -> None:
    """0: door 1/2, hall 1/1, cellar left out. 2: nobody else knocked."""
    group = group_of_three()
    raws = [PolicyConsistencyReward().compute(t, RewardContext(group=group)) for t in group.usable]
    assert raws == pytest.approx([0.75, 0.75, 0.0])


def test_exploration() -> None:
    """0: door 1/3, hall 1/2, cellar 1; the failed member does not count."""
    group = group_of_three()
    raws = [ExplorationReward().compute(t, RewardContext(group=group)) for t in group.usable]
    assert raws == pytest.approx([(1 / 3 + 1 / 2 + 1) / 3, (1 / 3 + 1 / 2) / 2, 1 / 3])


def test_who_explored_alike_scores_alike_to_the_last_bit() -> None:
    """In whatever order the rooms were seen, and however their names hash: a sum in another order rounds otherwise."""
    rooms = [f"room {k}" for k in range(7)]
    played = [
        trajectory(*[turn([1], [2], anchor=room) for room in order], traj_id=str(number))
        for number, order in enumerate([rooms, rooms[::-1], rooms[3:] + rooms[:3], rooms[:1], rooms[:2], rooms[:4]])
    ]
    group = TrajectoryGroup("g0", tuple(played))
    scores = [ExplorationReward().compute(t, RewardContext(group=group)) for t in played[:3]]
    assert scores[0] == scores[1] == scores[2]
    shares = [1 / 6, 1 / 5, 1 / 4, 1 / 4, 1 / 3, 1 / 3, 1 / 3]
    assert sum(shares) != sum(shares[::-1]), "a plain sum would tell them apart"


def test_own_revisits_unread_actions_and_missing_anchors_do_not_count() -> None:
    knocking = trajectory(*[turn([1], [2], anchor="door", action="knock") for _ in range(5)], traj_id="0")
    unread = trajectory(*[turn([1], [2], anchor="hall", action=None) for _ in range(2)], turn([1], [2]), traj_id="1")
    also = trajectory(turn([1], [2], anchor="hall", action=None), turn([1], [2]), traj_id="2")
    context = RewardContext(group=TrajectoryGroup("g0", (knocking, unread, also)))
    assert PolicyConsistencyReward().compute(knocking, context) == 0.0
    assert PolicyConsistencyReward().compute(unread, context) == 0.0
    # Five visits of one trajectory are one visitor; the hall has two; a turn without an anchor visits nothing.
    assert ExplorationReward().compute(knocking, context) == 1.0
    assert ExplorationReward().compute(unread, context) == 0.5


@pytest.mark.parametrize("component", [ExplorationReward(), PolicyConsistencyReward()])
def test_group_components_need_the_group(component: RewardComponent) -> None:
    with pytest.raises(ValueError, match="group is not given"):
        component.compute(trajectory(turn([1], [2])), NOTHING)
    with pytest.raises(ValueError, match="is not a usable member"):
        component.compute(trajectory(turn([1], [2]), traj_id="stranger"), RewardContext(group=group_of_three()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (LengthPenalty, "set max_length or min_length"),
        (lambda: LengthPenalty(max_length=1, min_length=2), "max_length 1 is less than min_length 2"),
        (
            lambda: LengthPenalty(max_length=1, penalty_type="cubic"),
            "penalty_type must be one of linear, quadratic, log",
        ),
        (lambda: GoalReward(use="luck"), "use must be one of won, score, got 'luck'"),
        (lambda: GoalReward(weight=math.nan), "weight must be a finite number"),
        (lambda: FormatReward(patterns=("(",)), "is not a regular expression"),
        (lambda: FormatReward(patterns=()), "set at least one pattern"),
        (lambda: FormatReward(patterns=(1,)), "a pattern must be text, got int"),
        (lambda: LengthPenalty(max_length="512"), "max_length must be a whole number"),
        (lambda: LengthPenalty(min_length=-5), "min_length must be a whole number that is not negative"),
        (lambda: GoalReward(success_reward="ten"), "success_reward must be a finite number, got 'ten'"),
    ],
)
def test_wrong_options(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_component_says_what_it_computes() -> None:
    for component in COMPONENTS.values():
        assert component.__doc__ is not None
        assert "raw" in component.__doc__ or component in (StepReward, GoalReward, FormatReward)
