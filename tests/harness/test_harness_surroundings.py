"""What a task's templates may do."""

from __future__ import annotations

import pytest
from jinja2.exceptions import SecurityError, UndefinedError
from lm_eval.utils import apply_template, env

from evalguard.harness.surroundings import lm_eval_surroundings

DOCUMENT = {"text": "a b c", "choices": ["x", "y"], "answer": 2, "key": "__globals__"}
FORMATS = {
    "{{text.split(' ')[:-1]|join(' ')}}": "a b",
    "{{ choices[answer - 1] }} ____\n": "y ____\n",
    "{% for c in choices %}{{ loop.index }}{{ c.upper() }}{% endfor %}": "1X2Y",
    "{{ text|regex_replace('b', '') }}": "a  c",
    "{% set ns = namespace(n=0) %}{% for c in choices %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}": "2",
}
ESCAPES = [
    "{{ text.__class__.__mro__ }}",
    "{{ lipsum['%c%cglobals%c%c'|format(95, 95, 95, 95)]['os'].listdir('/') }}",
    "{{ lipsum[key]['os'].listdir('/') }}",
    "{{ (lipsum|attr('__globals__'))['os'] }}",
    "{% for c in choices %}{{ loop[key] }}{% endfor %}{{ cycler[key]['x'] }}",
    "{{ '{0.__class__.__init__}'.format(text) }}",
]


@pytest.mark.parametrize("template", FORMATS)
def test_templates_format_documents_as_lm_eval_does(template: str) -> None:
    assert apply_template(template, DOCUMENT) == FORMATS[template]
    with lm_eval_surroundings():
        assert apply_template(template, DOCUMENT) == FORMATS[template]


@pytest.mark.parametrize("template", ESCAPES)
def test_templates_reach_no_python_objects(template: str) -> None:
    with lm_eval_surroundings(), pytest.raises((SecurityError, UndefinedError)):
        apply_template(template, DOCUMENT)


def test_lm_evals_own_renderer_is_given_back() -> None:
    before = env.from_string
    with lm_eval_surroundings():
        assert env.from_string != before
    assert env.from_string == before
