"""Servers that are not ours: AgentGym's two dialects, with errors that arrive as HTTP 200."""

from typing import Any

import pytest

from openmanus_rl.environments.base import EPISODE_OVER
from openmanus_rl.environments.registry import make_env
from openmanus_rl.environments.remote.errors import RemoteEnvError, ServerRefusedError
from tests.environments.remote.servers import Script, scripted

OPTIONS: dict[str, Any] = {"retries": 0, "backoff": 0}


def agentgym(dialect: str) -> Script:
    """Count up to the task's number: alfworld-like in the `id` dialect, webshop-like in the other."""
    counts: dict[int, list[int]] = {}
    key = "id" if dialect == "id" else "env_idx"

    def answer(path: str, request: dict[str, Any]) -> Any:
        if path == "/create":
            counts[len(counts)] = [0, 0]
            return {"id": len(counts) - 1} if dialect == "id" else len(counts) - 1
        if path not in ("/reset", "/step") or (dialect == "env_idx" and path == "/close"):
            return 404, {"detail": "Not Found"}
        if request[key] not in counts:
            return {"error": f"The id {request[key]} is not valid."}
        count = counts[request[key]]
        if path == "/reset" and dialect == "id":
            assert request["world_type"] == "Text"
            count[:] = [0, request["game"]]
            return {"id": request["id"], "observation": "count", "available_actions": ["up"], "task_type": "counting"}
        if path == "/reset":
            count[:] = [0, request["session_id"]]
            return ["count", None]
        if request["action"] == "break":
            return {"error": "list index out of range"}
        count[0] += request["action"] == "up"
        shown = {"reward": int(count[0] >= count[1]), "done": count[0] >= count[1]}
        if dialect == "id":
            return {**shown, "observation": f"at {count[0]}", "available_actions": ["up"]}
        return {**shown, "state": f"at {count[0]}", "info": None}

    return answer


@pytest.mark.parametrize("given", ["auto", "given"])
@pytest.mark.parametrize("dialect", ["id", "env_idx"])
def test_both_dialects(dialect: str, given: str) -> None:
    chosen = {} if given == "auto" else {"dialect": dialect}
    with scripted(agentgym(dialect)) as server:
        env = make_env(f"remote:{server.url}", train_tasks=10, valid_tasks=5, **OPTIONS, **chosen)
        assert (len(env.tasks("train")), len(env.tasks("valid_unseen"))) == (10, 5)
        observation, info = env.reset(options={"task": "train/2"})
        listed = ("up",) if dialect == "id" else None
        assert observation == "count"
        assert info == {
            "won": False,
            "score": 0.0,
            "task_type": "counting" if dialect == "id" else "remote",
            "admissible_actions": listed,
            "action_valid": True,
            "anchor": "count",
        }
        observation, reward, terminated, truncated, info = env.step("down")
        assert (observation, reward, type(reward), terminated, truncated) == ("at 0", 0.0, float, False, False)
        assert info["action_valid"] is (dialect == "env_idx")
        env.step("up")
        _, reward, terminated, _, info = env.step("up")
        assert (reward, terminated, info["won"], info["score"]) == (1.0, True, True, 1.0)
        assert info["task_type"] == ("counting" if dialect == "id" else "remote")
        steps = server.calls.count("/step")
        assert env.step("up")[:4] == (EPISODE_OVER, 0.0, True, False)
        assert server.calls.count("/step") == steps
        env.close()
        env.close()


def test_tasks_are_numbers_with_offsets() -> None:
    asked: list[dict[str, Any]] = []

    def answer(path: str, request: dict[str, Any]) -> Any:
        if path == "/create":
            asked.append(request)
            return {"env_idx": 5}
        asked.append(request)
        return (404, "no") if path == "/version" else "start"

    with scripted(answer) as server:
        name, sizes = f"remote:{server.url}", {"train_tasks": 10, "valid_tasks": 5, **OPTIONS}
        env = make_env(name, **sizes)
        for task, number in (("train/9", 9), ("valid_seen/0", 10), ("valid_unseen/4", 19)):
            env.reset(options={"task": task})
            assert asked[-1] == {"env_idx": 5, "data_idx": number, "session_id": number, "item_id": number}
        with pytest.raises(ValueError, match="has no task 'train/10': train has 10"):
            env.reset(options={"task": "train/10"})
        env.reset(seed=23)
        assert asked[-1]["data_idx"] == 3
        env.close()
        env = make_env(
            name, **sizes, valid_seen_offset=0, valid_unseen_offset=70, task_key="level",
            create_fields={"goal": "x"}, reset_fields={"mode": "hard"},
        )  # fmt: skip
        env.reset(options={"task": "valid_unseen/1"})
        assert asked[-1] == {"env_idx": 5, "level": 71, "mode": "hard"}
        assert {"goal": "x"} in asked


