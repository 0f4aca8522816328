"""A customer who reads: searches, looks at the hits one by one, and buys the one that has everything asked for.

It plays from what is shown. Words of the instruction are looked for in a product's title, options, features and
description; the hit that lacks the fewest is bought when none has all. A word that another product offered as an
option is not looked for in features: a product that does not offer it is left at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openmanus_rl.environments.webshop.text import analyze

if TYPE_CHECKING:
    from openmanus_rl.environments.base import Info

# What instructions are made of besides the wish itself.
_FILLER = frozenset(
    analyze(
        "find me i am im looking need want would like to buy can you get please my old broke one that which should is "
        "prefer also with for price lower than dollars some a an the and it in of has have be would like"
    )
)
_PRICE_CAP = re.compile(r",? and price lower than ([\d.]+) dollars")
_NAMED_OPTION = re.compile(r"(?:with|and) ([\w ]+): (.+?)(?=, and |$)")
_PRICE = re.compile(r"\$([\d.]+)")
_NAMED_MISSING = 4
_BUTTONS = frozenset({"back to search", "< prev", "next >", "description", "features", "reviews", "buy now"})


@dataclass(slots=True)
class _Hit:
    """A product seen in the results, and what is known of it."""

    asin: str
    title: str
    price: float
    missing: set[str] | None = None
    not_offered: int = 0

    @property
    def shortcomings(self) -> tuple[int, int]:
        """Options that it does not come in weigh more than words that its pages do not say."""
        return self.not_offered, len(self.missing or ())


@dataclass(slots=True)
class WebshopExpert:
    """Looks at up to `patience` hits, and makes up its mind after `hurry` actions."""

    patience: int = 12
    hurry: int = 36
    pages_to_read: dict[str, int] = field(default_factory=lambda: {"features": 4, "description": 1})
    """What may say more of a product, and up to how many missing words it is worth reading for."""
    actions: int = 0
    wish: list[str] = field(default_factory=list)
    cap: float = float("inf")
    instruction: str = ""
    hits: list[_Hit] = field(default_factory=list)
    current: _Hit | None = None
    read: set[str] = field(default_factory=set)
    decided: bool = False
    pages: int = 0
    thought: str = ""
    """What it makes of the product whose page is before it: what it lacks of what was asked for."""
    said: dict[str, str] = field(default_factory=dict)
    """The word of the instruction that a term was made from."""
    offered: set[str] = field(default_factory=set)
    """Words of the options of all products seen."""

    def act(self, observation: str, info: Info) -> str:
        """The next action."""
        self.actions += 1
        self.thought = ""
        shown = [part.strip() for part in re.split(r" \[SEP\] |\n", observation) if part.strip()]
        texts = [re.sub(r"\[(?:clicked )?button_?\]", "", part).strip() for part in shown]
        clicks = [action[6:-1] for action in info["admissible_actions"] if action.startswith("click[")]
        if not clicks:
            return self._search(texts)
        if "next >" in clicks:
            return self._choose_hit(texts, clicks)
        return self._read(texts, clicks)

    def _search(self, texts: list[str]) -> str:
        self.instruction = texts[texts.index("Instruction:") + 1].lower()
        cap = _PRICE_CAP.search(self.instruction)
        self.cap = float(cap[1]) if cap else float("inf")
        self.instruction = _PRICE_CAP.sub("", self.instruction)
        self.wish = [term for term in dict.fromkeys(analyze(self.instruction)) if term not in _FILLER]
        said = (word.strip(".") for word in re.findall(r"[\w'.-]+", self.instruction))
        words = [word for word in said if set(analyze(word)) - _FILLER]
        self.said = {term: word for word in reversed(words) for term in analyze(word)}
        return f"search[{' '.join(words)[:300]}]"

    def _choose_hit(self, texts: list[str], clicks: list[str]) -> str:
        """The next hit not looked at yet; the best of all when there is nothing more to look at."""
        here = [target for target in clicks if target not in _BUTTONS]
        known = {hit.asin for hit in self.hits}
        lowered = [text.lower() for text in texts]
        for asin in here:
            if asin not in known:
                place = lowered.index(asin)
                price = _PRICE.search(texts[place + 2])
                self.hits.append(_Hit(asin, texts[place + 1], float(price[1]) if price else 0.0))
        unread = [h for h in self.hits if h.missing is None and h.asin in here and h.price <= self.cap]
        looked_at = sum(hit.missing is not None for hit in self.hits)
        more = looked_at < self.patience and self.actions < self.hurry and not self.decided
        if unread and more:
            self.current = unread[0]
            self.read = set()
            return f"click[{self.current.asin}]"
        if more and here and self.pages < 2:
            self.pages += 1
            return "click[next >]"
        return self._return_to_best(here)

    def _return_to_best(self, here: list[str]) -> str:
        self.decided = True
        read = [hit for hit in self.hits if hit.missing is not None] or self.hits
        if not read:
            return "click[back to search]"
        self.current = min(read, key=lambda hit: hit.shortcomings)
        return f"click[{self.current.asin}]" if self.current.asin in here else "click[< prev]"

    def _read(self, texts: list[str], clicks: list[str]) -> str:
        """On a product's pages: read on while something is missing, then choose the options and buy, or go back."""
        assert self.current is not None
        if "buy now" not in clicks:
            self.current.missing = self._missing(" ".join(texts[3:]), self.current.missing)
            self.thought = self._verdict(self.current)
            return "click[< prev]"
        if self.current.missing is None:
            self.current.missing = self._missing(" ".join(texts[3:]))
            asked = (value for _, value in _NAMED_OPTION.findall(self.instruction))
            named = sum(value not in clicks for value in asked)
            self.offered.update(*(analyze(target) for target in clicks if target not in _BUTTONS))
            self.current.not_offered = max(named, len(self.current.missing & self.offered))
        if not self.decided:
            self.thought = self._verdict(self.current)
        for page, worth in self.pages_to_read.items():
            if (
                not self.current.not_offered
                and 0 < len(self.current.missing) <= worth
                and page not in self.read
                and not self.decided
            ):
                self.read.add(page)
                return f"click[{page}]"
        if self.current.shortcomings != (0, 0) and not self.decided:
            return "click[< prev]"
        self.decided = True
        return self._option(clicks, texts) or "click[buy now]"

    def _verdict(self, hit: _Hit) -> str:
        """The words that are missing (a long list says no more than its start), and then what follows from them.

        In this order because a verdict in front would have to be known before the words that it rests on are found.
        """
        missing = [self.said[term] for term in self.wish if term in (hit.missing or ())]
        said = ["lacks", *(missing[:_NAMED_MISSING] or ["nothing"])]
        return " ".join([*said, "not offered"] if hit.not_offered else said)

    def _missing(self, text: str, among: set[str] | None = None) -> set[str]:
        present = set(analyze(text.lower()))
        return {term for term in (self.wish if among is None else among) if term not in present}

    def _option(self, clicks: list[str], texts: list[str]) -> str | None:
        """The next option value to choose, or None when all that was asked for is chosen."""
        groups = _option_groups(clicks, texts)
        for name, values in groups.items():
            if name in self.read:
                continue
            self.read.add(name)
            wanted = self._wanted(name, values)
            if wanted is not None:
                return f"click[{wanted}]"
        return None

    def _wanted(self, name: str, values: list[str]) -> str | None:
        said = f" {self.instruction} "
        for pattern in (f"{name}: {{}}", f"{name} {{}}", "{}"):
            found = [v for v in values if re.search(rf"(?<![\w-]){re.escape(pattern.format(v))}(?![\w-])", said)]
            if found:
                return max(found, key=len)
        return None


def _option_groups(clicks: list[str], texts: list[str]) -> dict[str, list[str]]:
    """Option names and their values as the page lists them: a name, then its values."""
    values = {target for target in clicks if target not in _BUTTONS}
    groups: dict[str, list[str]] = {}
    name = ""
    for text in texts[texts.index("< Prev") + 1 :]:
        if text in values and name:
            groups.setdefault(name, []).append(text)
        elif text.startswith("Price:"):
            break
        else:
            name = text
    return groups
