"""A visit to the shop: pages, what can be clicked on them, and how they read.

Pages are lists of elements; both observation modes are made from the same list. `text` joins what is visible with
` [SEP] `; `text_rich` puts it on lines and marks buttons.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from openmanus_rl.environments.webshop.catalogue import Catalogue, Product

PER_PAGE = 10
ACTION = re.compile(r"(.+)\[(.+)\]")
Page = Literal["start", "results", "item", "description", "features", "reviews", "done"]
SUB_PAGES: tuple[Page, ...] = ("description", "features", "reviews")


@dataclass(frozen=True, slots=True)
class Element:
    """Something visible: plain text, a button, an option's value (indented), a product's button (after a gap)."""

    text: str
    kind: Literal["text", "button", "option", "product"] = "text"
    clicked: bool = False


@dataclass(slots=True)
class Session:
    """Where the customer is, and what was chosen."""

    catalogue: Catalogue
    instruction: str
    search: Callable[[str], Sequence[int]]
    page: Page = "start"
    query: str = ""
    page_number: int = 1
    results: list[int] = field(default_factory=list)
    product: int | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    score: float | None = None

    def act(self, action: str) -> bool:
        """Carry out `search[...]` or `click[...]`; False if it is neither, or cannot be clicked."""
        match = ACTION.match(action)
        if match is None or self.page == "done":
            return False
        name, argument = match[1], match[2].lower()
        if name == "search":
            self.query, self.page, self.page_number = argument, "results", 1
            self.results, self.product, self.chosen = list(self.search(argument)), None, {}
            return True
        return name == "click" and argument in self.clickables() and self._click(argument)

    def _click(self, target: str) -> bool:
        if target == "back to search":
            self.page, self.query, self.results, self.product, self.chosen = "start", "", [], None, {}
            self.page_number = 1
        elif target == "next >":
            self.page_number += 1
        elif target == "< prev":
            self._back()
        elif target == "buy now":
            self.page = "done"
        elif target in SUB_PAGES and self.page == "item":
            self.page = target
        elif self.page == "results":
            opened = next(product.asin for product in self.shown() if product.asin.lower() == target)
            self.product, self.page, self.chosen = self.catalogue.by_asin[opened], "item", {}
            self.visited.add(opened)
        else:
            assert self.product is not None
            options = self.catalogue.products[self.product].options
            name = next(name for name, values in options.items() if target in values)
            self.chosen[name] = target
        return True

    def _back(self) -> None:
        if self.page in SUB_PAGES:
            self.page = "item"
        elif self.page == "item":
            self.page, self.product, self.chosen = "results", None, {}
        else:
            self.page_number -= 1

    def clickables(self) -> list[str]:
        """What can be clicked, in lower case; the search box is not among them."""
        if self.page in ("start", "done"):
            return []
        if self.page == "results":
            back = ["< prev"] if self.page_number > 1 else []
            return ["back to search", *back, "next >", *(product.asin.lower() for product in self.shown())]
        if self.page == "item":
            assert self.product is not None
            options = self.catalogue.products[self.product].options
            values = [value for values in options.values() for value in values]
            return ["back to search", "< prev", "description", "features", "reviews", "buy now", *values]
        return ["back to search", "< prev"]

    def shown(self) -> list[Product]:
        """The products of this page of the results."""
        start = (self.page_number - 1) * PER_PAGE
        return [self.catalogue.products[number] for number in self.results[start : start + PER_PAGE]]

    # --- how it reads -----------------------------------------------------------------------------------

    def text(self) -> str:
        """The page in one line."""
        visible = (element.text.strip() for element in self.elements())
        return " [SEP] ".join(part for part in visible if part)

    def text_rich(self) -> str:
        """The page on lines, with buttons marked; options that were chosen are named first."""
        lines: list[str] = []
        chosen: list[str] = []
        for element in self.elements():
            mark = "clicked button" if element.clicked else "button"
            if element.kind == "text":
                lines.append(element.text)
            elif element.kind == "button":
                lines.append(f"[button] {element.text} [button_]")
            elif element.kind == "product":
                lines.append(f"\n[{mark}] {element.text} [{mark}_]")
            else:
                lines.append(f"  [{mark}] {element.text} [{mark}_]")
                if element.clicked:
                    chosen.insert(0, f"You have clicked {element.text}.")
        return "".join(f"{line}\n" for line in chosen + lines)

    def elements(self) -> list[Element]:
        """Everything visible on the page, top to bottom."""
        if self.page == "start":
            return [
                Element("WebShop"),
                Element("Instruction: "),
                Element(self.instruction),
                Element("Search", "button"),
            ]
        if self.page == "done":
            return [Element(line) for line in self._receipt()]
        head = [Element("Instruction:"), Element(self.instruction), Element("Back to Search", "button")]
        if self.page == "results":
            return head + self._result_elements()
        head.append(Element("< Prev", "button"))
        assert self.product is not None
        product = self.catalogue.products[self.product]
        if self.page == "item":
            return head + self._item_elements(product)
        features = [f" {text}" for text in product.bullets]
        texts = {"description": [product.description], "features": features, "reviews": []}[self.page]
        return head + [Element(text) for text in texts if text]

    def _result_elements(self) -> list[Element]:
        shown = [Element(f"Page {self.page_number} (Total results: {len(self.results)})")]
        if self.page_number > 1:
            shown.append(Element("< Prev", "button"))
        shown.append(Element("Next >", "button"))
        for product in self.shown():
            shown.append(Element(product.asin, "product", product.asin in self.visited))
            shown += [Element(product.title), Element(product.price_tag)]
        return shown

    def _item_elements(self, product: Product) -> list[Element]:
        shown: list[Element] = []
        for name, values in product.options.items():
            shown.append(Element(name))
            # The original marks a chosen value by an HTML attribute, which a quotation mark in the value ends.
            shown += [Element(value, "option", self.chosen.get(name) == value and '"' not in value) for value in values]
        shown += [Element(product.title), Element(f"Price: {product.price_tag}"), Element("Rating: N.A.")]
        return shown + [Element(text, "button") for text in ("Description", "Features", "Reviews", "Buy Now")]

    def _receipt(self) -> list[str]:
        assert self.product is not None
        asin, options = self.catalogue.products[self.product].asin, json.dumps(self.chosen, sort_keys=True)
        return [
            "Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)",
            "Purchased", "asin", asin, "options", options, "attrs", "None", "category", "None", "query", "None",
            "product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text",
            "category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)",
            str(self.score), "Reward Details ", "None",
        ]  # fmt: skip
