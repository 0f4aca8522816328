"""The nouns of a product title, by rule: the original asks a statistical tagger (spaCy), which is a download.

In titles nearly every capitalised word is tagged as a proper noun, whatever it is elsewhere, so the rule is: a word
counts unless it belongs to a closed class (articles, prepositions, pronouns, auxiliaries), is a number, or is a
lower-case word that looks like an adjective, an adverb or a participle. The nouns only decide the factor for the kind
of product where neither the query nor two categories agree, or where the titles share almost nothing.
"""

from __future__ import annotations

import functools
import re

_WORD = re.compile(r"[^\W\d_]+")
_CLOSED = frozenset({
    "a", "about", "above", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been", "before",
    "below", "between", "both", "but", "by", "can", "could", "do", "does", "down", "during", "each", "either",
    "even", "every", "few", "for", "from", "had", "has", "have", "he", "her", "here", "him", "his", "how", "i",
    "if", "in", "into", "is", "it", "its", "just", "less", "made", "make", "many", "may", "me", "more", "most",
    "much", "my", "near", "no", "nor", "not", "now", "of", "off", "on", "one", "only", "onto", "or", "other", "our",
    "out", "over", "own", "per", "please", "same", "set", "she", "should", "so", "some", "such", "than", "that",
    "the", "their", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too", "two",
    "under", "until", "up", "upon", "us", "use", "used", "using", "very", "via", "was", "we", "were", "what",
    "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "within", "without", "would",
    "you", "your", "s", "t",
})  # fmt: skip
_ADJECTIVES = frozenset({
    "big", "black", "blue", "brown", "cold", "cool", "cute", "dark", "deep", "dry", "extra", "fine", "free",
    "fresh", "full", "good", "gray", "great", "green", "grey", "hard", "heavy", "high", "hot", "large", "light",
    "long", "low", "mini", "modern", "natural", "new", "nice", "old", "orange", "pink", "plus", "pure", "purple",
    "quick", "raw", "red", "rich", "round", "safe", "sexy", "short", "slim", "small", "smart", "soft", "solid",
    "strong", "super", "sweet", "tall", "thick", "thin", "tiny", "top", "vintage", "warm", "wet", "white", "wide",
    "yellow", "young",
})  # fmt: skip
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "ive", "ish", "ary", "ic", "al", "ed", "ly", "est", "proof")


@functools.lru_cache(maxsize=64)
def nouns(title: str) -> tuple[str, ...]:
    """Lower-cased, in order, repetitions kept.

    >>> nouns("Daily Ritual Women's 100% Cotton Sweater with soft adjustable hood")
    ('daily', 'ritual', 'women', 'cotton', 'sweater', 'hood')
    """
    return tuple(word.lower() for word in _WORD.findall(title) if _counts(word))


def _counts(word: str) -> bool:
    lower = word.lower()
    if lower in _CLOSED:
        return False
    if word[0].isupper():
        return True
    return lower not in _ADJECTIVES and not lower.endswith(_ADJECTIVE_ENDINGS)
