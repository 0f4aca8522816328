"""WebShop without any files, its reward by hand, its goals and splits."""

import gzip
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from openmanus_rl.environments.base import SPLITS, Info, fill_blanks, is_admissible
from openmanus_rl.environments.webshop.catalogue import Catalogue, Product
from openmanus_rl.environments.webshop.env import WebshopEnv
from openmanus_rl.environments.webshop.expert import WebshopExpert
from openmanus_rl.environments.webshop.generator import family_of, generate_product, wares
from openmanus_rl.environments.webshop.goals import (
    SyntheticGoals,
    draw_cap,
    human_goals,
    make_goal,
    shuffled,
)
from openmanus_rl.environments.webshop.nouns import nouns
from openmanus_rl.environments.webshop.reward import COLORS, alike, has_attribute, score_purchase, type_score
from openmanus_rl.environments.webshop.shop import find_files, split_goals

MUG = Product(
    asin="B000000001",
    title="Clay Coffee Mug",
    category="home",
    query="mugs",
    product_category="Home \u203a Kitchen \u203a Mugs",
    description="Fired twice.",
    bullets=("Dishwasher Safe", "Holds 12 ounces"),
    options={"color": ("red", "navy blue"), "size": ("small", "large")},
    prices=(12.5,),
    attributes=("hand made",),
    instruction="Find me hand made mugs",
    instruction_attributes=("hand made", "dishwasher safe"),
)
WISH = make_goal(MUG, "", ("hand made", "dishwasher safe"), (("color", "red"), ("size", "large")), 20.0)


# --- reward, worked out by hand: 2 attributes + 2 options + price = 5 ---------------------------------------


@pytest.mark.parametrize(
    ("chosen", "price", "expected"),
    [
        ({"color": "red", "size": "large"}, 12.5, 1.0),
        ({"color": "red", "size": "large"}, 20.0, 1.0),  # the cap itself is allowed
        ({"color": "red", "size": "large"}, 20.01, 4 / 5),
        ({"color": "red"}, 12.5, 4 / 5),
        ({"color": "red", "size": "small"}, 12.5, 4 / 5),
        ({}, 30.0, 2 / 5),
    ],
)
def test_score_of_the_right_product(chosen: dict[str, str], price: float, expected: float) -> None:
    assert score_purchase(MUG, WISH, price, chosen).total == pytest.approx(expected)


def test_attributes_are_found_in_the_list_and_in_every_text() -> None:
    for attribute, found in [("hand made", True), ("made hand", True), ("dishwasher safe", True), ("12 ounces", True),
                             ("fired twice", True), ("coffee mug", True), ("glass", False)]:  # fmt: skip
        assert has_attribute(MUG, attribute) is found, attribute


@pytest.mark.parametrize(
    ("goal_value", "named", "chosen", "matches"),
    [
        ("large", True, "large", True),
        ("large", True, "x-large", False),
        ("large", False, "x-large", True),
        ("2005brown", True, "2005brown", False),
        ("brown", False, "camo brown", True),  # the first base colour in the alphabet counts
        ("brown", False, "black brown", False),
        ("2005brown", False, "brown suede", True),
        ("navy", True, "navy", True),
        ("sky blue", True, "navy blue", True),  # both are blue
        ("10.5", True, "10.5", True),
    ],
)
def test_options_match_as_in_the_original(goal_value: str, named: bool, chosen: str, matches: bool) -> None:
    goal = replace(WISH, options=(("size", goal_value),), named_options=named)
    assert score_purchase(MUG, goal, 1.0, {"size": chosen}).options == int(matches)


@pytest.mark.parametrize(
    ("title", "query", "category", "expected"),
    [
        ("Clay Coffee Mug", "plates", "Toys", 1.0),  # all nouns shared
        ("Clay Figure", "plates", "Toys", 1.0),  # one of three is more than a fifth
        ("Garden Chair", "mugs", "Home \u203a Kitchen \u203a Mugs", 0.0),  # nothing shared, whatever the query
        ("Clay Figure", "mugs", "Toys", 1.0),
    ],
)
def test_type_score(title: str, query: str, category: str, expected: float) -> None:
    product = replace(MUG, title=title, query=query, product_category=category)
    assert type_score(product, WISH) == expected


