"""`'%d' % n` and `'{:>9}'.format(x)` in chat templates: what a format asks for, read as Python reads it."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any

from openmanus_rl.agent.template_allowance import TemplateLimitError

if TYPE_CHECKING:
    from openmanus_rl.agent.template_allowance import Allowance

# A field of two digits' width and precision, of the largest number with a fraction.
FIELD = 512
_REST = re.compile(r"[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?[hlL]?")
_LONG = re.compile(r"[0-9]{3}|\*")


def check_percent(allowance: Allowance, form: str, values: Any) -> None:
    """`form % values`. Widths beyond 99 (`'%9999d'`, `'%(key)9999d'`) and widths by value (`'%*d'`) are refused."""
    place, fields = form.find("%"), 0
    while place >= 0:
        place += 1
        if form[place : place + 1] == "(":
            place = _after_key(form, place)
        rest = _REST.match(form, place)
        assert rest is not None  # everything in it may be absent
        if any(_LONG.search(width or "") for width in rest.groups()):
            raise _wide()
        fields += 1
        # One letter follows, or a second percent sign.
        place = form.find("%", rest.end() + 1)
    allowance.take(len(form) + fields * (FIELD + allowance.measure(values)))


def _after_key(form: str, place: int) -> int:
    """Behind the key that starts here; parentheses in it nest."""
    depth = 0
    for position in range(place, len(form)):
        depth += (form[position] == "(") - (form[position] == ")")
        if depth == 0:
            return position + 1
    return len(form)


def check_braces(allowance: Allowance, form: str, values: Any) -> None:
    """`form.format(...)`. Widths beyond 99 and widths by value (`'{:>{}}'`) are refused."""
    allowance.take(len(form))
    fields = 0
    for _, name, spec, _ in string.Formatter().parse(form):
        fields += name is not None
        if spec and re.search(r"\d{3}|\{", spec):
            raise _wide()
    allowance.take(fields * (FIELD + allowance.measure(values)))


def _wide() -> TemplateLimitError:
    return TemplateLimitError("the template asks for a text of a given width")
