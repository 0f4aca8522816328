"""A model's chat template: written as transformers writes it, and stopped where it is an attack."""

import pickle
import re
import resource
import time
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.agent import template_allowance
from openmanus_rl.agent.chat_template import MAX_TEMPLATE, ChatTemplate
from openmanus_rl.agent.template_allowance import TemplateLimitError
from tests.rollout.models import CHATML, tokenizer

TALK = [
    {"role": "system", "content": " Be <good>. "},
    {"role": "user", "content": "Find the {{ key }}\nin 'room' 2"},
    {"role": "assistant", "content": "<think>hm</think>go west"},
    {"role": "user", "content": "A wall."},
]
# What templates of published models do, in their own words.
STYLES = {
    "chatml": CHATML,
    "system apart": (
        "{%- if messages[0]['role'] == 'system' -%}{%- set system = messages[0]['content'] | trim -%}"
        "{%- set rest = messages[1:] -%}{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}\n"
        "{%- for message in rest -%}\n    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\n"
        "        {{- raise_exception('roles must alternate') -}}\n    {%- endif -%}\n"
        "{{ '[INST] ' ~ (system ~ '\n\n' if loop.first and system else '') ~ message.content.strip() ~ ' [/INST]' "
        "if message.role == 'user' else ' ' + message.content + eos_token }}\n{%- endfor -%}"
    ),
    "thoughts dropped": (
        "{% set ns = namespace(last=-1, text='') %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in m.content %}"
        "{% set ns.text = m.content.split('</think>')[-1].lstrip('\n') %}{% else %}{% set ns.text = m.content %}"
        "{% endif %}<|{{ m.role }}|>{{ ns.text }}{% endfor %}{{ ns.last }}"
    ),
    "macros and loops": (
        "{% macro shown(m, end='<|end|>') %}{{ m['role'] | upper }}: {{ m['content'] | replace('\n', ' ') }}{{ end }}"
        "{% endmacro %}{% for m in messages if m.role != 'system' %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{{ shown(m) }}{% if not loop.last %}{{ loop.nextitem.role }}{% endif %}{% endfor %}"
        "{{ messages | map(attribute='role') | join(', ') }} {{ messages | length }} "
        "{{ messages | selectattr('role', 'equalto', 'user') | list | count }}"
    ),
    "json and dates": (
        "{{ messages[1] | tojson }}{{ messages[0] | tojson(indent=2) }}{{ {'a': [1, 2.5, none, true]} | tojson }}"
        "{{ strftime_now('%Y') }}{{ '%s-%d' % ('a', 3) }}{{ '{} {name}'.format(1, name='x') }}"
        "{{ [1, 2] + [3] }}{{ 2 ** 8 * 3 }}{{ 'ab' * 3 }}{{ 'x: %s' % messages[0].role }}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content | indent(2) }}{% endif %}{% endfor %}"
    ),
    "blocks, filters, sets": (
        "{% set text %}{% for m in messages %}{{ m.content }}|{% endfor %}{% endset %}{{ text | trim | title }}"
        "{% filter upper %}{{ messages[0].role }}{% endfilter %}{{ (messages | first).role }}{{ undefined_name }}"
        "{{ messages[-1].content[::-1] }}{{ tools is none }}{{ documents is defined }}{{ bos_token is defined }}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("prompt", [True, False])
def test_it_writes_what_transformers_writes(style: str, prompt: bool) -> None:
    theirs = tokenizer().apply_chat_template(
        TALK, chat_template=STYLES[style], tokenize=False, add_generation_prompt=prompt
    )
    ours = ChatTemplate(STYLES[style]).render(TALK, prompt, **tokenizer().special_tokens_map)
    assert ours == theirs


@given(st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text()})))
def test_it_writes_any_text_as_transformers_does(talk: list[dict[str, str]]) -> None:
    if not talk:
        return
    for style in ("chatml", "thoughts dropped", "macros and loops"):
        theirs = tokenizer().apply_chat_template(talk, chat_template=STYLES[style], tokenize=False)
        assert compiled(style).render(talk, False, **tokenizer().special_tokens_map) == theirs


_compiled: dict[str, ChatTemplate] = {}


def compiled(style: str) -> ChatTemplate:
    if style not in _compiled:
        _compiled[style] = ChatTemplate(STYLES[style])
    return _compiled[style]


def test_of_several_templates_the_default_is_taken() -> None:
    assert ChatTemplate({"rag": "no", "default": CHATML}).render(TALK, False) == ChatTemplate(CHATML).render(
        TALK, False
    )
    with pytest.raises(ValueError, match="none of them is named default"):
        ChatTemplate({"rag": CHATML})


REACHING = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '%s' % ''.__class__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{% set x = messages.append %}{{ x(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ (1).to_bytes(5, 'big') }}",
    "{% include 'x' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends 'x' %}",
    "{{ lipsum(5) }}",
    "{{ messages.__len__() }}",
    "{% for a in [].__class__.__base__.__subclasses__() %}{{ a }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ environment.from_string('x') }}",
    "{{ messages|attr('append') }}",
    "{% do messages.append(1) %}",
]


