"""`examples/agent_client.py` as a process: it plays an environment through the endpoint, and says how it went."""

import os
import subprocess
import sys
from pathlib import Path

from openmanus_rl.rollout.engine import Request
from openmanus_rl.rollout.scripted_engine import ScriptedEngine
from tests.conftest import REPOSITORY
from tests.rollout.models import tokenizer
from tests.serving.servers import NAME, served


def guess_upwards(request: Request) -> list[int]:
    """Guesses 0 in the first turn, 1 in the second, ..., in the form that the default prompts ask for."""
    prompt = tokenizer().decode(request.prompt_ids, skip_special_tokens=False)
    assert "Guess my number, 0 to 9." in prompt
    assert "between <action> and </action>" in prompt
    turn = prompt.count("<|im_start|>assistant") - 1
    assert prompt.count("</action><|im_end|>") == turn  # what was cut off was put back
    ids: list[int] = tokenizer().encode(
        f"<think>Next.</think><action>{turn}</action> and more", add_special_tokens=False
    )
    return ids


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "examples" / "agent_client.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_it_plays_and_tells_how_it_went() -> None:
    engine = ScriptedEngine(guess_upwards, tokenizer(), 320, max_model_len=8192)
    with served(engine=engine) as server:
        played = run(
            REPOSITORY / "examples", "--base-url", server.url, "--model", NAME, "--env", "own_environment:GuessNumber",
            "--episodes", 4, "--verbose",
        )  # fmt: skip
    assert played.returncode == 0, played.stderr
    lines = played.stdout.splitlines()
    # The number of valid_unseen/K is K, so guessing upwards finds it in K + 1 steps.
    for number in range(4):
        assert f"valid_unseen/{number}: won in {number + 1} steps" in lines
    assert "  'Guess my number, 0 to 9.' -> '0'" in lines
    assert lines[-1] == "success 100% (4 of 4, 95 % interval 51% to 100%)"


def test_what_is_wrong_is_said() -> None:
    with served(engine=ScriptedEngine(guess_upwards, tokenizer(), 320, max_model_len=512)) as server:
        wrong = run(REPOSITORY, "--base-url", server.url, "--model", NAME, "--env", "gird")
    assert wrong.returncode == 1
    assert "did you mean grid?" in wrong.stderr
    assert "Traceback" not in wrong.stderr
