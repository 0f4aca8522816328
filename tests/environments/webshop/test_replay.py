"""Recorded episodes of the original WebShop, observation by observation, in both modes."""

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from openmanus_rl.environments.checker import check_env
from openmanus_rl.environments.webshop.catalogue import Catalogue, Product, read_catalogue, read_product
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.environments.webshop.goals import Goal, SyntheticGoals
from openmanus_rl.environments.webshop.reward import score_purchase
from openmanus_rl.environments.webshop.search import SearchIndex, quantised_length
from openmanus_rl.environments.webshop.session import Session
from openmanus_rl.environments.webshop.shop import Shop
from openmanus_rl.environments.webshop.text import analyze, stem


@pytest.fixture(scope="module")
def catalogue(shared_data: Path) -> Catalogue:
    folder = shared_data / "webshop"
    return read_catalogue(folder / "items_shuffle_1000.json.gz", folder / "items_ins_v2_1000.json")


@pytest.fixture(scope="module")
def episodes(shared_data: Path) -> list[dict[str, Any]]:
    with gzip.open(shared_data / "webshop" / "transcripts.jsonl.gz") as file:
        return [orjson.loads(line) for line in file]


def test_every_recorded_observation_is_reproduced(catalogue: Catalogue, episodes: list[dict[str, Any]]) -> None:
    """Pages, buttons and both texts; the ranking of a search is taken from the recording."""
    steps = 0
    for episode in episodes:
        ranking: list[int] = []

        def recorded(_: str, ranking: list[int] = ranking) -> list[int]:
            return ranking

        session = Session(catalogue, episode["goal"]["instruction_text"], recorded)
        assert session.text() == episode["start"]["text"]
        assert session.text_rich() == episode["start"]["text_rich"]
        for step in episode["steps"]:
            if step["action"].startswith("search["):
                ranking[:] = [catalogue.by_asin[asin] for asin in step.get("ranking", [])]
            session.act(step["action"])
            session.score = step["reward"] if step["done"] else None
            assert session.text() == step["text"], step["action"]
            assert session.text_rich() == step["text_rich"], step["action"]
            assert session.clickables() == step["clickables"], step["action"]
            assert (session.page == "done") == step["done"]
            steps += 1
    assert steps == 712


def test_every_recorded_reward_is_reproduced(
    catalogue: Catalogue, episodes: list[dict[str, Any]], shared_data: Path
) -> None:
    """All 91 purchases but two, where only the titles' nouns decide: the recording used another tagger."""
    prices = orjson.loads((shared_data / "webshop" / "product_prices.json").read_bytes())
    differing: list[str] = []
    purchases = 0
    for episode in episodes:
        last = episode["steps"][-1]
        if not last["done"]:
            continue
        shown = last["text"].split(" [SEP] ")
        product = catalogue.products[catalogue.by_asin[shown[shown.index("asin") + 1]]]
        goal = read_goal(episode["goal"])
        score = score_purchase(product, goal, prices[product.asin], orjson.loads(shown[shown.index("options") + 1]))
        purchases += 1
        if score.total != pytest.approx(last["reward"], abs=1e-12):
            differing.append(product.asin)
            assert product.query != goal.query
    assert purchases == 91
    assert len(differing) <= 2


def read_goal(recorded: dict[str, Any]) -> Goal:
    return Goal(
        recorded["asin"], recorded["category"], recorded["query"], recorded["name"], recorded["product_category"],
        recorded["instruction_text"], tuple(recorded["attributes"]), tuple(recorded["goal_options"].items()),
        recorded["price_upper"],
    )  # fmt: skip