@pytest.mark.parametrize("attack", REACHING)
def test_it_does_not_reach_python(attack: str) -> None:
    """It is refused; or what it asked for is undefined, which is written as nothing."""
    try:
        text = ChatTemplate(attack).render(TALK, False)
    except (jinja2.TemplateError, TypeError):  # without a loader, TypeError
        return
    assert text in ("", "[Undefined, Undefined, Undefined, Undefined]")


ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that skip": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "a range beyond the limit": "{% for a in range(10**9) %}{% endfor %}",
    "text in a loop": "{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}"
    ),
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "a long text": "{{ 'x' * 10**10 }}",
    "a long list": "{{ [1] * 10**10 }}",
    "a long list, reversed": "{{ 10**10 * [1] }}",
    "a large number": "{{ 10**(10**10) }}",
    "a number that grows": (
        "{% set ns = namespace(n=9) %}{% for a in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}"
    ),
    "a text that doubles": (
        "{% set ns = namespace(t='x') %}{% for a in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}"
    ),
    "a text that doubles by ~": (
        "{% set ns = namespace(t='x') %}{% for a in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}"
    ),
    "a text that doubles as a block": "{% set t = 'x' %}" + "{% set t %}{{ t }}{{ t }}{% endset %}" * 60,
    "a list of itself": (
        "{% set ns = namespace(t='x') %}{% for a in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t }}"
    ),
    "lists of themselves, compared": (
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"
    ),
    "tuples as keys": (
        "{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
        "{{ {ns.t: 1} }}"
    ),
    "a wide field": "{{ '%999999999d' % 3 }}",
    "a field as wide as it is told": "{{ '%*d' % (10**9, 3) }}",
    "a wide format": "{{ '{:>999999999}'.format('x') }}",
    "a format as wide as it is told": "{{ '{:>{}}'.format('x', 10**9) }}",
    "many fields": "{{ ('{0}' * 100000).format('x' * 100000) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "the filter center": "{{ 'x'|center(10**10) }}",
    "the filter replace": "{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}",
    "the method replace": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "the filter join": "{{ (['x'] * 10**6)|join('y' * 10**6) }}",
    "the method join": "{{ ('y' * 10**6).join(['x'] * 10**6) }}",
    "the filter indent": "{{ ('\n' * 10**6)|indent(10**6) }}",
    "the filter tojson": "{{ [[[[1]]]]|tojson(indent=10**9) }}",
    "the filter round": "{{ 1|round(10**9, 'floor') }}",
    "the filter upper on a shared text": "{{ (['x' * 10**6] * 10**5)|map('upper')|list|length }}",
    "slices kept": (
        "{% set ns = namespace(l=[], t='x' * 10**6) %}{% for a in range(99999) %}"
        "{% set ns.l = ns.l + [ns.t[1:]] %}{% endfor %}"
    ),
    "a date of any width": "{{ strftime_now('%999999999d') }}",
    "letters as a list": (
        "{% set ns = namespace(t='x' * 10**6) %}{% for a in range(99999) %}{% set b = ns.t|list %}{% endfor %}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_it_comes_to_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own limits stop it: those of processor time are tested apart, so that a slow machine proves the same."""
    monkeypatch.setattr(template_allowance, "MAX_SECONDS", 1e9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((TemplateLimitError, jinja2.TemplateError, OverflowError)):
        ChatTemplate(ENDLESS[name]).render(TALK, False)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 600, f"{grown:.0f} MB"


def test_time_is_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(template_allowance.time, "thread_time", lambda: now[0])
    left = template_allowance.Allowance(0)
    left.step()
    now[0] = template_allowance.MAX_SECONDS + 1
    with pytest.raises(TemplateLimitError, match="does not come to an end"):
        left.step()
    assert time.thread_time is template_allowance.time.thread_time


def test_it_goes_to_other_processes() -> None:
    again: ChatTemplate = pickle.loads(pickle.dumps(ChatTemplate(CHATML)))  # noqa: S301 - of our own
    assert again.render(TALK, True) == ChatTemplate(CHATML).render(TALK, True)


def test_long_conversations_are_within_the_limits() -> None:
    long = [{"role": ("user", "assistant")[k % 2], "content": "word " * 200} for k in range(4000)]
    for style in ("chatml", "thoughts dropped", "system apart"):
        assert len(ChatTemplate(STYLES[style]).render(long, True, eos_token="</s>")) > 3_000_000


def test_a_template_that_is_no_template() -> None:
    with pytest.raises(ValueError, match=r"has 200,001 characters; 200,000 is the limit"):
        ChatTemplate("x" * (MAX_TEMPLATE + 1))
    for text in (
        "{{ " + "(" * 5000,
        "{% for",
        "{% if x %}" * 300 + "{% endif %}" * 300,
        "{{ 1" + " + 1" * 20_000 + "}}",
    ):
        with pytest.raises((ValueError, jinja2.TemplateSyntaxError)):
            ChatTemplate(text)


@given(st.data())
def test_any_template_is_written_or_refused(data: Any) -> None:
    """Pieces of templates in any order: a text, or an error that callers know."""
    pieces = data.draw(st.lists(st.sampled_from(PIECES), max_size=12))
    try:
        text = ChatTemplate("".join(pieces)).render(TALK, True, eos_token="</s>")
    except (ValueError, jinja2.TemplateError, TypeError, LookupError, ArithmeticError, AttributeError):
        return
    assert not re.search(r"<(class|function|module|built-in|bound method)", text)


PIECES = [
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "for m in ",
    "messages",
    "m",
    ".content",
    "['role']",
    "endfor",
    "if ",
    "endif",
    "set x = ",
    "x",
    " ~ ",
    " + ",
    " * ",
    "9",
    "'a'",
    "|trim",
    "|join",
    "|tojson",
    "|length",
    "|list",
    "()",
    "(x)",
    "[1:]",
    ".__class__",
    ".split",
    ".replace('a', x)",
    "macro f(x)",
    "endmacro",
    "f",
    "loop.index",
    "namespace(a=1)",
    "range(99999)",
    "\n",
    "{#",
    "#}",
    "- ",
    "<|im_start|>",
    "{{ messages }}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{{ m.role }}",
    "{% set x = messages %}",
]
