"""WebShop: find and buy what an instruction asks for, in a shop of text pages.

env = make_env("webshop")
observation, info = env.reset(options={"task": "train/0"})
observation, reward, terminated, truncated, info = env.step("search[rain jacket]")
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from openmanus_rl.environments.base import NumberedTasks, Split, StepResult, TextEnv, parse_numbered_task
from openmanus_rl.environments.webshop.expert import WebshopExpert
from openmanus_rl.environments.webshop.reward import Score, score_purchase
from openmanus_rl.environments.webshop.session import Session
from openmanus_rl.environments.webshop.shop import GOAL_KINDS, Shop, generated_shops, shop_from_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.environments.base import AnchorMode, Expert, Info
    from openmanus_rl.environments.webshop.goals import Goal
    from openmanus_rl.environments.webshop.shop import GoalKind, SplitBy

ObservationMode = Literal["text", "text_rich"]
RewardMode = Literal["success", "score"]
SEARCH = "search[<query>]"
# The search engine reads this much of a query; a page shows no more of an agent's own words.
MAX_QUERY = 1000


class WebshopEnv(TextEnv):
    """A customer with one goal; `click[buy now]` ends the visit and pays.

    `reward="success"` pays `win_reward` for a perfect purchase and nothing else, `reward="score"` pays the score.
    """

    name: ClassVar[str] = "Webshop"

    def __init__(
        self,
        data_dir: str | Path | None = None,
        items: str | None = None,
        cache_dir: str | Path | None = None,
        products: int = 1000,
        shops: int = 1,
        goals: GoalKind = "synthetic",
        split_by: SplitBy = "goal",
        observation_mode: ObservationMode = "text",
        reward: RewardMode = "success",
        win_reward: float = 10.0,
        seed: int = 0,
        anchor_mode: AnchorMode = "state",
    ) -> None:
        super().__init__(anchor_mode)
        _one_of("goals", goals, GOAL_KINDS)
        _one_of("split_by", split_by, ("goal", "product"))
        _one_of("observation_mode", observation_mode, ("text", "text_rich"))
        _one_of("reward", reward, ("success", "score"))
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be a whole number, got {seed!r}")
        if isinstance(win_reward, bool) or not isinstance(win_reward, int | float) or not 0 < win_reward < float("inf"):
            raise ValueError(f"win_reward must be a positive number, got {win_reward!r}")
        self.generated = data_dir is None
        if data_dir is None:
            if isinstance(products, bool) or not isinstance(products, int) or not 80 <= products <= 1_000_000:
                raise ValueError(f"products must lie between 80 and 1,000,000, got {products!r}")
            if isinstance(shops, bool) or not isinstance(shops, int) or not 1 <= shops <= 1000:
                raise ValueError(f"shops must lie between 1 and 1,000, got {shops!r}")
            if goals == "human":
                raise ValueError("goals=human needs data_dir with items_human_ins.json; generated ones read like them")
            self.shops = generated_shops(products, seed, shops)
        else:
            cache = None if cache_dir is None else Path(cache_dir).expanduser()
            self.shops = (shop_from_files(Path(data_dir).expanduser(), items, goals, split_by, seed, cache),)
        self.shop = self.shops[0]
        self.observation_mode, self.reward_mode, self.win_reward = observation_mode, reward, float(win_reward)
        self.reward_bounds = (0.0, self.win_reward if reward == "success" else 1.0)

    def tasks(self, split: Split) -> Sequence[str]:
        """One task a goal, of one shop after the other: the first ones are of all shops."""
        return NumberedTasks(split, sum(len(shop.goals[split]) for shop in self.shops))

    def expert(self) -> Expert:
        """Reads and compares before it buys; descriptions of generated products say nothing that titles do not."""
        return WebshopExpert(pages_to_read={"features": 4}) if self.generated else WebshopExpert()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """A new customer at the start page."""
        super().reset(seed=seed)
        task = self.choose_task(seed, options)
        split, number = parse_numbered_task(task, self.name, lambda split: len(self.tasks(split)))
        self.shop, self.goal = self._find(split, number)
        self.session = Session(self.shop.catalogue, self.goal.instruction, self.shop.index.search)
        observation = self._observe()
        info = self._info(observation, True, None)
        self.begin(info)
        return observation, info

    def _find(self, split: Split, number: int) -> tuple[Shop, Goal]:
        """Every shop's first goal, then every shop's second one, and so on; whoever has no more is passed over."""
        sizes = [len(shop.goals[split]) for shop in self.shops]

        def before(place: int) -> int:
            return sum(min(size, place) for size in sizes)

        place = bisect_right(range(max(sizes)), number, key=before) - 1
        shop = [shop for shop, size in zip(self.shops, sizes, strict=True) if size > place][number - before(place)]
        return shop, shop.goals[split][place]

    def step(self, action: str) -> StepResult:
        """Search or click; anything else changes nothing."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        action = action.strip()
        valid = len(action) <= MAX_QUERY and self.session.act(action)
        bought = self.session.page == "done"
        score = self._score() if bought else None
        observation = self._observe()
        info = self._info(observation, valid, score)
        if score is None:
            return observation, 0.0, False, False, info
        self.end(info)
        reward = self.win_reward * (score.total == 1.0) if self.reward_mode == "success" else score.total
        return observation, float(reward), True, False, info

    def _score(self) -> Score:
        assert self.session.product is not None
        product = self.shop.catalogue.products[self.session.product]
        score = score_purchase(product, self.goal, self.shop.price_of(product), self.session.chosen)
        self.session.score = score.total
        return score

    def _observe(self) -> str:
        return self.session.text() if self.observation_mode == "text" else self.session.text_rich()

    def _info(self, observation: str, valid: bool, score: Score | None) -> Info:
        session = self.session
        won = score is not None and score.total == 1.0
        asin = None if session.product is None else self.shop.catalogue.products[session.product].asin
        total = 0.0 if score is None else score.total
        clicks = (f"click[{target}]" for target in session.clickables())
        return self.describe(
            observation,
            state=[session.page, session.query, session.page_number, asin, dict(sorted(session.chosen.items()))],
            won=won,
            score=total,
            task_type=self.goal.category,
            admissible_actions=() if session.page == "done" else (SEARCH, *clicks),
            action_valid=valid,
            goal=self.goal.instruction,
            success_reward=self.win_reward if won else 0.0,
            score_reward=total,
            score_terms=None if score is None else _terms(score),
        )


def _terms(score: Score) -> dict[str, Any]:
    return {"type": score.type, "attributes": score.attributes, "options": score.options, "price": score.price}


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(choices)}, got {value!r}")
