"""The chat template of a model repository, rendered: it is a program of somebody else's, so it runs on an allowance.

    ChatTemplate(tokenizer.chat_template).render(messages, add_generation_prompt=True, eos_token="<|im_end|>")

Jinja's sandbox keeps it from Python's insides and from files; here it is also kept from running for ever and from
filling the memory: `{% for a in range(99999) %}{% for b in range(99999) %}` and `{{ 'x' * 10**10 }}` are refused, and
what would have to be counted at great length (`center`, `lipsum`, `%9999d`) is not there. Every operation whose work
grows with its operands asks first, and looks at the clock: loops and their conditions, comparisons, operators, filters,
tests and calls. What a template writes is what transformers would write; the tests compare them.
"""

from __future__ import annotations

import json
import operator
import re
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openmanus_rl.agent.template_allowance import (
    Allowance,
    TemplateLimitError,
    check_numbers,
    check_power,
    check_product,
    measure,
)
from openmanus_rl.agent.template_code import CountingCode, Generation
from openmanus_rl.agent.template_filters import METHODS, bounded_filters, bounded_tests, call_text_method
from openmanus_rl.agent.template_formats import check_braces, check_percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2.runtime import Context

# The largest in use have some twenty thousand characters.
MAX_TEMPLATE = 200_000


class ChatTemplate:
    """One template, compiled; ValueError or jinja2.TemplateError if it cannot be."""

    def __init__(self, source: str | Mapping[str, str]) -> None:
        text = source if isinstance(source, str) else source.get("default")
        if not isinstance(text, str):
            raise ValueError("there are several chat templates, and none of them is named default")
        if len(text) > MAX_TEMPLATE:
            raise ValueError(f"the chat template has {len(text):,} characters; {MAX_TEMPLATE:,} is the limit")
        self._text = text
        self._environment = _BoundedEnvironment()
        try:
            self._template = self._environment.from_string(text)
        except (RecursionError, MemoryError, SyntaxError) as error:  # of the Python that Jinja makes of it
            raise ValueError(f"the chat template cannot be compiled: {error}") from None

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str]]:
        """Another process compiles it again."""
        return ChatTemplate, (self._text,)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **special: str) -> str:
        """The conversation as the model reads it; `special` are the special tokens by name."""
        self._environment.allow(messages)
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **special,
            )
        except (RecursionError, MemoryError, OverflowError) as error:
            raise TemplateLimitError(f"the template goes too far: {type(error).__name__}") from None


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates know it, counting. One render a thread at a time."""

    code_generator_class = CountingCode
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed before it is counted
            extensions=[Generation, jinja2.ext.loopcontrols],
            finalize=self.shown,
        )
        self._local = threading.local()
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise, "strftime_now": _now}
        self.filters = bounded_filters(self.filters, _tojson, lambda: self.allowance)
        self.tests = bounded_tests(self.tests, lambda: self.allowance)  # type: ignore[assignment]

    @property
    def allowance(self) -> Allowance:
        """What this thread's render may still do."""
        found: Allowance | None = getattr(self._local, "allowance", None)
        if found is None:
            found = self._local.allowance = Allowance(0)
        return found

    def allow(self, given: Any) -> None:
        """A new allowance, the larger the more was given."""
        self._local.allowance = Allowance(measure(given))

    # --- what the code of a template asks ----------------------------------------------------------------------

    def spend(self, cost: int) -> None:
        """One round of a loop."""
        self.allowance.step()
        self.allowance.take(cost)

    def asked(self) -> bool:
        """A loop's condition is about to be asked; as a call it is a step."""
        return True

    def compared(self, left: Any, *others: tuple[str, Callable[[], Any]]) -> Any:
        """`a == b`, `a in b`, `a < b < c`."""
        found: Any = True
        for name, other in others:
            right = other()
            if name in ("in", "notin"):
                self.allowance.find(left, right)
            else:
                self.allowance.compare(left, right)
            found = _COMPARE[name](left, right)
            if not found:
                break
            left = right
        return found

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`a[b]`; the hash of a tuple is worked out every time."""
        if isinstance(argument, tuple):
            self.allowance.take(self.allowance.measure(argument))
        return super().getitem(obj, argument)

    def shown(self, value: Any) -> Any:
        """What is written."""
        self.allowance.take(len(value) if isinstance(value, str) else self.allowance.measure(value))
        return value

    def joined(self, parts: list[Any]) -> str:
        """`a ~ b`; `parts` was counted as a list."""
        return "".join(map(str, parts))

    def cut(self, value: Any) -> Any:
        """`a[1:]`."""
        self.allowance.take(len(value))
        return value

    def made(self, value: Any) -> Any:
        """A list, tuple or dict: with all that is in it, or lists of lists would grow while nobody counts."""
        self.allowance.take(self.allowance.measure(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Any operator between two values."""
        allowance = self.allowance
        check_numbers(left, right)
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            allowance.take(len(left) + len(right))
        elif operator == "*":
            check_product(allowance, left, right)
        elif operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            check_percent(allowance, left, right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of texts, numbers, lists and dicts only what is known to be harmless."""
        allowed = next((names for kind, names in METHODS.items() if isinstance(obj, kind)), None)
        return super().is_safe_attribute(obj, attr, value) and (allowed is None or attr in allowed)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`'{}'.format(x)`, in the sandbox and without widths."""
        formatting = super().wrap_str_format(value)
        if formatting is None:
            return None
        text: str = value.__self__

        def bounded(*args: Any, **named: Any) -> str:
            check_braces(self.allowance, text, [args, named])
            return formatting(*args, **named)

        return bounded

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        """A function, a macro, or a method of a text."""
        allowance = self.allowance
        allowance.step()
        told = {name: value for name, value in named.items() if name not in ("_loop_vars", "_block_vars")}
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            return call_text_method(allowance, obj, *_plain(args), **told)
        if isinstance(owner, list | tuple):  # `count` and `index` compare all of it
            allowance.take(allowance.measure(owner))
        if not isinstance(obj, Macro | LoopContext):  # those only pass on what they are given
            allowance.take(sum(map(allowance.measure, (*args, *told.values()))))
        found = super().call(context, obj, *args, **named)
        if isinstance(found, str | list | dict):
            allowance.take(len(found))
        return found


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda item, container: item in container,
    "notin": lambda item, container: item not in container,
}


def _plain(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Generators written out, so that they can be counted."""
    return tuple(list(item) if hasattr(item, "__next__") else item for item in arguments)


def _raise(message: str) -> None:
    """A template refuses a conversation."""
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    """The date, as templates ask for it."""
    if len(form) > 100 or re.search(r"%[^a-zA-Z%]*\d", form):
        raise TemplateLimitError("strftime_now takes a short format without widths")
    return datetime.now().strftime(form)  # noqa: DTZ005 - the date where the user is, as transformers has it


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as a model reads it, not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
