"""Chat templates of somebody else's that try to get more work or text than they are charged for.

Each was charged too little once, or is of the kind. The clock is stopped, so that what is counted must stop them.
"""

import random
import resource
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.agent import template_allowance
from openmanus_rl.agent.chat_template import ChatTemplate
from openmanus_rl.agent.template_allowance import Allowance, TemplateLimitError
from openmanus_rl.agent.template_formats import check_braces, check_percent
from tests.hostile.fuzz import fuzzed
from tests.rollout.models import tokenizer

TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
LONG_LIST = "{% set l = range(99999)|list %}"
GREEDY = {
    # widths
    "% with a key": "{% set y = '%(a)3000000d' % {'a': 1} %}",
    "% with a key in parentheses": "{% set y = '%(a(b))3000000d' % {'a(b)': 1} %}",
    "% with a precision": "{% set y = '%.3000000f' % 1.0 %}",
    "% with a flag and a length": "{% set y = '%-0+l3000000d%l%(%9999999d)' % (1, 2) %}",
    "% after a percent sign with a length": "{% set y = '%l%(%9999999d)' % 2 %}",
    "% with a precision by value": "{% set y = '%.*f' % (10**9, 1.0) %}",
    "format with a bracket": "{% set y = '{0[}]:>99999999}'.format({'}': 1}) %}",
    "format with a conversion": "{% set y = '{0!r:>99999999}'.format(1) %}",
    "format with a precision": "{% set y = '{:.99999999f}'.format(1.0) %}",
    "format with other digits": "{% set y = '{:>\u0669\u0669\u0669\u0669\u0669\u0669\u0669}'.format(1) %}",
    "format_map": "{% set y = '{a:>99999999}'.format_map({'a': 1}) %}",
    "many fields": "{% set y = ('%(a)s' * 20000) % {'a': 'x' * 1000} %}",
    "many fields of small numbers": "{% set y = ('%.99f' * 20000) % ((1e300,) * 20000) %}",
    # lines
    "indent by another line's end": "{% set y = ('a\\r' * 300)|indent(10000) %}",
    "indent by a form feed": "{% set y = ('a\x0c' * 300)|indent(10000) %}",
    "indent by a line separator": "{% set y = ('a\u2028' * 300)|indent('x' * 10000) %}",
    "indent of nothing": "{% set y = ''|indent(10**9, true) %}",
    # numbers
    "a list of long numbers": "{% set y = ([('9' * 4000)|int] * 9999)|join %}",
    "a list of numbers that may be": "{% set y = [10 ** 1000] * 9999 %}",
    "a number of another base": "{% set y = ('f' * 100000)|int(base=16) %}",
    "a number as it is written": "{% set a = 0x" + "f" * 50_000 + " %}{{ a is odd }}",
    "a number in a list": "{% set y = ['f' * 100000]|map('int', base=16)|list %}",
    # conditions and comparisons
    "the condition of a loop": LONG_LIST + "{% for b in l if 'x' in l %}{% endfor %}",
    "a condition that nothing meets": (
        "{% for i in range(9) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "in": LONG_LIST + "{% for i in range(9999) %}{% if 'x' in l %}{% endif %}{% endfor %}",
    "not in": LONG_LIST + "{% for i in range(9999) %}{% if 'x' not in l %}{% endif %}{% endfor %}",
    "in a text": "{% set t = 'x' * 99999 %}{% for i in range(9999) %}{% if 'y' in t %}{% endif %}{% endfor %}",
    "equal": LONG_LIST + "{% set m = l + [] %}{% for i in range(9999) %}{% if l == m %}{% endif %}{% endfor %}",
    "less": LONG_LIST + "{% set m = l + [] %}{% for i in range(9999) %}{% if 0 < 1 and l < m %}{% endif %}{% endfor %}",
    "a chain": (
        LONG_LIST + "{% set m = l + [] %}{% for i in range(9999) %}{{ 0 < 1 != 2 == 2 and l == m == l }}{% endfor %}"
    ),
    **{
        f"{method} of half of it": (
            f"{{% set t = 'a' * 40000 %}}{{% set p = 'ba' ~ 'a' * 20000 %}}{{% set y = t.{method}({argument}) %}}"
        )
        for method, argument in (("rfind", "p"), ("rpartition", "p"), ("rsplit", "sep=p"))
    },
    "rindex of half of it": (
        "{% set p = 'ba' ~ 'a' * 20000 %}{% set t = p ~ 'a' * 40000 %}{% set y = t.rindex(p) %}"
    ),
    "select in": LONG_LIST + "{{ l|select('in', l|reverse|list)|list|length }}",
    "reject in": LONG_LIST + "{{ l|reject('in', ['x'] * 9999)|list|length }}",
    "selectattr in": "{% set m = ['x'] * 9999 %}{{ (messages * 999)|selectattr('role', 'in', m)|list|length }}",
    "selectattr eq": LONG_LIST + "{{ ([{'a': l}] * 9)|selectattr('a', 'eq', l + [])|list|length }}",
    "select lower": "{% set l = ['x' * 9999] * 9 %}{% for i in range(9999) %}{{ l|reject('lower')|first }}{% endfor %}",
    "is in": LONG_LIST + "{% for i in range(9999) %}{{ 'x' is in l }}{% endfor %}",
    "is eq": LONG_LIST + "{% set m = l + [] %}{% for i in range(9999) %}{{ l is eq m }}{% endfor %}",
    "count": LONG_LIST + "{% for i in range(9999) %}{{ l.count('x') }}{% endfor %}",
    "index": LONG_LIST + "{% for i in range(9999) %}{{ l.index(99998) }}{% endfor %}",
    "loop.changed": LONG_LIST + "{% for i in range(9999) %}{{ loop.changed(l + []) }}{% endfor %}",
    "a tuple as a key": (
        "{% set t = (1, 2, 3) * 9999 %}{% set d = {} %}{% for i in range(9999) %}{{ d[t] }}{% endfor %}"
    ),
    "dicts of themselves": (
        "{% set ns = namespace(a=1) %}{% for i in range(60) %}{% set ns.a = dict(a=ns.a, b=ns.a) %}{% endfor %}"
    ),
    # what is in a value unseen
    "namespaces in a list": "{% set ns = namespace(t='x' * 99999) %}{{ [ns] * 9999 }}",
    "items in a list": "{% set d = {'a': 'x' * 99999} %}{{ [d.items()] * 9999 }}",
    "values in a text": (
        "{% set d = {'a': 'x' * 99999} %}{% for i in range(9999) %}{% set y = d.values() ~ '' %}{% endfor %}"
    ),
    "namespaces as text": (
        "{% set ns = namespace(t='x' * 99999) %}{% for i in range(9999) %}{% set y = ns|string %}{% endfor %}"
    ),
    # filters
    "sort": "{% set l = ['x' * 9999 ~ 'a', 'x' * 9999] * 9 %}{% for i in range(999) %}{{ l|sort|length }}{% endfor %}",
    "sort by many attributes": "{{ ([{'a': 1}] * 9999)|sort(attribute='a,' * 9999 ~ 'a')|length }}",
    "max": "{% set l = ['x' * 9999] * 9 %}{% for i in range(999) %}{{ l|max|length }}{% endfor %}",
    "dictsort": "{% set d = dict(messages[0]) %}{% for i in range(99999) %}{{ d|dictsort|length }}{% endfor %}",
    "map by a long path": "{{ (['x'] * 9999)|map(attribute='0.' * 9999 ~ '0')|list|length }}",
    "unique by a long path": "{{ (['x'] * 9999)|unique(attribute='0.' * 9999 ~ '0')|list|length }}",
    "strip": "{% set t = 'a' * 99999 %}{{ t.strip('b' * 99999 ~ 'a') }}",
    "lstrip": "{% set t = 'a' * 99999 %}{{ t.lstrip('b' * 99999 ~ 'a') }}",
    "trim": "{% set t = 'a' * 99999 %}{{ t|trim('b' * 99999 ~ 'a') }}",
    "trim by name": "{% set t = 'a' * 99999 %}{{ t|trim(chars='b' * 99999 ~ 'a') }}",
    "striptags": "{{ ('<!---->' * 99999)|striptags }}",
    "tojson of lists in lists": (
        "{% set ns = namespace(t=[1] * 3000) %}{% for i in range(99) %}{% set ns.t = [ns.t] %}{% endfor %}"
        "{% set y = ns.t|tojson(indent=100) %}"
    ),
    "tojson with separators": "{% set y = ([1] * 9999)|tojson(separators=('x' * 9999, ':')) %}",
    "join with what is no text": "{{ (['x'] * 9999)|join(['y' * 9999]) }}",
    "replace with what is no text": "{{ ('a' * 9999)|replace('a', ['y' * 9999]) }}",
    "replace of nothing": "{{ ('a' * 9999).replace('', 'y' * 9999) }}",
    "center": "{{ 'x'|center(10**9) }}",
    "format": "{{ '%9999999d'|format(1) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "wordwrap": "{{ ('x' * 9999)|wordwrap(1, wrapstring='y' * 9999) }}",
    "a power of a negative number": "{{ (0 - 10) ** (10 ** 9) }}",
    "a product of three": "{{ 'x' * 9999 * 9999 }}",
    "range kept": "{% for i in range(9999) %}{% set y = range(99999)|list %}{% endfor %}",
    "copies": LONG_LIST + "{% for i in range(9999) %}{% set y = l.copy() %}{% endfor %}",
    "cyclers": LONG_LIST + "{% for i in range(9999) %}{% set y = cycler(*l) %}{% endfor %}",
    "nested conditions": "{{ " + "1 < (" * 60 + "1" + ") < 3" * 60 + " }}{{ [1] * 10**10 }}",
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY)
def test_what_is_done_is_charged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_allowance, "MAX_SECONDS", 1e9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((TemplateLimitError, jinja2.TemplateSyntaxError)):
        ChatTemplate(GREEDY[name]).render(TALK, False)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 300


@pytest.mark.parametrize(
    "operation", ["n // 3", "n % 3", "n - 1", "n + 1", "n * 3", "n ** 1", "n is divisibleby(7)", "n|round(-1)"]
)
def test_large_numbers_are_not_reckoned_with(operation: str) -> None:
    """They cannot be made in a template, and should one come in, nothing is worked out with it."""
    template = ChatTemplate("{% set n = messages[0].content %}{% set m = " + operation + " %}")
    assert template.render([{"content": 2**4000}], False) == ""
    with pytest.raises(TemplateLimitError, match="too large a number"):
        template.render([{"content": 2**5000}], False)


def test_hashes_that_collide_are_stopped_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of this range has the same hash: looking one up goes through all of them."""
    monkeypatch.setattr(template_allowance, "MAX_SECONDS", 0.5)
    step = 2**61 - 1
    with pytest.raises(TemplateLimitError, match="does not come to an end"):
        ChatTemplate(f"{{{{ range(0, 99999 * {step}, {step})|unique|list|length }}}}").render(TALK, False)


# --- formats, as Python reads them ------------------------------------------------------------------------------------


@fuzzed(300)
@given(st.data())
def test_no_format_is_wider_than_it_was_charged(data: Any) -> None:
    """Whatever Python makes of a format that is let through is at most as long as what was taken for it."""
    pieces = [
        "%",
        "(a)",
        "(",
        ")",
        "-",
        "0",
        "#",
        "9",
        "99",
        "123",
        ".",
        "*",
        "l",
        "d",
        "s",
        "x",
        "r",
        " ",
        "%%",
        "{",
        "}",
    ]
    form = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    values = data.draw(st.sampled_from([{"a": 7}, (7, 8), 7, "text", {"a": "text"}]))
    left = Allowance(0)
    try:
        check_percent(left, form, values)
        text = form % values
    except (TemplateLimitError, ValueError, TypeError, KeyError, OverflowError):
        return
    assert len(text) <= len(form) + (form.count("%") or 1) * 512


@fuzzed(300)
@given(st.data())
def test_nor_with_braces(data: Any) -> None:
    pieces = ["{", "}", "{0", "[", "]", "a", ":", "!r", ">", "0", "9", "99", "123", ".", "f", "{{", "}}", "{}", "٩"]
    form = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    try:
        check_braces(Allowance(0), form, [7])
        text = form.format(7, {"a": 7})
    except (TemplateLimitError, ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return
    assert len(text) <= len(form) + form.count("{") * 512


# --- published templates ----------------------------------------------------------------------------------------------

QWEN = (
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are a helpful assistant.' }}\n"
    "    {%- endif %}\n    {%- for tool in tools %}\n        {{- \"\\n\" }}\n        {{- tool | tojson }}\n"
    "    {%- endfor %}\n{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n    {%- else %}\n"
    "        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n"
    "{%- for message in messages %}\n    {%- if (message.role == \"user\") or (message.role == \"system\" and not "
    "loop.first) or (message.role == \"assistant\" and not message.tool_calls) %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "    {%- elif message.role == \"tool\" %}\n        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "
    "\"tool\") %}\n            {{- '<|im_start|>user' }}\n        {%- endif %}\n"
    "        {{- '\\n<tool_response>\\n' }}\n        {{- message.content }}\n        {{- '\\n</tool_response>' }}\n"
    "        {%- if loop.last or (messages[loop.index0 + 1].role != \"tool\") %}\n            {{- '<|im_end|>\\n' }}\n"
    "        {%- endif %}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)  # fmt: skip
LLAMA = (
    "{%- if not date_string is defined %}{%- set date_string = strftime_now(\"%d %b %Y\") %}{%- endif %}\n"
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system_message = \"\" %}{%- endif %}\n"
    "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: \" + date_string + \"\\n\\n\" }}"
    "{{- system_message }}{{- \"<|eot_id|>\" }}\n{%- for message in messages %}\n"
    "    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n"
    "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
    "'<|eot_id|>' }}\n    {%- elif 'tool_calls' in message %}{{- raise_exception('no tools here') }}\n"
    "    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)  # fmt: skip
MISTRAL = (
    "{%- set loop_messages = messages %}{%- set user_messages = loop_messages | selectattr(\"role\", \"equalto\", "
    "\"user\") | list %}{%- set ns = namespace() %}{%- set ns.index = 0 %}{%- for message in loop_messages %}"
    "{%- if not (message.role == \"tool\" or (message.tool_calls is defined and message.tool_calls is not none)) %}"
    "{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}{%- for message in loop_messages if message.role in "
    "['user', 'assistant'] %}{%- if message.role == 'user' %}{%- if (message == user_messages[-1]) and 0 <= "
    "loop.index0 < 10**9 %}{{- '[LAST]' }}{%- endif %}{{- '[INST]' + message.content.strip() + '[/INST]' }}{%- else %}"
    "{{- ' ' + message.content|trim + (eos_token or '') }}{%- endif %}{%- endfor %}{{ ns.index }}"
)  # fmt: skip


@pytest.mark.parametrize("template", [QWEN, LLAMA, MISTRAL], ids=["qwen", "llama", "mistral"])
@pytest.mark.parametrize("turns", [1, 7, 2000])
def test_published_templates_write_what_transformers_writes(template: str, turns: int) -> None:
    rng = random.Random(turns)
    talk = [{"role": "system", "content": "Be good. "}] + [
        {"role": ("user", "assistant")[k % 2], "content": " word" * rng.randint(1, 300)} for k in range(turns)
    ]
    special = tokenizer().special_tokens_map
    for prompt in (True, False):
        theirs = tokenizer().apply_chat_template(
            talk, chat_template=template, tokenize=False, add_generation_prompt=prompt
        )
        assert ChatTemplate(template).render(talk, prompt, **special) == theirs