@pytest.mark.parametrize("dialect", ["id", "env_idx"])
def test_an_error_that_arrives_as_200_is_an_error(dialect: str) -> None:
    with scripted(agentgym(dialect)) as server:
        env = make_env(f"remote:{server.url}", **OPTIONS)
        env.reset(options={"task": "train/3"})
        with pytest.raises(ServerRefusedError, match="answered 200: list index out of range"):
            env.step("break")
        with pytest.raises(RemoteEnvError, match="reset starts another"):
            env.step("up")
        assert env.reset(options={"task": "train/3"})[0] == "count"
        assert server.calls.count("/create") == 2


@pytest.mark.parametrize("dialect", ["id", "env_idx"])
def test_a_foreign_server_that_forgot_the_session_gets_a_new_one_at_reset_only(dialect: str) -> None:
    scripts = [agentgym(dialect)]

    def latest(path: str, request: dict[str, Any]) -> Any:
        return scripts[-1](path, request)

    with scripted(latest) as server:
        env = make_env(f"remote:{server.url}", **OPTIONS)
        env.reset(options={"task": "train/3"})
        scripts.append(agentgym(dialect))
        with pytest.raises(ServerRefusedError, match="is not valid"):
            env.step("up")
        scripts.append(agentgym(dialect))
        assert env.reset(options={"task": "train/3"})[0] == "count"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"observation": 3, "reward": 0, "done": False}, "the observation is 3, not text"),
        ({"observation": "x", "reward": None, "done": False}, "the reward is None, not a finite number"),
        ({"observation": "x", "reward": "1", "done": False}, "the reward is '1', not a finite number"),
        ({"observation": "x", "reward": True, "done": False}, "the reward is True, not a finite number"),
        ({"observation": "x", "reward": 0, "done": "false"}, "done is 'false', not true or false"),
        ({"observation": "x", "reward": 0, "done": None}, "done is None, not true or false"),
        ({"observation": "x", "reward": 0, "done": [0]}, r"done is \[0\], not true or false"),
        ({"observation": "x", "reward": 0, "done": 2}, "done is 2, not true or false"),
        ({"observation": "x", "reward": 0, "done": 1.0}, "done is 1.0, not true or false"),
        ({"observation": "x", "reward": 0, "done": False, "truncated": "no"}, "truncated is 'no', not true or false"),
        ({"observation": "x", "reward": 0, "terminated": "no"}, "terminated is 'no', not true or false"),
        (None, "not an observation"),
        ((500, {"detail": "Internal Server Error"}), "answered 500: Internal Server Error"),
        ((302, "elsewhere"), "answered 302: elsewhere"),
    ],
    ids=str,
)
def test_answers_that_make_no_sense(told: Any, message: str) -> None:
    script = agentgym("id")
    with scripted(lambda path, request: told if path == "/step" else script(path, request)) as server:
        env = make_env(f"remote:{server.url}", **OPTIONS)
        env.reset(options={"task": "train/3"})
        with pytest.raises(RemoteEnvError, match=message):
            env.step("up")


def test_a_foreign_server_may_say_0_and_1() -> None:
    script = agentgym("id")
    for done in (0, 1):
        told = {"observation": "x", "reward": 0, "done": done}
        with scripted(lambda path, request, told=told: told if path == "/step" else script(path, request)) as server:
            env = make_env(f"remote:{server.url}", **OPTIONS)
            env.reset(options={"task": "train/3"})
            assert env.step("up")[2:4] == (done == 1, False)


@pytest.mark.parametrize("told", ["a page", True, {"session": 1}, {"id": "7"}, {"error": "full"}])
def test_a_create_that_is_no_session(told: Any) -> None:
    with scripted(lambda path, _: told if path == "/create" else (404, "no")) as server:
        env = make_env(f"remote:{server.url}", **OPTIONS)
        with pytest.raises(RemoteEnvError, match=r"not a session; is it an environment server|answered 200: full"):
            env.reset()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("remote:", {}, "it looks like http://HOST:PORT"),
        ("remote:ftp://x", {}, "it looks like http://HOST:PORT"),
        ("remote:http://x:99999", {}, "Port out of range"),
        ("remote:http://x?y=1", {}, "no .query"),
        ("remote:http://x,", {}, "'' is not a server's address"),
        ("remote:http://x", {"dialect": "french"}, "dialect must be auto, id or env_idx"),
        ("remote:http://x", {"timeout": 0}, "timeout must be a number of at least 0.001"),
        ("remote:http://x", {"timeout": "5"}, "timeout must be a number"),
        ("remote:http://x", {"retries": -1}, "retries must be a whole number from 0"),
        ("remote:http://x", {"train_tasks": 0}, "train_tasks must be a whole number from 1"),
        ("remote:http://x", {"valid_seen_offset": -1}, "valid_seen_offset must be a whole number from 0"),
        ("remote:http://x", {"win_reward": 0}, "win_reward must be"),
        ("remote:http://x", {"tokn": "y"}, "has no option tokn; it takes .*token"),
        ("remote:http://x", {"anchor_mode": "smell"}, "anchor_mode must be state or observation"),
    ],
)
def test_wrong_addresses_and_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(name, **options)
