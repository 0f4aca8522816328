"""The expressions in a game file's grammar, worked out without running them: `{o.indefinite + ' ' + o.name}`.

TextWorld gives whatever stands in the braces to Python's `eval`, so that a game file could do anything that its player
may. The grammars of the released games use four forms, and these are all there is here: an entity, an attribute of it,
a text in quotes, and `+` or `or` between them.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTRIBUTES = frozenset({"id", "type", "name", "noun", "adj", "desc", "definite", "indefinite"})
MAX_LENGTH = 1000


def evaluate(expression: str, entities: Mapping[str, Any]) -> Any:
    """What the expression says of the entities; ValueError for one of any other form.

    >>> from types import SimpleNamespace
    >>> evaluate("o.indefinite + ' ' + o.name", {"o": SimpleNamespace(indefinite="a", name="mug 1")})
    'a mug 1'
    """
    if len(expression) > MAX_LENGTH:
        raise _refused(expression)
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, entities)
    except (SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise _refused(expression) from None


def _value(node: ast.expr, entities: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(name):
            return entities[name]
        case ast.Attribute(ast.Name(name), attribute) if attribute in ATTRIBUTES:
            return getattr(entities[name], attribute)
        case ast.Constant(str(text)):
            return text
        case ast.BinOp(left, ast.Add(), right):
            return _value(left, entities) + _value(right, entities)
        case ast.BoolOp(ast.Or(), parts):
            value = None
            for part in parts:
                if value := _value(part, entities):
                    break
            return value
        case _:
            raise TypeError


def _refused(expression: str) -> ValueError:
    return ValueError(
        f"the game's grammar asks for {{{expression[:80]}}}: only entities, their attributes "
        f"({', '.join(sorted(ATTRIBUTES))}), texts in quotes, + and `or` are worked out; nothing in a game file is run"
    )
