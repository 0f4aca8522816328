"""The agent that a config describes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from openmanus_rl.agent.openmanus_agent import AgentSettings, OpenManusAgent
from openmanus_rl.agent.prompts import ChatTokens, TextChat, load_template
from openmanus_rl.config.problems import Problem
from openmanus_rl.environments.configured import make_configured_env
from openmanus_rl.rollout.engine import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openmanus_rl.agent.collector import EngineLimit
    from openmanus_rl.agent.prompts import Chat, PromptTemplate, Tokenizer
    from openmanus_rl.config.running import EnvConfig
    from openmanus_rl.rollout.engine import Engine


def make_agent(
    env: EnvConfig, engine: Engine, tokenizer: Tokenizer | None, room: int, seed: int = 0,
    engine_limit: EngineLimit | None = None,
) -> OpenManusAgent:  # fmt: skip
    """An agent for the config's environment. `room` is the longest prompt; without a tokenizer there are no ids."""
    settings = AgentSettings(
        max_steps=env.max_steps,
        room=room,
        context=env.context,
        history_length=env.history_length,
        slide=env.on_context_limit == "slide",
        summary_every=env.summary_every if env.memory == "summary" else 0,
        retries=env.retries,
        episode_seconds=env.episode_seconds,
    )
    chat = TextChat() if tokenizer is None else ChatTokens(tokenizer)
    make_env = partial(make_configured_env, env, seed)
    return OpenManusAgent(
        engine, chat, configured_template(env), make_env, settings, env.env_name, env.threads,
        engine_limit=engine_limit,
    )  # fmt: skip


def configured_template(env: EnvConfig) -> PromptTemplate:
    """The template of the config, with its grammar."""
    return load_template(env.prompt_template, env.env_name, env.response_grammar)


class Answering(Protocol):
    """Who answers: its chat template and its form of answer."""

    @property
    def chat(self) -> Chat: ...

    @property
    def template(self) -> PromptTemplate: ...


def make_sampling(
    agent: Answering, max_tokens: int, temperature: float, top_p: float = 1.0, top_k: int = -1
) -> SamplingParams:
    """Sampling that ends where the agent's form of answer and its chat template end."""
    ends = () if agent.chat.end_of_turn is None else (agent.chat.end_of_turn,)
    return SamplingParams(max_tokens, temperature, top_p, top_k, agent.template.grammar.stop, ends)


def template_problems(env: EnvConfig) -> list[Problem]:
    """What is wrong with the template that the config names."""
    try:
        template = configured_template(env)
    except ValueError as error:
        return [Problem(str(error), ("env.prompt_template", "env.response_grammar"))]
    return list(_notes_problems(env, template))


def _notes_problems(env: EnvConfig, template: PromptTemplate) -> Iterator[Problem]:
    """Notes that no prompt shows would be sampled and trained for nothing."""
    windows = env.context == "window" or env.on_context_limit == "slide"
    # A conversation's first message is written before there are any notes.
    shown = (["system", "window"] if windows else []) + (["turn"] if env.context == "full_history" else [])
    if env.memory != "summary" or template.shows_notes.intersection(shown):
        return
    advice = f"have the template {template.name} show `summary` in its {shown[-1]}"
    if not windows and "window" in template.shows_notes:
        advice = "set env.context=window, or env.on_context_limit=slide"
    yield Problem(
        f"summary asks the model for notes, but no prompt would show them: {advice}, or set env.memory=simple",
        ("env.memory", "env.context", "env.on_context_limit", "env.prompt_template"),
    )
