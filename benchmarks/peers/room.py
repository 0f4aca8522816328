"""Our environment as TRL wants one: a class with `reset`, tools as methods, and `get_reward`.

Texts are those of our own agent, word for word. An answer of the model is the call of the one tool there is; the chat
template and the response template that say so to TRL are here as well.
"""

from typing import Any

from openmanus_rl.agent.configured import configured_template
from openmanus_rl.agent.context import Past
from openmanus_rl.agent.recording import opening_situation
from openmanus_rl.config.schema import Config
from openmanus_rl.environments.configured import make_configured_env

# ChatML, as our models have it. What the environment answers is shown as a message of the user, as in our own prompts.
# TRL renders the call of a tool only to find out what follows it, up to the end of the turn.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ 'user' if message['role'] == 'tool' else message['role'] }}\n"
    "{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }} {{ call['function']['arguments'] }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Everything that the model writes is the argument of `act`, even nothing.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant", "content": ""},
    "start_anchor": "<|im_start|>",
    "fields": {
        "tool_calls": {
            "open": "assistant\n",
            "close": "<|im_end|>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{content}"}}},
        }
    },
}


class Room:
    """One episode at a time. `config` and `overflow` are set on a subclass, as TRL makes instances without arguments.

    TRL's loop goes on for as long as the model calls a tool, and ours always does; it leaves out a result that does not
    fit into the episode's room, and ends the episode there. So `overflow`, such a result, ends an episode that is over.
    """

    config: Config
    overflow: str
    steps_taken = 0

    def __init__(self) -> None:
        env = self.config.env
        self._env = make_configured_env(env, self.config.trainer.seed)
        self._template = configured_template(env)

    def reset(self, task: str, **_: Any) -> str:
        """Begin a task; what is seen first."""
        observation, info = self._env.reset(seed=self.config.trainer.seed, options={"task": task})
        self._now, self._info = opening_situation(observation, info), info
        self._steps, self._paid = 0, 0.0
        return self._template.render("start", **self._now.values([]))

    def act(self, action: str) -> str:
        """Do something in the room.

        Args:
            action: What to do.

        Returns:
            What is seen then.
        """
        parsed = self._template.grammar.parse(action, self._info["admissible_actions"])
        now, over = self._now, False
        if parsed.action is not None:
            observation, reward, terminated, truncated, self._info = self._env.step(parsed.action)
            self._paid += float(reward)
            over = terminated or truncated
        else:
            observation = now.observation
        now.past.append(Past(self._steps + 1, now.observation, parsed.action or ""))
        now.observation, now.admissible_actions = observation, self._info["admissible_actions"]
        valid = parsed.valid and bool(self._info["action_valid"])
        now.problem = "" if valid else parsed.problem or "the action does nothing here"
        self._steps += 1
        Room.steps_taken += 1
        if over or self._steps >= self.config.env.max_steps:
            return self.overflow
        return self._template.render("turn", **now.values(now.past))

    def get_reward(self) -> float:
        """What the episode paid. Taking the price of an invalid action off it would blame all of its turns."""
        return self._paid
