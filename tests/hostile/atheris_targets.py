"""Readers of foreign text under atheris, which looks for inputs that take new branches; `make fuzz` runs it.

    python -m tests.hostile.atheris_targets                              the names of the targets
    python -m tests.hostile.atheris_targets actions -max_total_time=60   fuzz one of them

A target raises nothing but the error that is documented for it; anything else ends the run and is shown with its input.
"""

import sys
from collections.abc import Callable
from contextlib import suppress


def actions() -> Callable[[bytes], None]:
    """Whatever a model writes is read."""
    from openmanus_rl.agent.actions import GRAMMARS

    def read(data: bytes) -> None:
        for grammar in GRAMMARS.values():
            parsed = grammar.parse(data.decode("utf-8", "replace"), ("look", "say <words>"))
            assert parsed.valid is (parsed.problem == "")

    return read


def trajectories() -> Callable[[bytes], None]:
    """A line is an episode, or a ValueError."""
    from openmanus_rl.data.jsonl import loads

    def read(data: bytes) -> None:
        with suppress(ValueError):
            loads(data)

    return read


def conversations() -> Callable[[bytes], None]:
    """An item is a conversation, or a ValueError."""
    import orjson

    from openmanus_rl.data.conversations import from_sharegpt

    def read(data: bytes) -> None:
        with suppress(ValueError):
            item = orjson.loads(data)
            if isinstance(item, dict):
                from_sharegpt(item)

    return read


def configs() -> Callable[[bytes], None]:
    """Words are a config, or a ConfigError."""
    from openmanus_rl.config.load import load_config
    from openmanus_rl.config.problems import ConfigError

    def read(data: bytes) -> None:
        with suppress(ConfigError):
            load_config(None, None, data.decode("utf-8", "replace").split("\0"))

    return read


def templates() -> Callable[[bytes], None]:
    """A chat template is rendered, refused, or stopped."""
    import jinja2

    from openmanus_rl.agent.chat_template import ChatTemplate

    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    refusals = (ValueError, jinja2.TemplateError, TypeError, LookupError, ArithmeticError, AttributeError)

    def read(data: bytes) -> None:
        with suppress(*refusals):
            ChatTemplate(data.decode("utf-8", "replace")).render(talk, True)

    return read


def requests() -> Callable[[bytes], None]:
    """A body is a request, or one that is refused."""
    from openmanus_rl.serving.requests import read_messages, read_prompts, read_request
    from openmanus_rl.web.requests import RequestRefusedError, json_object

    def read(data: bytes) -> None:
        with suppress(RequestRefusedError):
            fields = json_object(data)
            for route in ("chat", "completions"):
                with suppress(RequestRefusedError):
                    asked = read_request(route, dict(fields))  # type: ignore[arg-type]
                    if hasattr(asked, "messages"):
                        read_messages(asked.messages)
                    else:
                        read_prompts(asked.prompt)

    return read


TARGETS = {
    target.__name__: target for target in (actions, trajectories, conversations, configs, templates, requests)
}  # fmt: skip


def main() -> None:
    """Fuzz the target that is named."""
    if len(sys.argv) < 2:
        print("\n".join(TARGETS))
        return
    import atheris

    with atheris.instrument_imports(include=["openmanus_rl"]):
        target = TARGETS[sys.argv[1]]()
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