def test_the_environment_plays_the_recorded_episodes(
    catalogue: Catalogue, episodes: list[dict[str, Any]], shared_data: Path
) -> None:
    """Through `WebshopEnv`: observations, clicks and, where the recording's tagger agrees, what a purchase pays."""
    prices = orjson.loads((shared_data / "webshop" / "product_prices.json").read_bytes())

    class Recorded(Shop):
        def price_of(self, product: Product) -> float:
            return float(prices[product.asin])

    ranking: list[int] = []
    index = SearchIndex(["unused"])
    index.search = lambda query, limit=50: ranking  # type: ignore[method-assign] # noqa: ARG005
    env = WebshopEnv(reward="score")
    env.shops = (Recorded(catalogue, index, {"train": [read_goal(e["goal"]) for e in episodes]}, 0),)  # type: ignore[dict-item]
    paid_alike = bought = 0
    for number, episode in enumerate(episodes):
        observation, info = env.reset(options={"task": f"train/{number}"})
        assert observation == episode["start"]["text"]
        for step in episode["steps"]:
            if step["action"].startswith("search["):
                ranking = [catalogue.by_asin[asin] for asin in step.get("ranking", [])]
            observation, reward, terminated, _, info = env.step(step["action"])
            assert terminated == step["done"]
            if terminated:
                bought += 1
                paid_alike += reward == pytest.approx(step["reward"], abs=1e-12)
            else:
                assert observation == step["text"]
                assert info["admissible_actions"][1:] == tuple(f"click[{target}]" for target in step["clickables"])
    assert (paid_alike, bought) == (89, 91)


def test_goals_read_as_the_recorded_ones(
    catalogue: Catalogue, episodes: list[dict[str, Any]], shared_data: Path
) -> None:
    """Each recorded goal is among ours, word for word up to the cap, which the original draws unseeded."""
    prices = orjson.loads((shared_data / "webshop" / "product_prices.json").read_bytes())
    goals = SyntheticGoals(catalogue.products, lambda product: prices[product.asin], seed=0)
    assert len(goals) == 6910
    texts = {goal.instruction.partition(", and price lower")[0]: goal for goal in goals}
    for episode in episodes:
        recorded = read_goal(episode["goal"])
        ours = texts[recorded.instruction.partition(", and price lower")[0]]
        assert (ours.attributes, ours.options, ours.title) == (recorded.attributes, recorded.options, recorded.title)
        above = [cap for cap in range(10, 1000, 10) if cap > prices[ours.asin]][:4]
        assert ours.price_cap in above[1:]
        assert recorded.price_cap in above[1:]


def test_our_ranking_agrees_with_the_recorded_one(catalogue: Catalogue, episodes: list[dict[str, Any]]) -> None:
    index = SearchIndex([product.search_text for product in catalogue.products])
    recorded = {
        step["action"][7:-1].lower(): step["ranking"] for e in episodes for step in e["steps"] if "ranking" in step
    }
    first = overlap = 0.0
    for query, ranking in recorded.items():
        ours = [catalogue.products[number].asin for number in index.search(query)]
        first += ours[:1] == ranking[:1]
        overlap += len(set(ours) & set(ranking)) / len(ranking)
    assert first / len(recorded) >= 0.98
    assert overlap / len(recorded) >= 0.99
    assert index.search("zzzqq") == []


def test_porters_examples() -> None:
    """From the paper, step by step."""
    pairs = {
        "caresses": "caress", "ponies": "poni", "ties": "ti", "cats": "cat", "feed": "feed", "agreed": "agre",
        "plastered": "plaster", "motoring": "motor", "sing": "sing", "conflated": "conflat", "troubled": "troubl",
        "sized": "size", "hopping": "hop", "tanned": "tan", "falling": "fall", "hissing": "hiss", "fizzed": "fizz",
        "failing": "fail", "filing": "file", "happy": "happi", "sky": "sky", "relational": "relat",
        "conditional": "condit", "vietnamization": "vietnam", "hopefulness": "hope", "formality": "formal",
        "triplicate": "triplic", "electrical": "electr", "goodness": "good", "revival": "reviv", "adjustable": "adjust",
        "replacement": "replac", "adoption": "adopt", "effective": "effect", "probate": "probat", "rate": "rate",
        "cease": "ceas", "controlling": "control", "rolling": "roll",
    }  # fmt: skip
    assert {word: stem(word) for word in pairs} == pairs