def test_type_score_with_few_shared_nouns() -> None:
    long = replace(WISH, title="Clay " + " ".join(f"Noun{letter}" for letter in "abcdef"))  # 1 of 7
    eleven = replace(WISH, title="Clay " + " ".join(f"Noun{letter}" for letter in "abcdefghij"))  # 1 of 11
    stranger = replace(MUG, title="Clay Pot", query="pots", product_category="Garden \u203a Kitchen")
    assert type_score(stranger, long) == 0.5
    assert type_score(replace(stranger, product_category="Home \u203a Kitchen"), long) == 1.0
    assert type_score(replace(stranger, query="mugs"), long) == 1.0
    assert type_score(replace(stranger, query="mugs"), eleven) == 0.1
    assert type_score(stranger, replace(WISH, title="of the 12")) == 0.5  # a goal without nouns counts as 0.2


def test_nouns_of_titles() -> None:
    assert nouns("The 2 Big Dogs with the soft warm 100% cotton Beds") == ("big", "dogs", "cotton", "beds")
    assert list(COLORS) == sorted(set(COLORS))


# --- goals ------------------------------------------------------------------------------------------------


def test_synthetic_goals_by_hand() -> None:
    goals = SyntheticGoals([MUG, replace(MUG, asin="B2", instruction=None)], lambda _: 12.5, seed=0)
    assert [goal.options for goal in goals] == [
        (("color", color), ("size", size)) for color in ("red", "navy blue") for size in ("small", "large")
    ]
    cap = goals[0].price_cap
    assert cap in (30.0, 40.0, 50.0)
    assert goals[0].instruction == (
        f"Find me hand made mugs with color: red, and size: small, and price lower than {cap:.2f} dollars"
    )
    assert all(goal.price_cap == cap for goal in goals)
    assert goals[0].weight == pytest.approx(1 / 4)


def test_a_cap_is_the_larger_of_two_and_missing_where_nothing_is_above() -> None:
    caps = {draw_cap(25.0, str(k)) for k in range(100)}
    assert caps == {40.0, 50.0, 60.0}
    assert draw_cap(985.0, "x") == 1_000_000.0


def test_human_goals_list_bare_options(tmp_path: Path) -> None:
    wishes = [
        {"instruction": "i want a red mug.", "instruction_attributes": ["hand made"], "instruction_options": ["red"]},
        {"instruction": "nothing said", "instruction_attributes": [], "instruction_options": []},
        {"instruction": "half an entry"},
    ]
    (tmp_path / "human.json").write_bytes(orjson.dumps({MUG.asin: wishes, "B9": wishes}))
    catalogue = Catalogue([MUG])
    [goal] = human_goals(tmp_path / "human.json", catalogue, lambda _: 12.5, seed=0)
    assert goal.instruction.startswith("i want a red mug, and price lower than ")
    assert (goal.options, goal.named_options, goal.weight) == ((("0", "red"),), False, 1.0)
    assert score_purchase(MUG, goal, 12.5, {"color": "red"}).total == 1.0
    [problem] = catalogue.problems
    assert problem.endswith("human.json: instruction 2 of B000000001: KeyError: 'instruction_attributes'")


def test_splits_are_upstreams() -> None:
    goals = [replace(WISH, asin=f"B{k % 700}", weight=float(k)) for k in range(2000)]
    order = shuffled(goals)
    parts = split_goals(order, "goal")
    assert [goal.weight for goal in parts["valid_unseen"]] == [goal.weight for goal in order[:200]]
    assert order[0].weight == 102.0  # Python's own shuffle with seed 233
    assert (len(parts["valid_seen"]), len(parts["train"])) == (400, 1400)
    many = split_goals(shuffled(goals * 4), "goal")
    assert [len(many[split]) for split in ("valid_unseen", "valid_seen", "train")] == [500, 1000, 6500]
    apart = split_goals(order, "product")
    asins = {split: {goal.asin for goal in apart[split]} for split in apart}
    assert not asins["valid_unseen"] & (asins["train"] | asins["valid_seen"])
    assert 0.05 < len(asins["valid_unseen"]) / 700 < 0.15
    assert sum(map(len, apart.values())) == 2000


# --- the generated shop -----------------------------------------------------------------------------------


def test_attributes_and_values_cannot_be_taken_for_one_another() -> None:
    for table in wares()["categories"].values():
        for one, other in itertools.combinations(table["attributes"], 2):
            assert not alike(one, other), (one, other)
        for ware in table["kinds"].values():
            for name, values in ware["options"].items():
                for one, other in itertools.permutations(values, 2):
                    goal = replace(WISH, options=((name, one),))
                    assert score_purchase(MUG, goal, 1.0, {name: other}).options == 0, (one, other)
                    assert score_purchase(MUG, goal, 1.0, {name: one}).options == 1, one


