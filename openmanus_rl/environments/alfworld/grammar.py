"""The text grammar inside a game file: which words an action has, and what it answers.

Game files of different releases say "put X in/on Y" or "move X to Y", "You arrive at loc 12" or "You arrive at desk
1". They carry their own grammar, so this reads it instead of knowing the sentences. The notation:

    #rule#                  another rule; of its productions, the first whose condition holds
    {r.name}                a property of an entity
    [{o.name | query}]      a list over the query's answers, joined with the grammar's own separators

Parsing happens once per distinct grammar; producing a text is a walk over tuples.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

Atom = tuple[str, tuple[str, ...]]
"""A predicate and its variables: `("inreceptacle", ("o", "r"))`."""
Binding = dict[str, str]
"""Variables to entity ids."""


class Facts(Protocol):
    """What a query asks: `find("inreceptacle", (None, "desk_1"))` gives all matching argument tuples, sorted."""

    def find(self, predicate: str, arguments: tuple[str | None, ...]) -> list[tuple[str, ...]]:
        """All facts that match."""

    def describe(self, entity: str, attribute: str) -> str:
        """`name`, `indefinite` or `id` of an entity."""


def solve(atoms: tuple[Atom, ...], facts: Facts, binding: Binding, depth: int = 0) -> Iterator[Binding]:
    """All ways to satisfy the atoms, in the order of the sorted facts; different variables mean different entities.

    The yielded dict is reused: copy it to keep it.
    """
    if depth == len(atoms):
        yield binding
        return
    predicate, variables = atoms[depth]
    pattern = tuple(binding.get(variable) for variable in variables)
    for arguments in facts.find(predicate, pattern):
        new: list[str] = []
        for variable, known, entity in zip(variables, pattern, arguments, strict=True):
            if known is None and variable not in new:
                if entity in binding.values():
                    break
                binding[variable] = entity
                new.append(variable)
            elif binding[variable] != entity:
                break
        else:
            yield from solve(atoms, facts, binding, depth + 1)
        for variable in new:
            del binding[variable]


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """`#name#`."""

    name: str


@dataclass(frozen=True, slots=True)
class Attributes:
    """`{o.indefinite + ' ' + o.name}`: (variable, attribute) pairs and plain texts, end to end."""

    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Each:
    """`[{expression | query}]` or `{expression | query}`: one text per answer, as a list or run together."""

    expression: Rule | Attributes
    query: tuple[Atom, ...]
    is_list: bool


Symbol = Literal | Rule | Attributes | Each


@dataclass(frozen=True, slots=True)
class Production:
    """A right-hand side, and the query that must have an answer for it to be chosen."""

    condition: tuple[Atom, ...]
    symbols: tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class ActionText:
    """How an action is commanded, and the symbols of its answer."""

    template: str
    feedback: tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """The rules of one game's language, and the texts of its actions by lower-case action name."""

    rules: dict[str, tuple[Production, ...]]
    actions: dict[str, ActionText]

    def render(self, symbols: tuple[Symbol, ...], facts: Facts, binding: Binding) -> str:
        """The text that the symbols stand for in this situation."""
        return "".join(self._render(symbol, facts, binding) for symbol in symbols)

    def _render(self, symbol: Symbol, facts: Facts, binding: Binding) -> str:
        if isinstance(symbol, Literal):
            return symbol.text
        if isinstance(symbol, Attributes):
            return "".join(
                text if not variable else facts.describe(binding[variable], text) for variable, text in symbol.parts
            )
        if isinstance(symbol, Rule):
            return self.render(self._choose(symbol.name, facts, binding), facts, binding)
        texts = [self._render(symbol.expression, facts, answer) for answer in solve(symbol.query, facts, dict(binding))]
        return self._joined(texts, facts, binding) if symbol.is_list else "".join(texts)

    def _choose(self, name: str, facts: Facts, binding: Binding) -> tuple[Symbol, ...]:
        for production in self.rules.get(name, ()):
            if next(solve(production.condition, facts, dict(binding)), None) is not None:
                return production.symbols
        raise ValueError(f"the game's grammar has no production for #{name}# here")

    def _joined(self, texts: list[str], facts: Facts, binding: Binding) -> str:
        if not texts:
            return self._render(Rule("list_empty"), facts, binding)
        if len(texts) == 1:
            return texts[0]
        separator = self._render(Rule("list_separator"), facts, binding)
        last = self._render(Rule("list_last_separator"), facts, binding)
        return separator.join(texts[:-1]) + last + texts[-1]


# --- reading --------------------------------------------------------------------------------------------
# Files may come from anybody: nothing here goes back over what it has read (`*+`, `++`), and what has an end is found
# by looking for its end, so that time grows with the length of a file and not with its square.

_ACTION = re.compile(
    r'action\s++(\w++)\s*+\{\s*+template\s*+::\s*+"([^"]*+)"\s*+;\s*+feedback\s*+::\s*+"([^"]*+)"\s*+;'
)
_ACTION_END = re.compile(r"\n\}")
_BLOCK = re.compile(r'grammar\s*+::\s*+"""')
_BLOCK_END = re.compile(r'"""\s*+;')
_TASK = re.compile(r'("task"\s*+:\s*+\[\s*+\{\s*+"rhs"\s*+:\s*+)("(?:[^"\\]|\\.)*+")')
_SYMBOL = re.compile(r"#([^#\n]++)#|(\[\{|\{)")
_ATOM = re.compile(r"\s*(\w+)\(([^()]*)\)\s*")


