"""Text in pieces is the text as a whole, whatever the tokens are cut into."""

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openmanus_rl.serving.text import TextWriter
from tests.rollout.models import tokenizer


@functools.cache
def words_and_bytes() -> Any:
    """Words that carry the space before them, and bytes for all else, as Llama's and Mistral's tokenizers have them."""
    names = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁key", "▁", "s", "door", "a"]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def written(decoder: Any, pieces: list[list[int]], stop: tuple[str, ...] = ()) -> str:
    writer = TextWriter(decoder, stop)
    return "".join([*(writer.write(piece) for piece in pieces), writer.finish()])


tokens = st.lists(st.integers(0, 319), max_size=200)


@given(tokens)
def test_any_tokens_give_the_text_of_the_whole(ids: list[int]) -> None:
    assert written(tokenizer(), [[token] for token in ids]) == tokenizer().decode(ids, skip_special_tokens=True)


@given(st.text(max_size=60))
def test_characters_of_several_tokens_come_whole(text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    writer = TextWriter(tokenizer())
    shown = [writer.write([token]) for token in ids]
    assert "".join(shown) + writer.finish() == tokenizer().decode(ids, skip_special_tokens=True)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)


@given(st.lists(st.sampled_from(["▁the", "▁key", "▁", "s", "door", "a", "</s>", "€", "é"]), max_size=40))
def test_spaces_at_the_start_of_a_token_are_kept(names: list[str]) -> None:
    decoder = words_and_bytes()
    vocabulary = decoder.get_vocab()
    ids = [
        number
        for name in names
        for number in (
            [vocabulary[name]] if name in vocabulary else [vocabulary[f"<0x{byte:02X}>"] for byte in name.encode()]
        )
    ]
    assert written(decoder, [[token] for token in ids]) == decoder.decode(ids, skip_special_tokens=True)


def test_bytes_that_are_no_text_are_given_out_in_the_end() -> None:
    broken = tokenizer().get_vocab()[chr(0x122)]  # one byte of several, which begins nothing
    assert tokenizer().decode([broken]) == "\ufffd"
    ids = [broken] * 500
    writer = TextWriter(tokenizer())
    shown = "".join(writer.write([token]) for token in ids)
    assert len(shown) >= 400
    assert shown + writer.finish() == tokenizer().decode(ids)


@given(tokens, st.lists(st.sampled_from(["key", "ke", "e", "the key", ">", "é", "0"]), max_size=3), st.data())
def test_a_stop_string_is_cut_off_however_it_comes(ids: list[int], stop: list[str], data: st.DataObject) -> None:
    ids += tokenizer().encode(" the key</think>é", add_special_tokens=False)
    whole = tokenizer().decode(ids, skip_special_tokens=True)
    places = [whole.index(one) for one in stop if one in whole]
    expected = whole[: min(places)] if places else whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=10)))
    ends = [*cuts, len(ids)]
    pieces = [ids[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    assert written(tokenizer(), pieces, tuple(stop)) == expected


@pytest.mark.parametrize(("stop", "reason"), [(("key", "the key"), "the key"), (("nothing",), None)])
def test_which_stop_string_it_was(stop: tuple[str, ...], reason: str | None) -> None:
    writer = TextWriter(tokenizer(), stop)
    writer.write(tokenizer().encode("Find the key, open", add_special_tokens=False))
    writer.finish()
    assert writer.stopped_by == reason
