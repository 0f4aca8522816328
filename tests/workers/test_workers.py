"""Packed training against the obvious: padded rows one by one, plain autograd, hand-set numbers."""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from openmanus_rl.config.learning import ActorConfig, ActorRolloutRefConfig, CriticConfig, CriticOptim, Optim
from openmanus_rl.data.batch import Batch
from openmanus_rl.workers.actor import ActorRolloutRefWorker, combine
from openmanus_rl.workers.critic import CriticWorker
from openmanus_rl.workers.micro_batches import split_into_micro_batches, split_into_mini_batches, split_over_ranks
from openmanus_rl.workers.optimizer import Optimizer
from openmanus_rl.workers.packed import Packed, prepare, token_logprobs
from tests.rollout.models import make_model
from tests.workers.batches import make_batch, weights

KINDS = ("qwen2", "llama", "gpt2", "mistral")


def plain_logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """Sample by sample, as transformers computes it."""
    column = torch.zeros(batch.n_tokens)
    bounds = batch.cu_seqlens.tolist()
    for start, end in pairwise(bounds):
        ids = batch.token_ids[start:end]
        logits = model(ids.unsqueeze(0)).logits[0].float() / temperature
        found = torch.log_softmax(logits[:-1], -1).gather(-1, ids[1:, None]).squeeze(-1)
        column[start + 1 : end] = found.detach()
    return column * batch.action_mask


def settings(**actor: Any) -> ActorRolloutRefConfig:
    return ActorRolloutRefConfig(actor=ActorConfig(**{"use_kl_loss": False, "optim": Optim(lr=1e-2), **actor}))


def worker(kind: str = "qwen2", max_tokens: int = 1000, reference: bool = False, **actor: Any) -> ActorRolloutRefWorker:
    return ActorRolloutRefWorker(make_model(kind), settings(**actor), max_tokens, 10, reference)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_tokens", [1000, 40])
def test_packed_log_probs_are_those_of_each_sequence_alone(kind: str, max_tokens: int) -> None:
    batch = make_batch()
    expected = plain_logprobs(make_model(kind), batch)
    assert torch.allclose(worker(kind, max_tokens).compute_log_prob(batch), expected, atol=1e-5)


def test_nothing_is_left_out_at_random_while_training() -> None:
    """OPT hands its dropout to a function, and leaves out layers; GPT-2 has modules for it."""
    sizes = {"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 128, "num_hidden_layers": 3}
    opt = OPTForCausalLM(OPTConfig(vocab_size=320, num_attention_heads=4, dropout=0.3, layerdrop=0.5, **sizes))
    batch = make_batch()
    packed, targets = Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens), batch.action_mask.nonzero()[:, 0]
    for model in (opt.eval(), make_model("gpt2")):
        prepare(model)
        expected = token_logprobs(model, packed, targets)[0]
        assert torch.equal(token_logprobs(model.train(), packed, targets)[0], expected)


def test_log_probs_are_at_the_temperature_of_sampling() -> None:
    batch, model = make_batch(), make_model()
    prepare(model)
    packed = Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens)
    targets = batch.action_mask.nonzero().squeeze(-1)
    found, entropy = token_logprobs(model, packed, targets, temperature=0.5, chunk_tokens=7)
    assert torch.allclose(found, plain_logprobs(make_model(), batch, 0.5)[targets], atol=1e-5)
    assert (entropy > 0).all()


