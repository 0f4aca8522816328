"""Token ids for what was recorded as text: it is shown again, turn by turn, as a rollout would have shown it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from openmanus_rl.agent.configured import configured_template
from openmanus_rl.agent.context import make_context, opening
from openmanus_rl.agent.recording import advance, opening_situation
from openmanus_rl.data.trajectory import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmanus_rl.agent.actions import Grammar
    from openmanus_rl.agent.prompts import Chat
    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.data.conversations import Conversation


def replay_trajectory(trajectory: Trajectory, env: EnvConfig, chat: Chat, room: int) -> Trajectory:
    """The episode with the prompts of the config's template and context; it ends where a prompt would not fit.

    An answer in another form than the template asks for is written anew with the same action.
    """
    if any(turn.is_notes for turn in trajectory.turns):
        raise ValueError("it holds notes, which cannot be shown again without token ids")
    template = configured_template(env)
    context = make_context(chat, template, room, env.context, env.history_length, slide=env.on_context_limit == "slide")
    now = opening_situation(trajectory.turns[0].observation, _seen(trajectory.turns[0]))
    shown: list[Turn] = []
    for step, turn in enumerate(trajectory.turns):
        if step:
            before = trajectory.turns[step - 1]
            advance(now, before, str(before.info.get("problem") or ""), turn.observation, _seen(turn))
        now.step = step
        prompt = context.prompt(now)
        if prompt is None:
            break
        text = _in_form(turn, template.grammar)
        ids = chat.answer(text)
        context.answered(ids, text)
        shown.append(_with_ids(replace(turn, response_text=text), prompt, ids))
    if not shown:
        raise ValueError(f"its first prompt is longer than {room} tokens")
    return replace(trajectory, turns=tuple(shown))


def _seen(turn: Turn) -> Any:
    """As much of the environment's info as prompts are made of. The goal is the same at every step."""
    return {"admissible_actions": turn.admissible_actions, "goal": turn.info.get("goal")}


def _in_form(turn: Turn, grammar: Grammar) -> str:
    if turn.action is None or grammar.parse(turn.response_text, turn.admissible_actions).action == turn.action:
        return turn.response_text
    return grammar.write(turn.action)


def replay_conversation(conversation: Conversation, chat: Chat) -> Trajectory:
    """A conversation of a file through the chat template, its messages as they are.

    Its turns are the agent's messages to learn from; the others are part of the prompts. Messages of the environment
    that follow one another are joined, and those that nobody answered are left out.
    """
    turns: list[Turn] = []
    system: list[str] = []
    pending: list[str] = []
    prompt: NDArray[np.int32] | None = None
    answer = np.empty(0, np.int32)
    for position, message in enumerate(conversation.messages):
        if message.speaker == "system" and prompt is None and not pending:
            system.append(message.value)
        elif message.speaker != "gpt":
            pending.append(message.value)
        elif not pending:
            raise ValueError(f"message {position}: the agent answers where nothing was said")
        else:
            said = "\n".join(pending)
            if prompt is None:
                prompt = chat.start(opening("\n".join(system), said))
            else:
                prompt = np.concatenate([prompt, answer, chat.following(said, answer)])
            answer, pending = chat.answer(message.value), []
            if message.is_trained:
                turns.append(_with_ids(Turn(said, message.value), prompt, answer))
    if not turns:
        raise ValueError("it holds nothing of the agent's to learn from")
    name = conversation.item_id or "conversation"
    return Trajectory(name, name, name, tuple(turns), StopReason.WON)


def _with_ids(turn: Turn, prompt: NDArray[np.int32], answer: NDArray[np.int32]) -> Turn:
    """Log-probs are zero, as a demonstration's are."""
    return replace(turn, prompt_ids=prompt, response_ids=answer, response_logprobs=np.zeros(len(answer), np.float32))
