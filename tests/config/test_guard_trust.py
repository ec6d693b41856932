"""Code runs only from guard files that the user named, allowed, or got with evalguard."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evalguard.config import embedded_folder, load_guards, require_code_allowed
from evalguard.config.task_code import find_task_code
from evalguard.config.trust import env_danger
from evalguard.errors import EXIT_USAGE, UsageError

NEEDS_CODE = {
    "call": ("settings: {s: {reference: 1, candidate: 2, target: 'call:h.py:f'}}", "calls h.py:f"),
    "build command": ("build: {command: [make]}", "the build recipe runs a command"),
    "build call": ("build: {call: 'b.py:f'}", "the build recipe calls b.py:f"),
    "remote code": ("trust_remote_code: true", "runs the model's own Python code"),
    "pickle": ("allow_pickle: true", "pickled weights"),
    "env": ("settings: {s: {reference: null, candidate: x, target: env.LD_PRELOAD}}", "LD_PRELOAD"),
    "kernel": ("model_args: {attn_implementation: org/kernel}", "loads a kernel from the hub"),
    "kernel setting": (
        "settings: {s: {reference: eager, candidate: a/b, target: config._attn_implementation}}",
        "loads a kernel from the hub",
    ),
}


@pytest.mark.parametrize("case", NEEDS_CODE)
@pytest.mark.parametrize("place", ["evalguard.yaml", "configs/guard.yaml"])
def test_code_of_a_file_that_was_only_found_is_refused_where_its_model_is_used(
    tmp_path: Path, case: str, place: str
) -> None:
    text, what = NEEDS_CODE[case]
    (tmp_path / "configs").mkdir()
    (tmp_path / place).write_text(f"models:\n  plain: {{}}\n  m:\n    {text}\n")

    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    require_code_allowed(*guards.find("plain"))
    guard, variant = guards.find("m")
    assert not variant.allow_code
    assert not variant.trust_remote_code
    assert not variant.allow_pickle
    with pytest.raises(UsageError) as raised:
        require_code_allowed(guard, variant)
    assert f"{place}:4: " in str(raised.value)
    assert what in str(raised.value)
    assert f"--config {place}, or --allow-code" in raised.value.hint
    assert raised.value.exit_code == EXIT_USAGE

    for config, allow in ((Path(place), False), (None, True)):
        guard, variant = load_guards(config, cwd=tmp_path, allow_code=allow).find("m")
        require_code_allowed(guard, variant)
        assert variant.allow_code
        assert variant.trust_remote_code == (case == "remote code")
        assert variant.allow_pickle == (case == "pickle")


def test_inherited_code_is_refused_and_shown_where_it_is_written(tmp_path: Path) -> None:
    text = "models:\n  a:\n    build: {command: [make]}\n  b: {extends: a}\n"
    (tmp_path / "evalguard.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"evalguard\.yaml:3: the build recipe runs a command"):
        require_code_allowed(*load_guards(None, cwd=tmp_path, allow_code=False).find("b"))


def test_settings_without_code_need_no_trust(tmp_path: Path) -> None:
    (tmp_path / "evalguard.yaml").write_text(
        "models:\n  m:\n    settings:\n"
        "      a: {reference: '0', candidate: '1', target: env.NVIDIA_TF32_OVERRIDE}\n"
        "      b: {reference: eager, candidate: sdpa, target: config._attn_implementation}\n"
    )
    require_code_allowed(*load_guards(None, cwd=tmp_path, allow_code=False).find("m"))


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "PYTHONPATH", "PYTHONSTARTUP", "PATH", "HF_HOME", "CC",
     "CUDA_INJECTION64_PATH", "TRITON_CACHE_DIR", "https_proxy", "FOO_PLUGIN", "BASH_ENV", "HOME"],
)  # fmt: skip
def test_environment_variables_that_can_load_code_are_known(name: str) -> None:
    assert env_danger(name)


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "RWKV_V7_ON",
     "PYTORCH_CUDA_ALLOC_CONF", "FLA_CONV_BACKEND"],
)  # fmt: skip
def test_environment_variables_that_only_change_numbers_are_free(name: str) -> None:
    assert not env_danger(name)


HARMLESS = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: data.jsonl, trust_remote_code: false}
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}} (choose one)"
doc_to_choice: "{% for i in range(4) %}{{ choices[i].strip() }}{% endfor %}"
doc_to_target: "{{ choices[answer - 1] }} ____"
metric_list: [{metric: acc}, {metric: word_perplexity}]
"""