def test_chunked_and_recomputed_logits_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch()
    gradients = []
    for kept in (2, 0):
        monkeypatch.setattr("openmanus_rl.workers.chosen_tokens.KEPT_CHUNKS", kept)
        model = make_model()
        prepare(model)
        packed = Packed(batch.token_ids, batch.position_ids, batch.cu_seqlens)
        targets = batch.action_mask.nonzero().squeeze(-1)
        logprobs, entropy = token_logprobs(model, packed, targets, chunk_tokens=5)
        (logprobs.sum() + entropy.sum()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(gradients[0], gradients[1], atol=1e-5)


def plain_descent(actor: Any) -> None:
    """Weights then differ as gradients do; AdamW makes a step of full size out of the rounding of a zero."""
    actor.optimizer.movers = {"sgd": torch.optim.SGD(actor.optimizer.parameters, lr=1.0)}


@pytest.mark.parametrize("agg", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("kl", [False, True])
def test_micro_batches_add_up_to_the_mini_batch(agg: str, kl: bool) -> None:
    after = []
    for max_tokens in (10_000, 45, 1):
        actor = worker(max_tokens=max_tokens, reference=kl, loss_agg_mode=agg, use_kl_loss=kl, kl_loss_coef=0.5,
                       entropy_coeff=0.1)  # fmt: skip
        plain_descent(actor)
        batch = make_batch()
        if kl:
            batch = batch.with_columns(ref_logprobs=batch.old_logprobs * 0.5)
        metrics = actor.update_actor(batch, 3, np.random.default_rng(0))
        after.append((weights(actor.model), metrics))
    for other, metrics in after[1:]:
        assert torch.allclose(after[0][0], other, atol=1e-6)
        for name, value in after[0][1].items():
            assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_gradient_checkpointing_changes_nothing() -> None:
    plain, checkpointed = worker(), None
    config = settings()
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"enable_gradient_checkpointing": True})}
    )
    checkpointed = ActorRolloutRefWorker(make_model(), config, 1000, 10, False)
    for actor in (plain, checkpointed):
        actor.update_actor(make_batch(), 3, np.random.default_rng(0))
    assert torch.allclose(weights(plain.model), weights(checkpointed.model), atol=1e-6)


def test_the_update_moves_log_probs_the_way_of_the_advantages() -> None:
    batch = make_batch()
    actor = worker(optim=Optim(lr=1e-3))
    before = actor.compute_log_prob(batch)
    batch = batch.with_columns(old_logprobs=before)
    for _ in range(5):
        actor.update_actor(batch, 3, np.random.default_rng(0))
    moved = actor.compute_log_prob(batch) - before
    assert batch.advantages is not None
    assert float((moved * batch.advantages).sum()) > 0


def test_tokens_the_agent_did_not_write_have_no_gradient_of_their_own() -> None:
    """Whatever stands in their columns (which `Batch` would refuse) changes nothing."""
    clean = make_batch()
    assert clean.advantages is not None
    junk = copy.copy(clean)
    written = clean.action_mask
    object.__setattr__(junk, "advantages", torch.where(written, clean.advantages, 1e6))
    object.__setattr__(junk, "old_logprobs", torch.where(written, clean.old_logprobs, -7.0))
    after = []
    for batch in (clean, junk):
        actor = worker()
        before = weights(actor.model).clone()
        actor.update_actor(batch, 3, np.random.default_rng(0))
        after.append(weights(actor.model))
        assert not torch.equal(before, after[-1])
    assert torch.equal(*after)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    actor = worker()
    batch = make_batch()
    before = weights(actor.model).clone()
    assert batch.advantages is not None
    batch.advantages[int(batch.action_mask.nonzero()[0])] = float("inf")
    metrics = actor.update_actor(batch, 3, np.random.default_rng(0))
    assert metrics["skipped_steps"] == 1
    assert torch.equal(weights(actor.model), before)
    assert actor.optimizer.steps == 0


def test_a_resumed_worker_goes_on_bit_for_bit() -> None:
    straight = worker(reference=True)
    batch = make_batch()
    for _ in range(2):
        straight.update_actor(batch, 2, np.random.default_rng(1))
    resumed = worker(reference=True)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for actor in (straight, resumed):
        actor.update_actor(batch, 2, np.random.default_rng(2))
    assert torch.equal(weights(straight.model), weights(resumed.model))
    assert torch.equal(weights(straight.reference), weights(resumed.reference))


