"""One vocabulary for all that reads a run's tokens: weights that know other ids learn nonsense, and nothing tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openmanus_rl.workers.model import load_config, load_vocabulary, vocabulary_of

if TYPE_CHECKING:
    from openmanus_rl.config.schema import Config


def is_another(vocabulary: dict[str, int] | None, tokenizer: Any) -> bool:
    """Whether these ids are known to be others than a tokenizer's."""
    ours = vocabulary_of(tokenizer)
    return vocabulary is not None and ours is not None and vocabulary != ours


def check_critic(config: Config, tokenizer: Any) -> None:
    """ValueError for a critic from elsewhere that reads other words in the policy's tokens, or does not know them all.

    One without a tokenizer of its own is taken at its word, if its embedding has a row for every token.
    """
    path = config.critic.model.path if config.critic is not None else None
    model = config.actor_rollout_ref.model
    if path is None or path == model.path:
        return
    onward = "Set it to a model of the policy's family, or leave it out: the critic then starts from the policy's model"
    if is_another(load_vocabulary(path, model.trust_remote_code), tokenizer):
        raise ValueError(f"critic.model.path: {path} has another tokenizer than the policy ({model.path}). {onward}")
    known = getattr(load_config(path, model.trust_remote_code), "vocab_size", None)
    needed = 1 + max(tokenizer.get_vocab().values())
    if known is not None and known < needed:
        raise ValueError(
            f"critic.model.path: {path} knows {known} tokens, but the policy ({model.path}) has {needed}. {onward}"
        )