def test_members_of_a_family_differ_and_hide_attributes_on_the_features_page() -> None:
    family = [generate_product(number, seed=0) for number in range(8)]
    assert len({frozenset(product.attributes) for product in family}) == 8
    assert len({product.query for product in family}) == 1
    assert len({product.prices for product in family}) == 8
    for product in family:
        shown, *hidden = product.attributes
        assert shown in product.title.lower()
        for attribute in hidden:
            assert attribute not in product.search_text
            assert any(attribute in bullet.lower() for bullet in product.bullets[1:])


def test_a_product_does_not_depend_on_the_size_of_the_catalogue() -> None:
    small, large = WebshopEnv(products=80).shop.catalogue, WebshopEnv(products=160).shop.catalogue
    assert list(small.products) == list(large.products)[:80]
    assert len(large.by_asin) == 160
    assert WebshopEnv(products=80, seed=1).shop.catalogue.products[0] != small.products[0]


def test_the_first_tasks_are_of_all_shops() -> None:
    env = WebshopEnv(products=400, shops=3)
    for split in ("train", "valid_seen", "valid_unseen"):
        goals = [shop.goals[split] for shop in env.shops]
        assert len({len(of) for of in goals}) > 1, "else nobody runs out of goals"
        expected = [
            goal for round_ in itertools.zip_longest(*goals) for goal in round_ if goal is not None
        ]  # fmt: skip
        assert len(env.tasks(split)) == len(expected)
        for number in {*range(0, len(expected), 7), *range(len(expected) - 40, len(expected))}:
            assert env.reset(options={"task": f"{split}/{number}"})[1]["goal"] == expected[number].instruction
            assert env.goal.asin in {product.asin for product in env.shop.catalogue.products}
    asins = [{product.asin for product in shop.catalogue.products} for shop in env.shops]
    assert len(set().union(*asins)) == sum(map(len, asins)), "each shop has products of its own"


def test_families_of_valid_unseen_are_never_trained_on() -> None:
    shop = WebshopEnv().shop
    families = {
        split: {family_of(shop.catalogue.by_asin[goal.asin]) for goal in goals} for split, goals in shop.goals.items()
    }
    assert not families["valid_unseen"] & (families["train"] | families["valid_seen"])
    assert families["valid_seen"] <= families["train"]
    instructions = [{goal.instruction for goal in goals} for goals in shop.goals.values()]
    assert sum(map(len, instructions)) == len(set().union(*instructions))


def shop_with(env: WebshopEnv, task: str, reads: bool) -> Info:
    """A visit by the expert, or by one who buys the first hit."""
    observation, info = env.reset(options={"task": task})
    expert = WebshopExpert()
    action = expert.act(observation, info)
    for _ in range(50):
        observation, _, done, _, info = env.step(action)
        if done:
            break
        if reads:
            action = expert.act(observation, info)
        else:
            action = "click[buy now]" if env.session.page == "item" else info["admissible_actions"][3]
    return info


@pytest.mark.parametrize("seed", range(30))
def test_the_smallest_shop_has_every_split(seed: int) -> None:
    env = WebshopEnv(products=80, seed=seed)
    assert all(len(env.tasks(split)) >= 4 for split in SPLITS)


def test_the_expert_says_what_a_product_lacks() -> None:
    """Every word that it names is in the instruction, and not on the page; and the other way round, until it buys."""
    env, verdicts = WebshopEnv(products=80), set()
    for task in env.tasks("train")[:20]:
        observation, info = env.reset(options={"task": task})
        expert, lacking = WebshopExpert(), []
        for _ in range(50):
            action = expert.act(observation, info)
            verb, *said = expert.thought.removesuffix(" not offered").split() or [""]
            if verb:
                asked = set(re.findall(r"[\w'-]+", info["goal"].lower()))
                shown = set(re.findall(r"[\w'-]+", observation.lower().split("[sep]", 2)[2]))
                named = [] if said == ["nothing"] else said
                assert set(named) <= asked
                assert env.session.page == "item" or named == [word for word in lacking if word not in shown]
                assert not set(named) & shown
                assert named or env.session.page != "item" or action not in ("click[< prev]", "click[features]")
                lacking = named
            verdicts |= {verb, *expert.thought.split()[-1:]} & {"", "lacks", "nothing", "offered"}
            observation, _, done, _, info = env.step(action)
            if done:
                break
    assert verdicts == {"", "lacks", "nothing", "offered"}


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_reading_and_comparing_wins_where_the_first_hit_does_not(mode: Any) -> None:
    env = WebshopEnv(observation_mode=mode)
    tasks = [*env.tasks("train")[:100], *env.tasks("valid_unseen")[:100]]
    first, read = ([shop_with(env, task, reads) for task in tasks] for reads in (False, True))
    assert sum(info["won"] for info in first) / len(first) < 0.1
    assert sum(info["won"] for info in read) / len(read) > 0.8
    assert sum(info["score"] for info in read) / len(read) > 0.95