def test_the_reference_does_not_move() -> None:
    actor = worker(reference=True)
    batch = make_batch()
    first = actor.compute_ref_log_prob(batch)
    assert torch.equal(first, actor.compute_log_prob(batch))
    actor.update_actor(batch, 3, np.random.default_rng(0))
    assert torch.equal(actor.compute_ref_log_prob(batch), first)
    assert not torch.equal(actor.compute_log_prob(batch), first)


# --- the critic ---------------------------------------------------------------------------------------------


def test_a_new_critic_expects_nothing_and_then_learns() -> None:
    batch = make_batch()
    critic = CriticWorker(make_model(), CriticConfig(optim=CriticOptim(lr=1e-2), cliprange_value=None), 1, 50, 100)
    assert not critic.compute_values(batch).any()
    losses = [critic.update_critic(batch, 3, np.random.default_rng(0))["value_loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    assert not critic.compute_values(batch)[~batch.action_mask].any()


def test_critic_micro_batches_add_up() -> None:
    after = []
    for max_tokens in (10_000, 45):
        critic = CriticWorker(make_model(), CriticConfig(optim=CriticOptim(lr=1e-2)), 2, max_tokens, 100)
        plain_descent(critic)
        critic.update_critic(make_batch(), 2, np.random.default_rng(0))
        after.append(weights(critic.model))
    assert torch.allclose(after[0], after[1], atol=1e-6)


# --- portions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_get_every_sample_once_and_differ_by_no_more_than_one(ranks: int) -> None:
    batch = make_batch(samples=12, groups=4)
    lengths = batch.lengths.tolist()
    shares = split_over_ranks(batch, range(12), ranks)
    assert sorted(sample for share in shares for sample in share) == list(range(12))
    tokens = [sum(lengths[sample] for sample in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths)


def test_mini_batches_hold_whole_groups_once() -> None:
    batch = make_batch(samples=12, groups=4)
    portions = split_into_mini_batches(batch, 2, np.random.default_rng(0))
    assert sorted(sample for portion in portions for sample in portion) == list(range(12))
    for portion in portions:
        assert len({sample % 4 for sample in portion}) == 2
    other = split_into_mini_batches(batch, 2, np.random.default_rng(1))
    assert portions != other


def test_no_mini_batch_is_left_with_a_group_or_two() -> None:
    """Nine groups of sixteen are left: an update with one of them alone would move the weights as far as eight do."""
    batch = make_batch(samples=9, groups=9)
    assert [len(portion) for portion in split_into_mini_batches(batch, 8, np.random.default_rng(0))] == [5, 4]


@pytest.mark.parametrize("max_tokens", [1, 40, 100, 10_000])
def test_micro_batches_keep_to_their_size_and_lose_nothing(max_tokens: int) -> None:
    batch = make_batch(samples=20)
    micros = split_into_micro_batches(batch, range(20), max_tokens)
    assert (
        torch.cat([micro.places for micro in micros]).sort()[0].tolist()
        == batch.action_mask.nonzero().flatten().tolist()
    )
    for micro in micros:
        size = len(micro.packed.token_ids)
        assert size <= max_tokens or micro.n_samples == 1
        assert torch.equal(micro.packed.token_ids[micro.targets], batch.token_ids[micro.places])
        assert int(micro.mask.sum()) == len(micro.targets)


def test_metrics_of_several_steps() -> None:
    steps = [{"loss": 1.0, "ratio_max": 2.0, "ratio_min": 0.5, "skipped_steps": 0.0},
             {"loss": 3.0, "ratio_max": 1.0, "ratio_min": 0.9, "skipped_steps": 1.0}]  # fmt: skip
    assert combine(steps) == {"loss": 2.0, "ratio_max": 2.0, "ratio_min": 0.5, "skipped_steps": 1.0}


def test_norms_and_biases_do_not_decay() -> None:
    model = make_model()
    optimizer = Optimizer(model, Optim(lr=0.1, weight_decay=0.5), 10, 1.0, scaled=False)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    norm = model.model.norm.weight.detach().clone()
    embedding = model.model.embed_tokens.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.model.norm.weight, norm)
    assert torch.allclose(model.model.embed_tokens.weight, embedding * 0.95)
