"""Observations in few words, for small models: filters that templates use, never a change of the environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmanus_rl.agent.context import Past

_THINGS = re.compile(r"\b(?:an?|and) ")
_TASK = "Your task is to: "
# Rooms and grids have a few hundred characters. What is much longer is none, and patterns would take their time.
_LONGEST = 10_000
_ARRIVE = re.compile(r"You arrive at (?:loc \d+\.|[^.]*\.)\s*")

_ON_EVERY_PAGE = {"Back to Search", "Next >", "< Prev", "Rating: N.A.", "Description", "Features", "Reviews", "Buy Now"}
_AROUND = re.compile(r"row (\d+), column (\d+)\.([^:]*) north: ([^,]*), south: ([^,]*), west: ([^,]*), east: ([^.]*)\.")
_COUNT = re.compile(r" \(Total results: \d+\)")
_RESULTS = re.compile(r"Page \d+")
_CENTS = re.compile(r"(?<=\d)\.\d{1,2}\b(?=$| \|)")
# Not the search engine's stop words: "no" and "not" say what is wanted.
_POLITE_WORDS = (
    "i im i'm am me my you can could would please find get buy looking need want like prefer should also has have old "
    "broke some one which that this a an the and or of for is are it be to with in on as at by"
)
_POLITE = frozenset(_POLITE_WORDS.split())


def compact_alfworld(observation: str) -> str:
    """What is where, and what happened.

    >>> compact_alfworld("You arrive at cabinet 1. On the cabinet 1, you see a mug 2, and a plate 1.")
    'cabinet 1 : mug 2 plate 1'
    >>> compact_alfworld("You arrive at fridge 1. The fridge 1 is closed.")
    'fridge 1 closed'
    >>> compact_alfworld("You pick up the mug 2 from the cabinet 1.")
    'took mug 2'
    """
    if len(observation) > _LONGEST:
        return observation
    text = observation.partition(_TASK)[0].strip()
    seen = text.partition("you see ")[2]
    if "middle of a room" in text and seen.endswith("."):
        return "room : " + _list(seen.removesuffix("."))
    text = _ARRIVE.sub("", text)
    text = re.sub(r"You (?:open|close) the [^.]*\.\s*", "", text)
    parts = [part for sentence in re.split(r"(?<=\.)\s+", text) if (part := _sentence(sentence.strip()))]
    return " , ".join(parts)


def _sentence(sentence: str) -> str:
    seen = re.fullmatch(r"(?:On|In) (?:the (.*?)|it), you see (.*?)\.?", sentence)
    if seen:
        return f"{seen[1] or 'inside'} : {_list(seen[2])}"
    state = re.fullmatch(r"The (.*?) is (open|closed)\.?", sentence)
    if state:
        return f"{state[1]} {state[2]}"
    done = re.fullmatch(
        r"You (pick up|put|move|clean|heat|cool|turn on) the (.*?)(?: (?:from|in/on|to|using) .*)?\.?", sentence
    )
    if done:
        verb = {"pick up": "took", "put": "placed", "move": "placed", "turn on": "lit"}.get(done[1], done[1] + "ed")
        return f"{verb} {done[2]}"
    return sentence.removesuffix(".")


def _list(things: str) -> str:
    if things == "nothing":
        return "nothing"
    return " ".join(_THINGS.sub(" ", f" {things.replace(',', ' ')} ").split())


def compact_webshop(observation: str, history: Sequence[Past] = ()) -> str:
    """A page without its instruction, which a template repeats itself, and without what is on every page.

    In small letters, as `click[...]` wants them, and prices in whole dollars. Results and products that were shown
    before are only named: they are still to be read above.

    >>> compact_webshop("Instruction: [SEP] find a mug [SEP] Back to Search [SEP] Page 1 (Total results: 1) "
    ...                 "[SEP] Next > [SEP] B01 [SEP] Clay Mug [SEP] $5.2")
    'page 1 | b01 | clay mug | $5'
    """
    parts = [part.strip() for part in observation.split("[SEP]")]
    if parts[:2] == ["WebShop", "Instruction:"]:
        return "start"
    if parts and parts[0] == "Instruction:":
        parts = parts[2:]
    kept = [_COUNT.sub("", part) for part in parts if part not in _ON_EVERY_PAGE]
    if any(past.observation == observation for past in history):
        if "Buy Now" in parts:
            return "product"
        if kept and _RESULTS.fullmatch(kept[0]):
            kept = kept[:1]
    return _CENTS.sub("", " | ".join(kept)).lower()


def compact_wish(instruction: str) -> str:
    """The words of a WebShop instruction that say what is wanted, and the price limit.

    >>> compact_wish("i am looking for a mug that is easy clean, color: dark red, and price lower than 60.00 dollars")
    'mug easy clean color dark red < 60'
    """
    text = re.sub(r",? and price lower than (\d+)(?:\.\d+)? dollars", r" < \1", instruction.lower())
    words = re.sub(r"[,:;!?]|\.(?!\d)", " ", text).split()
    return " ".join(word for word in words if word not in _POLITE)


def compact_grid(observation: str) -> str:
    """Where the agent is, what it has, and what lies north, south, west and east of it.

    >>> compact_grid("Nothing happens. You are at row 2, column 0. You carry the key. north: floor, "
    ...              "south: closed door, west: wall, east: goal.")
    'nothing 2 0 carry key : floor closed wall goal'
    """
    if len(observation) > _LONGEST:
        return observation
    failed = "nothing " if observation.startswith("Nothing happens.") else ""
    found = _AROUND.search(observation)
    if found is None:
        return observation
    here = " here key" if "There is a key" in found[3] else " carry key" if "You carry" in found[3] else ""
    around = " ".join(found[side].removesuffix(" door") for side in (4, 5, 6, 7))
    return f"{failed}{found[1]} {found[2]}{here} : {around}"


def goal_of(observation: str) -> str:
    """The task that an ALFWorld room states, without the words around it; "" where there is none.

    >>> goal_of("You are in a room.\\n\\nYour task is to: put a mug in desk.")
    'put a mug in desk'
    """
    return observation.partition(_TASK)[2].rstrip().removesuffix(".").strip()


FILTERS = {
    "compact_alfworld": compact_alfworld,
    "compact_webshop": compact_webshop,
    "compact_wish": compact_wish,
    "compact_grid": compact_grid,
}
