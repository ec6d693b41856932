"""What a task's templates may do, and which documents it is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
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


@pytest.mark.parametrize("way", ["a file", "a list", "a pattern", "a folder", "a map"])
def test_documents_of_a_local_file_are_those_that_it_holds_now_whatever_its_time(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file = tmp_path / "data" / "test.jsonl"
    file.parent.mkdir()
    asked: dict[str, Any] = {
        "a file": {"data_files": str(file)},
        "a list": {"data_files": [str(file)]},
        "a pattern": {"data_files": {"train": str(tmp_path / "data" / "*.jsonl")}},
        "a folder": {"data_dir": str(file.parent)},
        "a map": {"data_files": {"train": [str(file)]}},
    }[way]
    read = []
    for word in ("lantern", "harbour", "lantern"):
        file.write_text(f'{{"text": "{word}"}}\n{{"text": "{word:>8}"}}\n')
        os.utime(file, (1_000_000_000, 1_000_000_000))
        with lm_eval_surroundings():
            found = datasets.load_dataset("json", **asked)
        read.append(next(iter(found.values()))[0]["text"])
    assert read == ["lantern", "harbour", "lantern"]


def test_datasets_of_the_hub_are_loaded_as_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *a, **k: asked.append("builder"))
    with lm_eval_surroundings():
        datasets.load_dataset("owner/name", split="test", revision="main")
    assert asked == [(("owner/name",), {"split": "test", "revision": "main"})]
