"""Readers of foreign text under atheris, which looks for inputs that take new branches; `make fuzz` runs it.

    python -m tests.hostile.atheris_targets                              the names of the targets
    python -m tests.hostile.atheris_targets actions -max_total_time=60   fuzz one of them

A target raises nothing but the error that is documented for it; anything else ends the run and is shown with its input.
Fuzzing starts from `SEEDS` and from what earlier runs found, which is kept in `.fuzz`.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

KEPT = Path(__file__).parents[2] / ".fuzz"


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


def conversation_files() -> Callable[[bytes], None]:
    """A file is conversations, or a ValueError."""
    from openmanus_rl.data.conversations import conversation_to_trajectory, read_conversations

    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            for name in ("c.jsonl", "c.json"):
                (Path(folder) / name).write_bytes(data)
                with suppress(ValueError):
                    for conversation in read_conversations(Path(folder) / name):
                        conversation_to_trajectory(conversation)

    return read


def configs() -> Callable[[bytes], None]:
    """Words are a config, or a ConfigError."""
    from openmanus_rl.config.load import load_config
    from openmanus_rl.config.problems import ConfigError

    def read(data: bytes) -> None:
        with suppress(ConfigError):
            load_config(None, None, data.decode("utf-8", "replace").split("\0"))

    return read


def config_files() -> Callable[[bytes], None]:
    """A YAML file is a config, or a ConfigError; as plain data it is a mapping, or a ValueError."""
    from openmanus_rl.config.load import load_config
    from openmanus_rl.config.problems import ConfigError
    from openmanus_rl.config.sources import read_plain

    required = ["actor_rollout_ref.model.path=init:tiny", "env.env_name=Webshop"]

    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "c.yaml"
            file.write_bytes(data)
            with suppress(ConfigError):
                load_config(None, file, required)
            with suppress(ValueError):
                assert isinstance(read_plain(file), dict)

    return read


def checkpoints() -> Callable[[bytes], None]:
    """A folder with any `state.json`, beside tensors that are whole, is a checkpoint, or a CheckpointError."""
    import torch

    from openmanus_rl.trainer.checkpoint import CheckpointError, open_checkpoint, read_checkpoint, write_checkpoint

    with TemporaryDirectory() as folder:
        good = write_checkpoint(Path(folder), 3, {"workers": {"actor": {"a": torch.ones(2)}}, "best": 0.5})
        files = {file.name: file.read_bytes() for file in good.iterdir()}

    def read(data: bytes) -> None:
        with TemporaryDirectory() as folder:
            for name, content in (files | {"state.json": data}).items():
                (Path(folder) / name).write_bytes(content)
            for reader in (read_checkpoint, open_checkpoint):
                with suppress(CheckpointError):
                    step, state = reader(Path(folder))
                    assert isinstance(step, int)
                    assert isinstance(state, dict)

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


GAME_PARTS = ("pddl_domain", "pddl_problem", "grammar")


def games() -> Callable[[bytes], None]:
    """The first byte is a part of a game file, the rest stands for that part: it is a game, or a GameError."""
    import orjson

    from openmanus_rl.environments.alfworld.export import game_data
    from openmanus_rl.environments.alfworld.game import GameError, load_game
    from openmanus_rl.environments.alfworld.generator import generate

    good = game_data(generate("0", "train", "micro"))

    def read(data: bytes) -> None:
        part = GAME_PARTS[data[0] % len(GAME_PARTS)] if data else GAME_PARTS[0]
        with TemporaryDirectory() as folder:
            file = Path(folder) / "game.tw-pddl"
            file.write_bytes(orjson.dumps(good | {part: data[1:].decode("utf-8", "replace")}))
            with suppress(GameError):
                load_game(file)

    return read


def shop_actions() -> Callable[[bytes], None]:
    """Whatever is typed in a shop, it has a next page."""
    from openmanus_rl.environments.registry import make_env

    env = make_env("webshop", products=80)

    def read(data: bytes) -> None:
        env.reset(seed=0)
        for action in data.decode("utf-8", "replace").split("\n"):
            env.step(action)

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


ROUTES = (
    ("POST", "/step"), ("POST", "/reset"), ("POST", "/close"), ("POST", "/create"), ("GET", "/tasks"),
    ("GET", "/observation"), ("GET", "/health"), ("GET", "/version"), ("GET", "/"),
)  # fmt: skip


def env_requests() -> Callable[[bytes], None]:
    """The first byte is a route of an environment server, the rest a body or a query: it is answered as documented.

    There is a session of number 1 with an episode in it.
    """
    import asyncio

    import orjson

    from openmanus_rl.environments.registry import make_env
    from openmanus_rl.environments.remote.app import EnvApp
    from openmanus_rl.environments.remote.sessions import Limits, Sessions

    sessions = Sessions(lambda: make_env("grid", size=4, tasks_per_split=30), Limits(max_sessions=3, threads=1))
    app = EnvApp("grid", sessions)

    async def ask(method: str, path: str, query: bytes = b"", body: bytes = b"") -> tuple[int, Any]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": []}
        await app(scope, receive, send)
        return sent[0]["status"], orjson.loads(sent[1]["body"])

    async def answer(data: bytes) -> None:
        sessions._next = 1  # ids start anywhere, where no fuzzer would find them
        session = await sessions.create()
        try:
            assert (await ask("POST", "/reset", body=b'{"id": 1, "task": "train/0"}'))[0] == 200
            method, path = ROUTES[data[0] % len(ROUTES)] if data else ROUTES[0]
            rest = {"query" if method == "GET" else "body": data[1:]}
            status, told = await ask(method, path, **rest)
            assert status in (200, 400, 404, 409, 413, 422, 429), (status, told)
            assert status == 200 or list(told) == ["error"]
        finally:
            for open_session in list(sessions._open):
                await sessions.close(open_session)
        assert session == 1

    return lambda data: asyncio.run(answer(data))


TARGETS = {
    target.__name__: target
    for target in (
        actions, trajectories, conversations, conversation_files, configs, config_files, checkpoints, templates,
        games, shop_actions, requests, env_requests,
    )
}  # fmt: skip
_TALK = (
    b'{"conversations": [{"from": "human", "value": "A door."}, {"from": "gpt", "value": "Open it.", "loss": true}]}'
)
_EPISODE = (
    b'{"version": 1, "task_id": "t", "group_id": "g", "traj_id": "g-0", "stop_reason": "won", "env_name": "", '
    b'"task_type": "", "split": "train", "seed": 0, "score": 0.0, "error": null, "reward_breakdown": {}, "turns": '
    b'[{"observation": "a door", "response_text": "open", "response_ids": [3], "response_logprobs": [-0.1], '
    b'"action": null, "action_valid": true, "reward": 0.0, "anchor": null, "admissible_actions": null, "info": {}, '
    b'"weights_version": 0, "prompt_kept": 0, "prompt_ids": [1, 2]}]}'
)
_STATE = (
    b'{"format": 1, "step": 3, "workers": null, "state": {"#dict": [["best", 0.5], ["workers", '
    b'{"#dict": [["a", {"#tensor": "/workers/actor/a"}]]}]]}}'
)
_GRAMMAR = rb'''
grammar :: """
    {
        "intro": [{"rhs": "Hello.\n\n#task#"}], "task": [{"rhs": "put a mug in shelf."}],
        "list_empty": [{"rhs": "nothing"}], "list_separator": [{"rhs": ", "}],
        "list_last_separator": [{"rhs": " and "}],
        "#things#": [
            {"condition": "opened(r:receptacle)", "rhs": "[{o.indefinite + ' ' + o.name | inreceptacle(o, r)}]"}
        ]
    }
