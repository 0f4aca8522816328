"""A served model plays an environment through OpenAI's own client (`pip install openai`).

    openmanus-rl serve runs/default                                                      # in one terminal
    python examples/agent_client.py --config runs/default/config.yaml --model default    # in another

The prompts are those that the model was trained with, from the run's config; `--env NAME` plays any environment with
the default prompts. Any OpenAI-compatible server will do: `--base-url`, and $OPENAI_API_KEY for its key.
"""

import argparse
import os
import sys

import numpy as np
from openai import OpenAI

from openmanus_rl.agent.context import Past, make_context
from openmanus_rl.agent.prompts import TextChat, load_template
from openmanus_rl.agent.recording import opening_situation
from openmanus_rl.config.load import load_config
from openmanus_rl.config.problems import ConfigError
from openmanus_rl.data.rate import Rate
from openmanus_rl.environments.configured import make_configured_env

NO_MODEL = "served-elsewhere"  # a config names a model; here the server has it


def play(ask, env, template, context, task, max_steps, verbose=False):
    """One episode; whether it was won, and in how many steps. `ask` gives the answer to a conversation."""
    observation, info = env.reset(options={"task": task})
    now = opening_situation(observation, info)
    for step in range(max_steps):
        now.step = step
        context.prompt(now)
        text = ask(context.messages)
        context.answered(np.empty(0, np.int32), text)
        parsed = template.grammar.parse(text, info["admissible_actions"])
        if verbose:
            print(f"  {now.observation!r} -> {parsed.action or parsed.problem!r}")
        now.past.append(Past(step + 1, now.observation, parsed.action or ""))
        now.problem = parsed.problem
        if parsed.action is not None:
            now.observation, _, terminated, truncated, info = env.step(parsed.action)
            now.admissible_actions = info["admissible_actions"]
            if terminated or truncated:
                return bool(info["won"]), step + 1
    return False, max_steps


def asker(client, model, grammar, max_tokens):
    """Asks the server for the next answer."""

    def ask(messages):
        answer = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=max_tokens, stop=list(grammar.stop) or None
        )
        choice = answer.choices[0]
        # Servers cut the stop string off; those that say which one it was let us put it back.
        ended_by = getattr(choice, "stop_reason", None)
        return (choice.message.content or "") + (ended_by if isinstance(ended_by, str) else "")

    return ask


def main():
    parser = argparse.ArgumentParser(description="Let a served model play an environment.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True, help="its name on the server: see /v1/models")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--config", help="a run's config.yaml: environment and prompts as in training")
    where.add_argument("--env", help="a name, an alias, module:Class, or remote:URL, with the default prompts")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--split", default="valid_unseen", choices=["train", "valid_seen", "valid_unseen"])
    parser.add_argument("--verbose", action="store_true", help="show every turn")
    arguments = parser.parse_args()

    sys.path.insert(0, "")  # module:Class is looked for where you are
    try:
        words = (
            [] if arguments.config else [f"env.env_name={arguments.env}", f"actor_rollout_ref.model.path={NO_MODEL}"]
        )
        config = load_config(config_file=arguments.config, overrides=words)
        env = make_configured_env(config.env, config.trainer.seed)
        template = load_template(config.env.prompt_template, config.env.env_name, config.env.response_grammar)
    except (ConfigError, ValueError) as error:
        sys.exit(f"error: {error}")
    client = OpenAI(base_url=arguments.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    ask = asker(client, arguments.model, template.grammar, config.data.max_response_length)
    won = 0
    tasks = env.tasks(arguments.split)[: arguments.episodes]
    for task in tasks:
        context = make_context(TextChat(), template, 0, config.env.context, config.env.history_length)
        success, steps = play(ask, env, template, context, task, config.env.max_steps, arguments.verbose)
        won += success
        print(f"{task}: {'won' if success else 'not won'} in {steps} steps")
    env.close()
    rate = Rate(won, len(tasks))
    low, high = rate.interval
    print(f"success {rate.value:.0%} ({won} of {len(tasks)}, 95 % interval {low:.0%} to {high:.0%})")


if __name__ == "__main__":
    main()
