"""What the local engine does with a model first: compare it with the model itself, and measure a token in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmanus_rl.rollout.engine import Request, SamplingParams
from openmanus_rl.rollout.kv_cache import KVCache
from openmanus_rl.rollout.own_numbers import LENGTHS, OwnNumbers, picked
from openmanus_rl.rollout.scheduler import Feed, Running

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    Run = Callable[[list[Feed], NDArray[np.int32], KVCache], Tensor]

INSTEAD = "use actor_rollout_ref.rollout.name=vllm"


def refuse_stateful(model: Any) -> None:
    """ValueError for a model that carries a state from token to token, by its own class."""
    if getattr(model, "_is_stateful", False):
        name = type(model).__name__
        raise ValueError(f"{name} carries a state from token to token, which the local engine does not keep; {INSTEAD}")


def check_run(model: Any, own: OwnNumbers, run: Run) -> list[int]:
    """Bytes of a token in each layer's cache; ValueError where `run` computes other numbers than the model itself.

    Two episodes read all but the last two tokens, and decode one.
    """
    texts = [tokens.cpu().numpy().astype(np.int32) for tokens in own.sequences]
    nothing = SamplingParams(max_tokens=1)
    episodes = [Running(Request("", text[:-2], nothing), 0, 1, row=row) for row, text in enumerate(texts)]
    cache = KVCache(len(texts), max(LENGTHS), 2**30)
    found = []
    for decoding in (False, True):
        feeds = [Feed(episode, episode.length - 1 if decoding else 0, episode.length) for episode in episodes]
        given = np.concatenate([feed.running.tokens(feed.start, feed.stop) for feed in feeds])
        following = [int(text[episode.length]) for text, episode in zip(texts, episodes, strict=True)]
        logits = run(feeds, given, cache)
        found.append(picked(logits, torch.tensor(following, device=logits.device)))
        for episode, token in zip(episodes, following, strict=True):
            episode.written.append(token)
    gap = own.gap(torch.stack(found, 1).flatten(), last=2)
    if own.disagrees(gap) or not cache.layers:
        raise ValueError(
            f"{type(model).__name__} does not run in the local engine: the log-probs there are {gap:.2g} off those of "
            f"its own forward pass on average; {INSTEAD}"
        )
    return [sum(part.shape[1] * part.shape[3] * part.itemsize for part in pair) for pair in cache.layers.values()]