""";
action look {
    template :: "look";
    feedback :: "You see {#things#} at {r.name or r.id}.";
    grammar :: """
    {"look.feedback": [{"rhs": "#list_empty#"}]}
    """;
}
'''
SEEDS: dict[str, tuple[bytes, ...]] = {
    "actions": (b"<think>a</think><action>look</action>", b"Thought: a\nAction: say yes", b'{"action": "look"}'),
    "trajectories": (_EPISODE,),
    "conversations": (_TALK,),
    "conversation_files": (_TALK + b"\n" + _TALK, b"[" + _TALK + b"]"),
    "configs": (b"algorithm.gamma=0.9\0trainer.logger=[console, jsonl]", b"+env.options.size=3"),
    "config_files": (
        b"# a recipe\nalgorithm: {adv_estimator: gae, gamma: 0.9}\ntrainer.logger: [console, jsonl]\n",
        b"reward:\n  components:\n    - {component: goal, weight: 10.0}\n    - component: length\n",
        b"a: &a [x]\nb: [*a, *a]\nc: !!python/name:os.system\n",
    ),
    "checkpoints": (
        _STATE,
        b'{"format": 1, "step": 3, "workers": {"#dict": []}, "state": {"#dict": [["best", null]]}}',
    ),
    "templates": (b"{% for m in messages %}{{ m['role'] }}: {{ m.content }}\n{% endfor %}", b"{{ 7 * 7 }}{% if %}"),
    "games": (
        b"\x00(define (domain alfred) (:action look :parameters (?a - agent) :effect (checked ?a)))",
        b"\x01(define (problem p) (:init (atLocation agent1 loc1)) (:goal (and (exists (?r) (not (= ?r shelf1))))))",
        b"\x02" + _GRAMMAR,
    ),
    "shop_actions": (b"search[red shoes]\nclick[next >]\nclick[buy now]", b"search[" + b"y" * 989 + b"ing]"),
    "requests": (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}', b'{"prompt": [1, 2], "n": 2}'),
    "env_requests": (
        b'\x00{"id": 1, "action": "north"}', b'\x01{"id": 1, "task": "train/3"}', b'\x01{"id": 1, "data_idx": 5}',
        b'\x02{"id": 1}', b"\x03{}", b"\x04split=train&offset=3&limit=4", b"\x05id=1", b"\x06", b"\x07", b"\x08",
    ),
}  # fmt: skip
"""Inputs that are right, or nearly: what fuzzing starts from."""


def corpus(name: str) -> Path:
    """The folder that a target's inputs are kept in, with its seeds."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (folder / f"seed_{number}").write_bytes(seed)
    return folder


def main() -> None:
    """Fuzz the target that is named."""
    if len(sys.argv) < 2:
        print("\n".join(TARGETS))
        return
    import atheris

    name = sys.argv[1]
    with atheris.instrument_imports(include=["openmanus_rl"]):
        target = TARGETS[name]()
    atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus(name))], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