def read_grammar(text: str) -> tuple[Grammar, str]:
    """The grammar of a game file, and its task ("put two newspaper in drawer."), which is all that differs between
    games.
    """
    found = _TASK.search(text)
    if found is None:
        raise ValueError("the game's grammar has no task")
    task = str(json.loads(found[2]))
    return _read(text[: found.start(2)] + '"#task#"' + text[found.end(2) :]), task


@functools.lru_cache(maxsize=16)
def _read(text: str) -> Grammar:
    actions: dict[str, ActionText] = {}
    rules: dict[str, tuple[Production, ...]] = {}
    outside: list[str] = []
    inside: list[str] = []
    end = 0
    for action, rest, after in _enclosed(_ACTION, _ACTION_END, text):
        name, template, feedback = action.groups()
        actions[name.lower()] = ActionText(template, _symbols(feedback))
        outside.append(text[end : action.start()])
        inside.append(rest)
        end = after
    outside.append(text[end:])
    for block in [block for part in ("".join(outside), *inside) for _, block, _ in _enclosed(_BLOCK, _BLOCK_END, part)]:
        lines = (line for line in textwrap.dedent(block).split("\n") if not line.lstrip().startswith("#"))
        try:
            entries = json.loads("\n".join(lines))
        except json.JSONDecodeError as error:
            raise ValueError(f"the game's grammar is not readable: {error}") from None
        for name, productions in entries.items():
            rules[name] = tuple(
                Production(_query(entry.get("condition", "")), _symbols(entry["rhs"])) for entry in productions
            )
    grammar = Grammar(rules, actions)
    for name in sorted({"intro", "list_empty", "list_separator", "list_last_separator", *_named_rules(grammar)}):
        if name not in rules:
            raise ValueError(f"the game's grammar has no rule #{name}#")
    return grammar


def _enclosed(begin: re.Pattern[str], end: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str, int]]:
    """What stands between a beginning and the next end: its beginning, its text, and where its end is over."""
    position = 0
    while (found := begin.search(text, position)) and (closed := end.search(text, found.end())):
        yield found, text[found.end() : closed.start()], closed.end()
        position = closed.end()


def _named_rules(grammar: Grammar) -> Iterator[str]:
    """Every rule that an action's answer or another rule refers to."""
    pending = [symbol for action in grammar.actions.values() for symbol in action.feedback]
    pending += [symbol for rule in grammar.rules.values() for production in rule for symbol in production.symbols]
    for symbol in pending:
        inner = symbol.expression if isinstance(symbol, Each) else symbol
        if isinstance(inner, Rule):
            yield inner.name


def _symbols(text: str) -> tuple[Symbol, ...]:
    symbols: list[Symbol] = []
    end = 0
    while match := _SYMBOL.search(text, end):
        if match.start() > end:
            symbols.append(Literal(text[end : match.start()]))
        rule, bracket = match.groups()
        end = match.end()
        if rule is not None:
            symbols.append(Rule(rule))
            continue
        closing = "}]" if bracket == "[{" else "}"
        closed = text.find(closing, end)
        if closed < 0:
            raise ValueError(f"the game's grammar has a {bracket} without a {closing}")
        expression, bar, query = text[end:closed].partition("|")
        inner = _expression(expression.strip())
        symbols.append(Each(inner, _query(query), bracket == "[{") if bar else inner)
        end = closed + len(closing)
    if end < len(text):
        symbols.append(Literal(text[end:]))
    return tuple(symbols)


def _expression(text: str) -> Rule | Attributes:
    """`#rule#`, or a sum of attributes and quoted texts; of `a.name or a.id` the first is meant, every entity has
    a name.
    """
    if text.startswith("#"):
        return Rule(text.strip("#"))
    parts: list[tuple[str, str]] = []
    for part in text.split("+"):
        term = part.strip(" ") if not part.strip().startswith("'") else part.strip()
        if term.startswith("'"):
            parts.append(("", term.strip("'")))
            continue
        variable, dot, attribute = term.partition(" or ")[0].strip().partition(".")
        if not dot or attribute not in ("name", "indefinite", "definite", "id"):
            raise ValueError(f"the game's grammar uses {text!r}, which is not understood")
        parts.append((variable, attribute))
    return Attributes(tuple(parts))


def _query(text: str) -> tuple[Atom, ...]:
    """`openable(r:receptacle) & opened(r:receptacle)`."""
    if not text.strip():
        return ()
    atoms: list[Atom] = []
    for part in text.split("&"):
        match = _ATOM.fullmatch(part)
        if match is None:
            raise ValueError(f"the game's grammar asks {text!r}, which is not understood")
        if match[1].startswith("not_") and match[1] not in ("not_inreceptacle", "not_istoggled"):
            raise ValueError(f"the game's grammar asks for {match[1]}, which the native engine does not know")
        atoms.append((match[1], tuple(argument.partition(":")[0].strip() for argument in match[2].split(","))))
    return tuple(atoms)
