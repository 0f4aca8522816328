"""The ranking, against the slow and obvious way to compute it."""

import math
import random
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.environments.webshop import postings
from openmanus_rl.environments.webshop.keys import KeyTable, key_hash
from openmanus_rl.environments.webshop.search import SearchIndex, quantised_length
from openmanus_rl.environments.webshop.text import analyze


class Obvious:
    """BM25 with a dictionary for each document."""

    def __init__(self, documents: list[str]) -> None:
        self.counts = [Counter(analyze(text)) for text in documents]
        self.found = Counter(term for counts in self.counts for term in counts)
        lengths = [counts.total() for counts in self.counts]
        average = sum(lengths) / max(len(lengths), 1) or 1.0
        self.norms = [0.9 * (1 - 0.4 + 0.4 * quantised_length(length) / average) for length in lengths]

    def weight(self, term: str, number: int) -> np.float32:
        often, found = self.counts[number][term], self.found[term]
        idf = math.log(1 + (len(self.counts) - found + 0.5) / (found + 0.5))
        return np.float32(idf * often / (often + self.norms[number]))

    def search(self, query: str, limit: int) -> list[int]:
        scores = []
        for number, counts in enumerate(self.counts):
            score = np.float32(0)
            for term in analyze(query):
                if term in counts:
                    score += self.weight(term, number)
            scores.append(score)
        found = [number for number, score in enumerate(scores) if score > 0]
        return sorted(found, key=lambda number: (-scores[number], number))[:limit]


WORDS = ["red", "blue", "mug", "cup", "shirts", "women's", "2.5", "oz", "the", "cotton", "\u2764", "running", "size"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)  # few words: many ties


@given(documents=st.lists(TEXTS, max_size=60), queries=st.lists(TEXTS, min_size=1, max_size=4), limit=st.integers(0, 5))
def test_same_ranking_as_the_obvious_way_ties_included(documents: list[str], queries: list[str], limit: int) -> None:
    index, obvious = SearchIndex(documents), Obvious(documents)
    for query in queries:
        assert index.search(query, limit) == obvious.search(query, limit)
        assert index.search(query) == obvious.search(query, 50)


@pytest.mark.parametrize("block", [1, 50, 1_000_000])
def test_same_ranking_in_a_larger_catalogue_however_it_was_cut_into_blocks(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(postings, "BLOCK", block)
    rng = random.Random(0)
    vocabulary = [f"w{k}" for k in range(300)]
    weights = [1 / (k + 1) for k in range(300)]
    documents = [" ".join(rng.choices(vocabulary, weights, k=rng.randrange(30))) for _ in range(1500)]
    documents += documents[:300]  # exact ties, far apart
    index, obvious = SearchIndex(documents), Obvious(documents)
    for _ in range(12):
        query = " ".join(rng.choices(vocabulary, weights, k=rng.randrange(1, 12)))
        for limit in (1, 10, 50):
            assert index.search(query, limit) == obvious.search(query, limit)


def test_a_tie_for_the_last_place_goes_to_the_first_documents() -> None:
    index = SearchIndex(["other"] * 700 + ["mug cup"] * 3 + ["mug pot"] * 400)
    assert index.search("mug cup") == [*range(700, 703), *range(703, 750)]
    assert index.search("mug", 10) == list(range(700, 710))


def test_nothing_to_find() -> None:
    for documents in ([], ["", "the and"], ["mug"]):
        index = SearchIndex(documents)
        assert [index.search(query) for query in ("", "the", "cup")] == [[], [], []]


def test_threads_do_not_see_each_others_scores() -> None:
    rng = random.Random(1)
    documents = [" ".join(rng.choices(WORDS, k=8)) for _ in range(3000)]
    index = SearchIndex(documents)
    queries = [" ".join(rng.sample(WORDS, 3)) for _ in range(20)]
    expected = {query: index.search(query) for query in queries}
    wrong: list[str] = []

    def work(seed: int) -> None:
        asked = random.Random(seed).choices(queries, k=150)
        wrong.extend(query for query in asked if index.search(query) != expected[query])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_keys_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openmanus_rl.environments.webshop.keys.key_hash", lambda key: key_hash(key) % 3)
    keys = [f"key {k}" for k in range(20)]
    table = KeyTable.build(keys)
    assert dict(table) == {key: number for number, key in enumerate(keys)}
    assert "key 20" not in table
    assert "\ud800" not in table