# --- the environment ----------------------------------------------------------------------------------------


def perfect_visit(env: WebshopEnv) -> tuple[float, Info]:
    env.reset(options={"task": "train/0"})
    env.step(f"search[{env.goal.title}]")
    env.step(f"click[{env.goal.asin}]")
    for _, value in env.goal.options:
        env.step(f"click[{value}]")
    _, reward, terminated, truncated, info = env.step("click[buy now]")
    assert (terminated, truncated) == (True, False)
    return reward, info


def test_both_rewards_are_in_info_whichever_is_paid() -> None:
    for mode, paid in (("success", 5.0), ("score", 1.0)):
        reward, info = perfect_visit(WebshopEnv(reward=mode, win_reward=5.0))  # type: ignore[arg-type]
        assert (reward, info["success_reward"], info["score_reward"]) == (paid, 5.0, 1.0)
        assert info["won"]
        assert info["score_terms"] == {"type": 1.0, "attributes": 2, "options": len(info_options()), "price": True}


def info_options() -> tuple[tuple[str, str], ...]:
    env = WebshopEnv()
    env.reset(options={"task": "train/0"})
    return env.goal.options


def test_a_bad_purchase_pays_its_score_or_nothing() -> None:
    share = 3 / (3 + len(info_options()))  # two attributes and the price of those and the options
    for mode, paid in (("success", 0.0), ("score", share)):
        env = WebshopEnv(reward=mode)  # type: ignore[arg-type]
        env.reset(options={"task": "train/0"})
        env.step(f"search[{env.goal.title}]")
        env.step(f"click[{env.goal.asin}]")
        _, reward, terminated, _, info = env.step("click[buy now]")
        assert terminated
        assert not info["won"]
        assert (reward, info["score_reward"]) == (pytest.approx(paid), pytest.approx(share))


def test_the_anchor_is_the_state_of_the_page() -> None:
    env = WebshopEnv()
    env.reset(options={"task": "train/0"})
    info = env.step(f"search[{env.goal.query}]")[4]
    assert info["anchor"] == ["results", env.goal.query, 1, None, {}]
    assert env.step("click[next >]")[4]["anchor"] == ["results", env.goal.query, 2, None, {}]
    env.step(f"search[{env.goal.title}]")
    env.step(f"click[{env.goal.asin}]")
    (name, value), *_ = env.goal.options
    anchor = env.step(f"click[{value}]")[4]["anchor"]
    assert anchor == ["item", env.goal.title.lower(), 1, env.goal.asin, {name: value}]
    assert env.step("click[features]")[4]["anchor"][0] == "features"


def test_actions_with_blanks() -> None:
    listed = ("search[<query>]", "click[< prev]", "click[next >]")
    assert is_admissible("search[red mug]", listed)
    assert is_admissible("click[< prev]", listed)
    assert not is_admissible("search[]", listed)
    assert not is_admissible("click[prev]", listed)
    assert not is_admissible("say search[x] twice", listed)
    assert fill_blanks("search[<query>]", r"a\1") == r"search[a\1]"


