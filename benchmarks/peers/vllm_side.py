"""vLLM's side, on the same episodes: `python -m benchmarks.peers.vllm_side WORK eager|compiled`.

vLLM's offline class, driven turn by turn: all episodes' prompts to `LLM.generate`, all answers carried out, and again;
with vLLM's own defaults but for float32 and, unless it is to be compiled, eager execution. (Our own agent on vLLM is
`benchmarks.peers.ours`.)
"""

import os
import sys
import time
from typing import Any

import numpy as np

from benchmarks.peers.room import Room
from benchmarks.peers.sides import Numbers, given_work, serve
from benchmarks.peers.work import Work, tasks_of_round
from openmanus_rl.config.schema import Config


def lockstep(work: Work, config: Config, eager: bool) -> None:
    """Rounds with `LLM.generate`."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    from vllm import LLM, SamplingParams

    from openmanus_rl.agent.prompts import ChatTokens
    from openmanus_rl.workers.model import load_tokenizer

    chat = ChatTokens(load_tokenizer(work.model))
    llm = LLM(
        model=work.model, dtype="float32", enforce_eager=eager, max_num_seqs=work.episodes,
        max_model_len=config.actor_rollout_ref.rollout.max_model_len, seed=work.seed,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=config.data.max_response_length, stop=["\n"], include_stop_str_in_output=True)
    kind = type("ConfiguredRoom", (Room,), {"config": config, "overflow": ""})
    rooms = [kind() for _ in range(work.episodes)]

    def collect(number: int) -> Numbers:
        tasks = [task for task in tasks_of_round(work, config, number) for _ in range(work.group_size)]
        llm.reset_prefix_cache()
        start, before, generated = time.perf_counter(), Room.steps_taken, 0
        shown = [room.reset(task) for room, task in zip(rooms, tasks, strict=True)]
        contexts: list[Any] = [chat.start([{"role": "user", "content": text}]).tolist() for text in shown]
        playing = list(range(work.episodes))
        while playing:
            prompts: Any = [{"prompt_token_ids": contexts[k]} for k in playing]
            going_on = []
            for k, output in zip(playing, llm.generate(prompts, sampling, use_tqdm=False), strict=True):
                written = output.outputs[0]
                generated += len(written.token_ids)
                text = rooms[k].act(written.text)
                if text:
                    ids = list(written.token_ids)
                    contexts[k] = contexts[k] + ids + chat.following(text, np.array(ids, np.int32)).tolist()
                    going_on.append(k)
            playing = going_on
        seconds, steps = time.perf_counter() - start, Room.steps_taken - before
        return {"seconds": seconds, "steps": steps, "generated": generated, "episodes": work.episodes}

    serve({"round": collect})


def main() -> None:
    work = given_work()
    lockstep(work, work.config(), eager=sys.argv[2] == "eager")


if __name__ == "__main__":
    main()