WITH_CODE = {
    "function": ("doc_to_text: !function run.py", "!function"),
    "class": ("class: mine.Task", "'class' loads code"),
    "remote code": ("dataset_kwargs: {trust_remote_code: true}", "trust_remote_code"),
    "python object": ("x: !!python/object/apply:os.system [ls]", "makes Python objects"),
    "metric": ("metric_list: [{metric: ./mine}]", "outside lm-eval"),
    "metric by alias": ("x: &a mine\nmetric_list: [{metric: *a}]", "outside lm-eval"),
    "hf metric": ("metric_list: [{metric: f1, hf_evaluate: true}]", "hf_evaluate"),
    "pickle": ("dataset_path: pandas", "can run code"),
    "dunder": ('doc_to_text: "{{ x.__class__ }}"', "reaches into"),
    "dunder item": ("doc_to_text: \"{{ x['_' ~ 'y'] }}\"", "reaches into"),
    "escaped": ("doc_to_text: \"{{ x['\\\\x5f\\\\x5fclass'] }}\"", "reaches into"),
    "call": ('doc_to_text: "{{ cycler(1) }}"', "calls functions"),
    "call after braces": ("doc_to_text: \"{{ '}}' ~ x.run() }}\"", "calls functions"),
    "call of an item": ("doc_to_text: \"{{ x['run']() }}\"", "calls functions"),
    "attr filter": ("doc_to_text: \"{{ x|attr('y') }}\"", "outside itself"),
    "include": ("doc_to_text: \"{% include 'x' %}\"", "outside itself"),
    "no template": ('doc_to_text: "{{ x"', "cannot be read"),
    "no yaml": ("a: [", "cannot be read"),
}


@pytest.mark.parametrize("case", WITH_CODE)
def test_code_in_task_files_is_found(tmp_path: Path, case: str) -> None:
    text, what = WITH_CODE[case]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "task.yaml").write_text(text)
    found = find_task_code(tmp_path)
    assert what in found
    assert str(tmp_path / "deep" / "task.yaml") in found


def test_code_in_an_included_file_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.yaml").write_text("include: ../template_yaml")
    (tmp_path / "template_yaml").write_text("doc_to_text: !function run.py")
    assert "!function run.py" in find_task_code(tmp_path / "tasks")


def test_links_in_a_circle_end_and_too_many_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert find_task_code(tmp_path) == ""
    for number in range(2001):
        (tmp_path / f"{number}.yaml").touch()
    assert "too many to be looked through" in find_task_code(tmp_path)


def test_tasks_without_code_need_no_trust_and_those_with_code_do(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.yaml").write_text(HARMLESS)
    (tmp_path / "evalguard.yaml").write_text("models: {m: {}}\ninclude_path: tasks\n")
    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    require_code_allowed(*guards.find("m"))
    (tmp_path / "tasks" / "code.yaml").write_text("doc_to_text: !function run.py")
    with pytest.raises(UsageError, match=r"evalguard.yaml:2: include_path: .*code.yaml:1: !func"):
        require_code_allowed(*guards.find("m"))


def test_the_demo_is_trusted_where_it_lies_and_not_where_it_was_copied(tmp_path: Path) -> None:
    own = load_guards(None, cwd=embedded_folder(), allow_code=False)
    assert all(g.code_allowed == (g.file.parent.name == "configs") for g in own.guards)
    shutil.copytree(embedded_folder() / "configs", tmp_path / "configs")
    copied = load_guards(None, cwd=tmp_path, allow_code=False)
    assert not any(guard.code_allowed for guard in copied.guards)
