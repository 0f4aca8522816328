"""The bare loops that our update is measured against do the same update, in one pass and in several."""

import numpy as np
import pytest
import torch

from benchmarks.comparison_page import kept, page
from benchmarks.peers.updating import Load, bare_update, make_batch, make_model, tokens_of_a_pass
from openmanus_rl.config.load import load_config
from openmanus_rl.workers.actor import ActorRolloutRefWorker


@pytest.mark.parametrize("turns", [(2, 2, 2, 2, 2), (1, 3, 2, 4, 1)])
def test_passes_add_up_to_the_update_of_the_whole_batch(turns: tuple[int, ...]) -> None:
    batch = make_batch(Load(turns), 64)
    whole, parts = make_model(64), make_model(64)
    seen: list[torch.Size] = []
    parts.model.register_forward_pre_hook(lambda _, __, words: seen.append(words["input_ids"].shape), with_kwargs=True)
    gradients: dict[str, dict[str, torch.Tensor]] = {}
    for name, model, tokens in (("whole", whole, None), ("parts", parts, 420)):
        taken = gradients.setdefault(name, {})
        update = bare_update(model, batch, tokens)
        for key, weight in model.named_parameters():
            # AdamW's first step is almost the sign of a gradient: compare what it is given.
            weight.register_post_accumulate_grad_hook(lambda w, k=key, t=taken: t.__setitem__(k, w.grad.clone()))
        update()
    assert len(seen) > 1
    assert all(rows * width <= 420 for rows, width in seen)
    assert sum(rows for rows, _ in seen) == len(turns)
    for key, gradient in gradients["whole"].items():
        torch.testing.assert_close(gradients["parts"][key], gradient, rtol=1e-4, atol=1e-6)


def test_ours_computes_the_gradients_of_the_bare_loop() -> None:
    """Where the ratio is 1 and there is no KL and no entropy bonus, PPO's gradient is that of the bare loss."""
    batch = make_batch(Load((1, 3, 2, 4, 1)), 64)
    recipe = load_config("default", None, ["actor_rollout_ref.actor.use_kl_loss=false"]).actor_rollout_ref
    assert recipe.actor.entropy_coeff == 0
    gradients: list[dict[str, torch.Tensor]] = []
    for ours in (True, False):
        model = make_model(64)
        actor = ActorRolloutRefWorker(model, recipe, 200, total_steps=100, needs_reference=False)
        batch = batch.with_columns(old_logprobs=actor.compute_log_prob(batch))
        taken: dict[str, torch.Tensor] = {}
        for key, weight in model.named_parameters():
            weight.register_post_accumulate_grad_hook(lambda w, k=key, t=taken: t.__setitem__(k, w.grad.clone()))
        if ours:
            actor.update_actor(batch, len(batch.group_ids), np.random.default_rng(0))
        else:
            bare_update(model, batch)()
        gradients.append(taken)
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[1].items():
        assert gradient.abs().max() > 1e-5
        torch.testing.assert_close(gradients[0][key], gradient, rtol=1e-4, atol=1e-6)


def test_a_pass_is_as_large_as_our_micro_batches() -> None:
    assert tokens_of_a_pass() == 4_096


def test_the_page_tells_of_the_second_loop_where_it_was_measured() -> None:
    records = kept()
    rows = [row for row in records["update"]["rows"] if "in micro-batches" not in row["what"]]
    without = page({**records, "update": {**records["update"], "rows": rows}})
    assert "| the same, bare loop in micro-batches as large as ours | not measured | unknown |" in without
    assert '"Bare loop in micro-batches"' not in without
    speed = {
        "what": "bare loop in micro-batches, equal lengths",
        "tokens_a_second": 3000.0,
        "lowest": 1.0,
        "highest": 9.0,
    }
    over = {"median": 1.2, "lowest": 1.1, "highest": 1.3, "rounds": 5}
    more = [speed, {"what": "this package over bare loop in micro-batches, equal lengths", **over}]
    told = page({**records, "update": {**records["update"], "rows": rows + more, "commit": "1234567"}})
    assert "| the same, bare loop in micro-batches as large as ours | 120% (110% to 130%) | yes |" in told
    assert '"Bare loop in micro-batches"' in told
    assert "| bare loop in micro-batches, equal lengths | 3,000 | 1 | 9 |" in told