def test_a_query_of_a_megabyte_is_refused() -> None:
    env = WebshopEnv()
    before, _ = env.reset(options={"task": "train/0"})
    observation, _, _, _, info = env.step(f"search[{'x' * 1_000_000}]")
    assert (observation, info["action_valid"]) == (before, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"products": 5}, "products must lie between 80 and 1,000,000, got 5"),
        ({"shops": 0}, "shops must lie between 1 and 1,000, got 0"),
        ({"goals": "animal"}, "goals must be synthetic or human, got 'animal'"),
        ({"goals": "human"}, "goals=human needs data_dir"),
        ({"observation_mode": "html"}, "observation_mode must be text or text_rich"),
        ({"reward": "fame"}, "reward must be success or score"),
        ({"split_by": "luck"}, "split_by must be goal or product"),
        ({"seed": "abc"}, "seed must be a whole number, got 'abc'"),
        ({"win_reward": float("nan")}, "win_reward must be a positive number, got nan"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WebshopEnv(**options)


# --- files ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices are kept apart from the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def write_shop(folder: Path, suffix: str = "", products: int = 12) -> None:
    item = {"name": "Mug", "category": "home", "query": "mugs", "product_category": "Home", "pricing": "$5$9"}
    items = [{**item, "asin": f"B{k}", "name": f"Mug number {k}"} for k in range(products)]
    wish = {"attributes": ["hand made"], "instruction": "Find me mugs", "instruction_attributes": ["hand made"]}
    human = {"instruction": "a mug!", "instruction_attributes": ["hand made"], "instruction_options": []}
    with gzip.open(folder / f"items_shuffle{suffix}.json.gz", "wb") as file:
        file.write(orjson.dumps(items))
    (folder / f"items_ins_v2{suffix}.json").write_bytes(orjson.dumps({f"B{k}": wish for k in range(products)}))
    (folder / "items_human_ins.json").write_bytes(orjson.dumps({"B1": [human], "B2": [human] * 9}))


def test_a_shop_from_files(tmp_path: Path) -> None:
    write_shop(tmp_path)
    env = WebshopEnv(data_dir=tmp_path)
    assert {split: len(goals) for split, goals in env.shop.goals.items()} == {
        "train": 9,
        "valid_seen": 2,
        "valid_unseen": 1,
    }
    people = WebshopEnv(data_dir=str(tmp_path), goals="human")
    observation, _ = people.reset(options={"task": "train/0"})
    assert "a mug!, and price lower than" in observation
    assert people.shop.price_of(people.shop.catalogue.products[0]) == pytest.approx(7, abs=2)


def test_which_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no items_shuffle\*\.json"):
        find_files(tmp_path, None, "synthetic")
    write_shop(tmp_path)
    write_shop(tmp_path, "_1000")
    with pytest.raises(ValueError, match=r"several catalogues; choose one with items=\.\.\.: '', '_1000'"):
        find_files(tmp_path, None, "synthetic")
    items, attributes, human = find_files(tmp_path, "_1000", "human")
    assert (items.name, attributes.name) == ("items_shuffle_1000.json.gz", "items_ins_v2_1000.json")
    assert human == tmp_path / "items_human_ins.json"
    with pytest.raises(ValueError, match="holds no items_shuffle_7"):
        find_files(tmp_path, "_7", "synthetic")
    (tmp_path / "items_human_ins.json").unlink()
    with pytest.raises(ValueError, match="holds no items_human_ins"):
        find_files(tmp_path, "", "human")


def test_a_catalogue_without_goals_says_so(tmp_path: Path) -> None:
    write_shop(tmp_path)
    (tmp_path / "items_ins_v2.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match="0 synthetic goals are too few for three splits, which need 10; see"):
        WebshopEnv(data_dir=tmp_path)
    (tmp_path / "items_ins_v2.json").write_bytes(b"[]")
    with pytest.raises(ValueError, match=r"items_ins_v2\.json: an object"):
        WebshopEnv(data_dir=tmp_path, items="")


def test_entries_left_out_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_shop(tmp_path)
    items = orjson.loads(gzip.decompress((tmp_path / "items_shuffle.json.gz").read_bytes()))
    (tmp_path / "items_shuffle.json.gz").write_bytes(gzip.compress(orjson.dumps([*items, {"asin": "B99"}, 7])))
    WebshopEnv(data_dir=tmp_path)
    assert "2 entries were left out" in caplog.text
    assert "items_shuffle.json.gz: entry 12: KeyError: 'name'" in caplog.text


def test_back_to_search_and_prev_lose_what_they_lose_in_the_original() -> None:
    env = WebshopEnv()
    env.reset(options={"task": "train/0"})
    session, goal = env.session, env.goal
    env.step(f"search[{goal.title}]")
    env.step(f"click[{goal.asin}]")
    env.step(f"click[{goal.options[0][1]}]")
    env.step("click[features]")
    env.step("click[< prev]")
    assert session.chosen == dict(goal.options[:1])
    env.step("click[< prev]")
    assert (session.page, session.chosen) == ("results", {})
    env.step("click[back to search]")
    assert (session.page, session.query, session.results) == ("start", "", [])
