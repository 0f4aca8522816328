"""The local engine against plain forward passes: log-probs, cache, eviction, sharing, sampling."""

import copy
import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.rollout import step_plan
from openmanus_rl.rollout.engine import Completion, Request, SamplingParams
from openmanus_rl.rollout.kv_cache import KVCache
from openmanus_rl.rollout.local_engine import LocalEngine
from openmanus_rl.rollout.noise import key_of, uniforms
from openmanus_rl.rollout.sampling import filtered_logprobs, sample
from openmanus_rl.rollout.scheduler import Feed, Running
from openmanus_rl.rollout.threads import fastest_threads, threads
from tests.rollout.models import make_model, tokenizer

KINDS = ("qwen2", "llama", "gpt2", "mistral")


def play(engine: LocalEngine, episodes: int = 9, turns: int = 5, **sampling: Any) -> list[tuple[Any, Completion]]:
    """Episodes of different lengths side by side, three of each prompt; prompts and completions in order."""
    contexts = [np.random.default_rng(k // 3).integers(3, 300, 18).astype(np.int32) for k in range(episodes)]
    played: list[tuple[Any, Completion]] = []
    for turn in range(turns):
        requests = [
            Request(
                f"{k}/{turn}", context, SamplingParams(**{"max_tokens": 4 + k % 5, "stop_token_ids": (7,), **sampling}),
                (0, 0, k, 0, turn), f"episode {k}",
            )
            for k, context in enumerate(contexts)
        ]  # fmt: skip
        for k, answer in enumerate(engine.generate(requests)):
            played.append((contexts[k], answer))
            observed = np.random.default_rng((turn, k)).integers(3, 300, 1 + (5 * k + turn) % 13).astype(np.int32)
            contexts[k] = np.concatenate([contexts[k], answer.token_ids, observed])
    return played


def plain_logprobs(model: Any, prompt: Any, written: Any) -> Any:
    whole = torch.from_numpy(np.concatenate([prompt, written])).long().unsqueeze(0)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(whole).logits[0].float(), -1)
    return logprobs[len(prompt) - 1 : -1].gather(-1, whole[0, len(prompt) :, None]).squeeze(-1).numpy()


@pytest.mark.parametrize("kind", [*KINDS, "deepseek"])
def test_log_probs_are_those_of_a_plain_forward_pass(kind: str) -> None:
    model = make_model(kind)
    engine = LocalEngine(model, n_threads=1)
    for prompt, answer in play(engine):
        assert np.allclose(answer.logprobs, plain_logprobs(model, prompt, answer.token_ids), atol=1e-4)
    assert engine.stats.recomputed == 0


def one_row(kind: str) -> float:
    """GiB that hold one episode of the model's whole context."""
    return 2 * 3 * {"qwen2": 2, "mistral": 1}.get(kind, 4) * 16 * 4 * 512 / 2**30


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", ["three rows", "one row", "three episodes", "16 tokens a pass"])
def test_less_room_gives_the_same_tokens(kind: str, limit: str) -> None:
    model = make_model(kind)
    options: dict[str, Any] = {
        "three rows": {"kv_cache_gb": 3.01 * one_row(kind)},
        "one row": {"kv_cache_gb": 1.01 * one_row(kind)},
        "three episodes": {"max_num_seqs": 3},
        "16 tokens a pass": {"max_batch_tokens": 16},
    }[limit]
    roomy = play(LocalEngine(model, n_threads=1), turns=7, max_tokens=9)
    engine = LocalEngine(model, n_threads=1, **options)
    cramped = play(engine, turns=7, max_tokens=9)
    for (_, one), (_, other) in zip(roomy, cramped, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert (engine.stats.evictions > 0) == (limit != "16 tokens a pass")
    assert (engine.stats.recomputed > 0) == (limit != "16 tokens a pass")


@pytest.mark.parametrize("kind", [*KINDS, "deepseek"])
@pytest.mark.parametrize("call", [-1000, 40, 10**9])
def test_rows_may_be_attended_to_in_any_stretches(kind: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, in some stretches, and all together with whatever is idle among them."""
    found: list[Any] = []
    stretch = step_plan.Stretch
    monkeypatch.setattr(step_plan, "Stretch", lambda **told: found.append(stretch(**told)) or found[-1])
    monkeypatch.setattr(step_plan, "LONGEST_COPIED", 0 if call < 0 else 256)
    model = make_model(kind)
    engine = LocalEngine(model, n_threads=1)
    engine.tokens_a_call = call
    found.clear()  # those of its own comparison
    for prompt, answer in play(engine):
        assert np.allclose(answer.logprobs, plain_logprobs(model, prompt, answer.token_ids), atol=1e-4)
    assert (max(one.count for one in found) > 1) == (call > 0)
    assert any(one.inside is not None for one in found) == (call > 0)
    assert any(one.lengths is None for one in found)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True).map(sorted),
    st.lists(st.integers(1, 300), min_size=20, max_size=20),
    st.integers(0, 500),
)
def test_stretches_cost_no_more_than_rows_one_by_one(rows: list[int], lengths: list[int], call: int) -> None:
    lengths = lengths[: len(rows)]
    ends = list(step_plan.stretch_ends(rows, lengths, call))
    assert ends == sorted(set(ends))
    assert ends[-1] == len(rows)
    cost = sum(
        (rows[last - 1] - rows[first] + 1) * max(lengths[first:last]) + call for first, last in pairwise([0, *ends])
    )
    assert cost <= sum(lengths) + call * len(rows)


@pytest.mark.parametrize("rows", [(1, 3, 4, 5, 6, 7), (0, 5, 6), (0, 1, 2), (3, 2, 1)])
def test_long_rows_are_read_where_they_are(rows: tuple[int, ...]) -> None:
    """Short ones that are apart are copied out, to be read together; nothing long ever is, whatever is beside it."""
    request = Request("", np.zeros(1800, np.int32), SamplingParams(max_tokens=1))
    lengths = [40, 40, *[1740] * 4][: len(rows)]
    feeds = [Feed(Running(request, 0, 1, row=row), end - 20, end) for row, end in zip(rows, lengths, strict=True)]
    plan = step_plan.make_plan(KVCache(8, 2000, 2**30), feeds, 1000, torch.device("cpu"))
    assert [row for block in plan.reading for row in block.rows.tolist()] == list(rows)
    copied = [block for block in plan.reading if block.row is None]
    assert all(block.longest <= step_plan.LONGEST_COPIED for block in copied)
    together = [len(block.rows) for block in plan.reading]
    assert together == {(1, 3, 4, 5, 6, 7): [2, 4], (0, 5, 6): [2, 1], (0, 1, 2): [3], (3, 2, 1): [2, 1]}[rows]


def test_the_cache_is_counted_as_large_as_it_gets() -> None:
    """Also where values are of another size than keys: a budget for three rows holds three."""
    for kind in (*KINDS, "deepseek"):
        engine = LocalEngine(make_model(kind), n_threads=1, max_model_len=256)
        engine.generate([Request("a", np.arange(3, 9, dtype=np.int32), SamplingParams(max_tokens=2))])
        cache = engine.scheduler.cache
        held = sum(part.nbytes for layer in cache.layers.values() for part in layer)
        assert held == cache.rows * cache.capacity * cache.bytes_per_token


def test_rows_grow_while_episodes_run_and_late_ones_are_evicted_in_mid_response() -> None:
    model = make_model()
    engine = LocalEngine(model, n_threads=1, kv_cache_gb=2.01 * one_row("qwen2"), max_num_seqs=8)
    assert engine.scheduler.cache.rows == 4  # rows of 256
    prompts = [np.full(250 - k, 20 + k, np.int32) for k in range(4)]
    requests = [Request(str(k), p, SamplingParams(max_tokens=20), (k,), f"s{k}") for k, p in enumerate(prompts)]
    answers = engine.generate(requests)
    assert engine.scheduler.cache.rows == 2
    assert engine.stats.evictions == 4  # two in mid-response, then the two idle sessions that made room for them
    for prompt, answer in zip(prompts, answers, strict=True):
        assert np.allclose(answer.logprobs, plain_logprobs(model, prompt, answer.token_ids), atol=1e-4)


def test_two_runs_are_identical_bit_for_bit() -> None:
    one, other = (play(LocalEngine(make_model(), n_threads=1)) for _ in range(2))
    for (_, a), (_, b) in zip(one, other, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


def test_a_groups_prompt_is_read_once_and_turns_read_only_what_is_new() -> None:
    engine = LocalEngine(make_model(), n_threads=1)
    prompt = np.arange(20, 120, dtype=np.int32)
    group = [Request(f"g{k}", prompt, SamplingParams(max_tokens=5), (k,), f"s{k}") for k in range(8)]
    answers = engine.generate(group)
    # The prompt once, its last token for seven others, and four of the five tokens each one wrote.
    assert engine.stats.computed == 100 + 7 + 8 * 4
    assert engine.stats.reused == 7 * 99
    following = [
        Request(
            f"n{k}", np.concatenate([prompt, a.token_ids, [50, 51, 52]]), SamplingParams(max_tokens=1), (k,), f"s{k}"
        )
        for k, a in enumerate(answers)
    ]
    before = engine.stats.computed
    engine.generate(following)
    assert engine.stats.computed - before == 8 * (1 + 3)  # its last token, and the observation
    assert engine.stats.recomputed == 0


def test_a_prompt_that_rewrites_the_past_keeps_what_is_still_true() -> None:
    model = make_model()
    engine = LocalEngine(model, n_threads=1)
    first = np.arange(20, 80, dtype=np.int32)
    engine.generate([Request("a", first, SamplingParams(max_tokens=3), (0,), "s")])
    changed = np.concatenate([first[:40], np.arange(100, 130, dtype=np.int32)])
    before = engine.stats.computed
    [answer] = engine.generate([Request("b", changed, SamplingParams(max_tokens=3), (1,), "s")])
    assert engine.stats.computed - before == 30 + 2
    assert np.allclose(answer.logprobs, plain_logprobs(model, changed, answer.token_ids), atol=1e-4)


def test_new_weights_forget_the_cache_even_in_mid_response() -> None:
    model = make_model()
    engine = LocalEngine(model, n_threads=1)
    prompt = np.arange(20, 60, dtype=np.int32)
    engine.generate([Request("a", prompt, SamplingParams(max_tokens=3), (0,), "s")])
    other = make_model(seed=1)
    engine.submit([Request("b", prompt, SamplingParams(max_tokens=4), (1,), "t"),
                   Request("c", prompt, SamplingParams(max_tokens=1), (2,), "u")])  # fmt: skip
    assert [done.request_id for done in engine.poll()] == ["c"]
    model.load_state_dict(other.state_dict())
    engine.weights_changed(7)
    [late] = engine.poll()
    assert late.weights_version == 0  # the oldest that wrote a part of it
    expected = plain_logprobs(other, prompt, late.token_ids)
    assert np.allclose(late.logprobs[1:], expected[1:], atol=1e-4)
    assert not np.allclose(late.logprobs[:1], expected[:1], atol=1e-4)


def test_the_model_is_given_back_as_it_was() -> None:
    model = make_model().train()
    was = model.config._attn_implementation
    LocalEngine(model, n_threads=1).generate([Request("a", np.ones(5, np.int32), SamplingParams(max_tokens=2))])
    assert model.training
    assert model.config._attn_implementation == was
    assert model(torch.ones(1, 5, dtype=torch.long)).logits.shape == (1, 5, 320)


def test_weights_that_are_not_finite_are_an_error_that_says_so() -> None:
    model = make_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    [answer] = LocalEngine(model, n_threads=1).generate(
        [Request("a", np.ones(5, np.int32), SamplingParams(max_tokens=2))]
    )
    assert answer.error is not None
    assert "not finite" in answer.error


def test_a_nan_does_not_outlive_the_weights_that_made_it() -> None:
    model = make_model()
    engine = LocalEngine(model, n_threads=1)
    good = model.state_dict()["model.norm.weight"].clone()
    layer = model.model.layers[0].input_layernorm.weight
    kept = layer.detach().clone()
    with torch.no_grad():
        layer.fill_(float("nan"))
    prompts = [np.arange(20, 60, dtype=np.int32), np.arange(70, 80, dtype=np.int32)]
    sampling = SamplingParams(max_tokens=3)
    bad = engine.generate([Request(f"b{k}", p, sampling, (k,), f"s{k}") for k, p in enumerate(prompts)])
    assert all(answer.error for answer in bad)
    with torch.no_grad():
        layer.copy_(kept)
    engine.weights_changed(1)
    requests = [Request(f"g{k}", p[::-1].copy(), sampling, (k,), f"t{k}") for k, p in enumerate(prompts)]
    assert [answer.error for answer in engine.generate(requests[::-1])] == [None, None]
    assert torch.equal(good, model.state_dict()["model.norm.weight"])


def test_a_cancelled_request_that_could_not_run_is_not_given_back() -> None:
    engine = LocalEngine(make_model(), n_threads=1)
    engine.submit([Request("long", np.ones(600, np.int32), SamplingParams(max_tokens=4))])
    engine.cancel(["long"])
    assert (engine.in_flight, engine.poll()) == (0, [])


def test_bad_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len=1000 is longer than the model's context of 512"):
        LocalEngine(make_model(), max_model_len=1000)
    with pytest.raises(ValueError, match=r"too small for one episode: 512 tokens take 0\.4 MiB"):
        LocalEngine(make_model(), kv_cache_gb=1e-5)


# --- sampling ---------------------------------------------------------------------------------------------


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    params = [SamplingParams(max_tokens=1, temperature=0.5)]
    uniform = torch.from_numpy(uniforms(np.full(20_000, key_of((1, 2)), np.uint64), np.arange(20_000, dtype=np.uint64)))
    tokens, logprobs = sample(logits.expand(20_000, 4), params * 20_000, uniform)
    expected = torch.softmax(logits[0] / 0.5, -1)
    assert np.allclose(np.bincount(tokens.numpy(), minlength=4) / 20_000, expected.numpy(), atol=0.01)
    assert torch.allclose(logprobs, expected.log()[tokens], atol=1e-5)


def test_top_k_and_top_p_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    for options, kept in [
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"top_p": 0.1}, [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0]),  # of 0.9 the first two are 0.83
        ({}, [0.5, 0.25, 0.15, 0.1]),
    ]:
        found = filtered_logprobs(logits, [SamplingParams(max_tokens=1, **options)]).exp()[0]  # type: ignore[arg-type]
        assert torch.allclose(found, torch.tensor(kept, dtype=torch.float32), atol=1e-6), options


def test_greedy_takes_the_likeliest_whatever_the_noise() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 3)
    params = [SamplingParams(max_tokens=1, temperature=0.0)] * 3
    tokens, logprobs = sample(logits, params, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 1, 1]
    assert torch.allclose(logprobs, torch.log_softmax(logits, -1)[:, 1])


def test_a_token_that_was_filtered_out_is_never_drawn() -> None:
    logits = torch.tensor([[5.0, 0.0, -2.0]])
    for u in (0.0, 0.5, 1 - 2**-53):
        params = [SamplingParams(max_tokens=1, top_k=1)]
        tokens, logprobs = sample(logits, params, torch.tensor([u], dtype=torch.float64))
        assert (tokens.item(), logprobs.item()) == (0, 0.0)


def test_noise_has_addresses() -> None:
    keys = np.array([key_of((0, 1, 2)), key_of((0, 12)), key_of((0, 1, 2))], np.uint64)
    first = uniforms(keys, np.array([0, 0, 1], np.uint64))
    assert len(set(first.tolist())) == 3
    many = uniforms(np.full(50_000, 5, np.uint64), np.arange(50_000, dtype=np.uint64))
    assert 0 <= many.min() < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01
    assert np.abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.02


def test_stop_strings_across_tokens_and_multi_byte_characters() -> None:
    from openmanus_rl.rollout.stopping import StopChecker

    checker = StopChecker(tokenizer())
    cases = [
        ("</action>", "</action>", True),
        ("a>b", "</action>", False),
        ("caf\u00e9", "f\u00e9", True),
        ("x \u51b0\u7bb1", "\u51b0\u7bb1", True),
        ("open door", "door", True),
        ("end \n", "\n", True),
    ]
    for text, stop, ends in cases:
        written = tokenizer().encode(text, add_special_tokens=False)
        assert checker.ends(written, (stop,)) is ends, text
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        StopChecker(None).ends([1], ("a",))


def test_a_token_is_decoded_once_for_all_stop_strings() -> None:
    from openmanus_rl.rollout.stopping import StopChecker

    decoded: list[list[int]] = []

    class Counting:
        def decode(self, token_ids: Any, skip_special_tokens: bool = True) -> str:
            decoded.append(list(token_ids))
            return str(tokenizer().decode(token_ids, skip_special_tokens=skip_special_tokens))

    checker = StopChecker(Counting())
    written = tokenizer().encode("take key", add_special_tokens=False)
    for k in range(1000):  # every client of a server names its own
        assert not checker.ends(written, (f"{k}!",))
    assert decoded == [[written[-1]]]


def test_stop_tokens_are_looked_up_not_searched() -> None:
    params = SamplingParams(max_tokens=4, stop_token_ids=(5, 2, 5))
    assert params.stop_token_ids == (5, 2, 5)
    assert params.stop_tokens == frozenset({2, 5})
    changed = dataclasses.replace(copy.deepcopy(params), stop_token_ids=(7,))  # as it reaches other processes
    assert changed.stop_tokens == frozenset({7})


def test_threads_are_chosen_and_put_back() -> None:
    with threads(2):
        assert fastest_threads(lambda: None) in (1, 2)
        with threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        engine = LocalEngine(make_model())
        engine.generate([Request("a", np.ones(5, np.int32), SamplingParams(max_tokens=2))])
        assert engine.n_threads in (1, 2)