def test_words_as_the_original_index_sees_them() -> None:
    words = analyze("Men's T-Shirt, 2.5 oz, 100% cotton \u2764\ufe0f\u2764")
    assert words == ["men", "t", "shirt", "2.5", "oz", "100", "cotton", "\u2764\ufe0f", "\u2764"]
    assert analyze("the and of") == []
    assert [quantised_length(n) for n in (23, 39, 40, 41, 55, 56, 59, 60)] == [23, 39, 40, 40, 54, 56, 56, 60]


@pytest.mark.parametrize(
    ("action", "accepted"),
    [("search[shoes]", True), ("SEARCH[shoes]", False), ("click[search]", False), ("search[]", False), ("", False),
     ("click[buy now]", False), ("garbage", False)],
)  # fmt: skip
def test_what_the_start_page_accepts(action: str, accepted: bool) -> None:
    session = Session(Catalogue([]), "Find me shoes", lambda _: [])
    assert session.act(action) is accepted
    assert (session.page == "results") is accepted


def test_malformed_entries_are_reported_and_left_out(tmp_path: Path) -> None:
    good = {
        "asin": "B1",
        "name": "Mug",
        "category": "c",
        "query": "Mugs ",
        "product_category": "A",
        "pricing": "$5",
    }
    items = [good, {"asin": "B2"}, 7, {**good, "asin": "B3", "pricing": "$x"}, {**good, "name": "Again"}]
    (tmp_path / "items.json").write_bytes(orjson.dumps(items))
    (tmp_path / "ins.json").write_bytes(b"{}")
    catalogue = read_catalogue(tmp_path / "items.json", tmp_path / "ins.json")
    assert [(product.asin, product.title, product.query) for product in catalogue.products] == [("B1", "Mug", "mugs")]
    assert [problem.partition("items.json: ")[2].partition(":")[0] for problem in catalogue.problems] == [
        "entry 1",
        "entry 2",
        "entry 3",
    ]
    for name, content, message in (
        ("a.json", b"{", "is not JSON"),
        ("b.json", b"{}", "a list of products is expected"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_catalogue(tmp_path / name, tmp_path / "ins.json")


def test_prices_are_drawn_by_seed_and_product() -> None:
    item = {
        "asin": "B1",
        "name": "Mug",
        "category": "c",
        "query": "q",
        "product_category": "A",
        "pricing": "$5$9.50",
    }
    product = read_product(item, {})
    assert product.price_tag == "$5.0 to $9.5"
    assert 5.0 <= product.draw_price(0) <= 9.5
    assert product.draw_price(0) == product.draw_price(0) != product.draw_price(1)


def test_the_real_shop_keeps_the_contract(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    results = check_env("webshop", {"data_dir": str(shared_data / "webshop")}, episodes=1000)
    assert [result for result in results if result.status == "fail"] == []


@pytest.mark.parametrize(
    ("change", "attributes"),
    [
        ({"small_description": [None]}, {}),
        ({}, {"attributes": "a text"}),
        ({}, {"instruction_attributes": [1]}),
        ({"customization_options": {"size": [{"value": None}]}}, {}),
    ],
)
def test_entries_of_the_wrong_types_are_not_products(change: dict[str, Any], attributes: dict[str, Any]) -> None:
    item = {"asin": "B1", "name": "Mug", "category": "c", "query": "q", "product_category": "A", "pricing": "$5"}
    assert read_product(item, {}).asin == "B1"
    with pytest.raises((ValueError, TypeError, AttributeError)):
        read_product({**item, **change}, attributes)


def test_option_values_can_always_be_clicked() -> None:
    item = {"asin": "b1", "name": "Mug", "category": "c", "query": "q", "product_category": "A", "pricing": "$5"}
    options = {"Size": [{"value": " Big\nOne "}, {"value": " "}], "Empty": [{"value": ""}]}
    product = read_product({**item, "customization_options": options}, {})
    assert product.options == {"size": ("big one",)}
    session = Session(Catalogue([product]), "a mug", lambda _: [0])
    assert all(session.act(action) for action in ("search[mug]", "click[b1]", "click[big one]"))
    assert (session.product, session.chosen) == (0, {"size": "big one"})
