"""Words as the original search engine sees them: Lucene's English analysis, in Python.

Standard tokens in lower case, without a possessive 's, without 33 stop words, stemmed by Porter's algorithm
(M. F. Porter, "An algorithm for suffix stripping", 1980). Our own because the packages that have it bring corpora or
Java.
"""

from __future__ import annotations

import re

_STOPPED = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOPPED.split())
# Letters and digits; a dot, apostrophe or colon between letters, and a dot or comma between digits, stay inside a word.
# Possessive, and a look at the next character first: most words end at a space, and a catalogue has many words.
_WORD = (
    r"[^\W_]++(?:(?=['\u2019.:,;_])(?:(?<=[^\W\d_])['\u2019.:](?=[^\W\d_])|(?<=\d)[.,;'\u2019](?=\d)|_+(?=[^\W_]))"
    r"[^\W_]++)*+"
)
# Lucene counts each emoji as a word; sellers use many, so without them the lengths of products would be wrong.
_EMOJI = (
    "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\u2300-\u23ff\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2194-\u21aa"
    "\u2934\u2935\u203c\u2049\u2122\u2139\u24c2\u3030\u303d\u3297\u3299\u00a9\u00ae]\ufe0f?"
)
_TOKEN = re.compile(f"{_WORD}|{_EMOJI}")


def analyze(text: str) -> list[str]:
    """The terms of a text, in order.

    >>> analyze("The women's running shoes are waterproof")
    ['women', 'run', 'shoe', 'waterproof']
    """
    return [term for term in map(_TERMS.__getitem__, _TOKEN.findall(text)) if term]


class _Terms(dict[str, str]):
    """Token to term, "" for a stop word: a catalogue repeats its words, so nearly every token costs one lookup."""

    def __missing__(self, token: str) -> str:
        word = token.lower()
        if word.endswith(("'s", "\u2019s")):
            word = word[:-2]
        term = stem(word) if word and word not in STOP_WORDS else ""
        if len(self) < _REMEMBERED:  # the rarest words of a huge catalogue are not worth their memory
            self[token] = term
        return term


_REMEMBERED = 500_000
_TERMS = _Terms()


def _kinds(word: str) -> str:
    """`c` for each consonant, `v` for each vowel; y is a vowel after a consonant.

    >>> _kinds("yearly"), _kinds("syyyy")
    ('cvvccv', 'cvcvc')
    """
    kinds: list[str] = []
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and kinds[-1:] == ["c"])
        kinds.append("v" if vowel else "c")
    return "".join(kinds)


def _measure(stem_: str) -> int:
    """How often a vowel is followed by a consonant: m in [C](VC)^m[V]."""
    return _kinds(stem_).count("vc")


def _has_vowel(stem_: str) -> bool:
    return "v" in _kinds(stem_)


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _kinds(word)[-1] == "c"


def _ends_cvc(word: str) -> bool:
    return _kinds(word)[-3:] == "cvc" and word[-1] not in "wxy"


# The longest suffix that fits is the one that counts, so they stand in that order.
_STEP_2 = {
    "ational": "ate", "ization": "ize", "iveness": "ive", "fulness": "ful", "ousness": "ous", "tional": "tion",
    "biliti": "ble", "entli": "ent", "ousli": "ous", "ation": "ate", "alism": "al", "aliti": "al", "iviti": "ive",
    "enci": "ence", "anci": "ance", "izer": "ize", "alli": "al", "ator": "ate", "logi": "log", "bli": "ble",
    "eli": "e",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ness": "", "ful": ""}
_STEP_4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ion", "ism", "ate", "iti", "ous", "ive", "ize",
    "al", "er", "ic", "ou",
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a word in lower case.

    >>> [stem(w) for w in ("caresses", "ponies", "relational", "hopping", "filing", "happy", "size")]
    ['caress', 'poni', 'relat', 'hop', 'file', 'happi', 'size']
    """
    if len(word) <= 2:
        return word
    word = _step_1(word)
    word = _replace(word, _STEP_2)
    word = _replace(word, _STEP_3)
    word = _step_4(word)
    return _step_5(word)


def _step_1(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for suffix in ("ed", "ing"):
            if word.endswith(suffix) and _has_vowel(word[: -len(suffix)]):
                word = _tidy(word[: -len(suffix)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _tidy(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word) and word[-1] not in "lsz":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_cvc(word) else word


def _replace(word: str, suffixes: dict[str, str]) -> str:
    for suffix, other in suffixes.items():
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + other if _measure(base) > 0 else word
    return word


def _step_4(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            if suffix == "ion" and not base.endswith(("s", "t")):
                return word
            return base if _measure(base) > 1 else word
    return word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        if _measure(base) > 1 or (_measure(base) == 1 and not _ends_cvc(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
