"""bfloat16 on a CPU, in a process of its own: where the machine lies about its instructions, that process would die."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.trainer.runs import model_dir

CODE = """
import sys
import numpy as np
import torch
from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.workers.model import load_model

model = load_model(sys.argv[1], "bfloat16")
requests = [
    Request(str(k), np.arange(20, 50 + k, dtype=np.int32), SamplingParams(max_tokens=6), (k,)) for k in range(4)
]
first, again = (LocalEngine(model, n_threads=1).generate(requests) for _ in range(2))
for request, one, two in zip(requests, first, again, strict=True):
    assert one.token_ids.tolist() == two.token_ids.tolist()
    assert one.logprobs.tobytes() == two.logprobs.tobytes()
    whole = torch.from_numpy(np.concatenate([request.prompt_ids, one.token_ids])).long().unsqueeze(0)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(whole).logits[0].float(), -1)
    plain = logprobs[len(request.prompt_ids) - 1 : -1].gather(-1, whole[0, len(request.prompt_ids) :, None])[:, 0]
    # bfloat16 has three digits: the two forward passes round differently, the engine is not off.
    assert np.abs(plain.numpy() - one.logprobs).mean() < 0.15, np.abs(plain.numpy() - one.logprobs)
print("ok")
"""


def test_the_engine_runs_in_bfloat16_whatever_the_processor_claims(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(model_dir(tmp_path))]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "ok"), result.stderr
