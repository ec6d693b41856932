"""Code runs only from guard files that the user named, allowed, or got with evalguard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalguard.config.guard_search import embedded_folder, load_guards
from evalguard.config.guard_writing import build_guard_schema
from evalguard.config.task_file_code import find_task_code
from evalguard.config.trust import (
    CHECKED_KEYS,
    HARMLESS_KEYS,
    NEEDS_TRUST,
    config_danger,
    env_danger,
    generation_danger,
    model_danger,
    require_code_allowed,
)
from evalguard.errors import EXIT_USAGE, GuardFileError, UsageError

NEEDS_CODE = {
    "call": ("settings: {s: {reference: 1, candidate: 2, target: 'call:h.py:f'}}", "calls h.py:f"),
    "build command": ("build: {command: [make]}", "the build recipe runs a command"),
    "build call": ("build: {call: 'b.py:f'}", "the build recipe calls b.py:f"),
    "remote code": ("trust_remote_code: true", "runs the model's own Python code"),
    "pickle": ("allow_pickle: true", "pickled weights"),
    "inputs": ("inputs: [../a.json]", "inputs vouch for what code reads"),
    "no inputs": ("inputs: []", "inputs vouch for what code reads"),
    "env": ("settings: {s: {reference: null, candidate: x, target: env.LD_PRELOAD}}", "LD_PRELOAD"),
    "kernel": ("model_args: {attn_implementation: org/kernel}", "loads a kernel from the hub"),
    "kernel setting": (
        "settings: {s: {reference: eager, candidate: a/b, target: config._attn_implementation}}",
        "loads a kernel from the hub",
    ),
    "kernel alternative": (
        "settings: {s: {reference: eager, candidate: sdpa, alternatives: [a/b], "
        "target: config._attn_implementation}}",
        "loads a kernel from the hub",
    ),
    "server": ("{model: local-completions, model_args: {base_url: 'http://x'}}", "reach servers"),
    "pickled steering": ("{model: steered, model_args: {steer_path: s.pt}}", "load pickles"),
    "kernels": ("model_args: {use_kernels: true}", "model_args.use_kernels is not known"),
    "offload": ("model_args: {offload_folder: /home}", "model_args.offload_folder is not known"),
    "token": ("model_args: {token: x}", "model_args.token is not known"),
    "argument setting": (
        "settings: {s: {reference: 1, candidate: 2, target: model_args.weights_only}}",
        "sets model_args.weights_only, which is not known",
    ),
    "code in config": (
        "settings: {s: {reference: 1, candidate: {AutoConfig: x}, target: config.auto_map}}",
        "can choose the code",
    ),
    "hidden config": (
        "settings: {s: {reference: 1, candidate: 2, target: config._name_or_path}}",
        "can choose the code",
    ),
    "quantiser": (
        "settings: {s: {reference: 1, candidate: {}, target: config.quantization_config.x}}",
        "can choose the code",
    ),
}


@pytest.mark.parametrize("case", NEEDS_CODE)
@pytest.mark.parametrize("place", ["evalguard.yaml", "configs/guard.yaml"])
def test_code_of_a_file_that_was_only_found_is_refused_where_its_model_is_used(
    tmp_path: Path, case: str, place: str
) -> None:
    text, what = NEEDS_CODE[case]
    (tmp_path / "configs").mkdir()
    entry = f" {text}" if text.startswith("{") else f"\n    {text}"
    (tmp_path / place).write_text(f"models:\n  plain: {{}}\n  m:{entry}\n")

    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    require_code_allowed(*guards.find("plain"))
    guard, variant = guards.find("m")
    assert not variant.allow_code
    assert not variant.trust_remote_code
    assert not variant.allow_pickle
    with pytest.raises(UsageError) as raised:
        require_code_allowed(guard, variant)
    assert f"{place}:{3 if text.startswith('{') else 4}: " in str(raised.value)
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
     "CUDA_INJECTION64_PATH", "TRITON_CACHE_DIR", "https_proxy", "FOO_PLUGIN", "BASH_ENV", "HOME",
     "MPLBACKEND", "LOCAL_KERNELS", "CUBLAS_LOGDEST_DBG", "LOCPATH", "OPENAI_BASE_URL",
     "WHAT_NOBODY_KNOWS", "FLA_CACHE_DIR", "XOMP_NUM_THREADS=1"],
)  # fmt: skip
def test_environment_variables_that_could_load_code_or_write_files_are_not_free(name: str) -> None:
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
    "templates elsewhere": ("use_prompt: 'p.yaml:x'", "use_prompt"),
    "jinja's own": (
        "doc_to_text: \"{{ lipsum['%c%cglobals%c%c'|format(95,95,95,95)]['os'].replace(a, b) }}\"",
        "outside itself",
    ),
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
    found = find_task_code(tmp_path, root=tmp_path)
    assert what in found
    assert str(tmp_path / "deep" / "task.yaml") in found


def test_code_in_an_included_file_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.yaml").write_text("include: ../template_yaml")
    (tmp_path / "template_yaml").write_text("doc_to_text: !function run.py")
    assert "!function run.py" in find_task_code(tmp_path / "tasks", root=tmp_path)


def test_a_task_file_that_includes_one_from_outside_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "private.yaml").write_text("doc_to_text: secret")
    (tmp_path / "tasks" / "a.yaml").write_text("task: a\ninclude: ../private.yaml")
    found = find_task_code(tmp_path / "tasks", root=tmp_path / "tasks")
    assert "a.yaml:2: includes ../private.yaml, outside" in found
    assert find_task_code(tmp_path / "tasks", root=tmp_path) == ""


def test_a_task_that_is_a_file_is_looked_through_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.yaml").write_text("task: x\ndoc_to_text: !function run.py")
    (tmp_path / "evalguard.yaml").write_text(
        "models: {a: {}, b: {}}\npairs: [{base: a, cand: b, tasks: [evil.yaml]}]\n"
    )
    with pytest.raises(UsageError, match=r"task file: evil\.yaml:2: !function run\.py"):
        require_code_allowed(*load_guards(None, cwd=tmp_path, allow_code=False).find("a"))


def test_links_in_a_circle_end_and_too_many_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert find_task_code(tmp_path, root=tmp_path) == ""
    for number in range(2001):
        (tmp_path / f"{number}.yaml").touch()
    assert "too many to be looked through" in find_task_code(tmp_path, root=tmp_path)


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
    (tmp_path / "configs").mkdir()
    shutil.copy(embedded_folder() / "configs" / "demo.yaml", tmp_path / "configs")
    copied = load_guards(None, cwd=tmp_path, allow_code=False)
    assert not any(guard.code_allowed for guard in copied.guards)


def test_a_link_to_the_demo_is_the_demo_and_not_what_lies_around_the_link(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").symlink_to(embedded_folder() / "configs" / "demo.yaml")
    (tmp_path / "tasks").mkdir()
    (guard,) = load_guards(None, cwd=tmp_path, allow_code=False).guards
    assert guard.code_allowed
    assert guard.include_paths == ((embedded_folder() / "tasks").resolve(),)


def test_a_pipe_that_was_only_found_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "evalguard.yaml")
    with pytest.raises(GuardFileError, match="not a regular file"):
        load_guards(None, cwd=tmp_path, allow_code=False)
    (tmp_path / "evalguard.yaml").unlink()
    (tmp_path / "evalguard.yaml").write_text("models: {m: {}}\ninclude_path: tasks\n")
    (tmp_path / "tasks").mkdir()
    os.mkfifo(tmp_path / "tasks" / "t.yaml")
    with pytest.raises(UsageError, match="is not a file"):
        require_code_allowed(*load_guards(None, cwd=tmp_path, allow_code=False).find("m"))


def _schema_keys(node: Any, path: tuple[str, ...], schema: dict[str, Any]) -> Iterator[str]:
    """Every key that a guard file may have, as the tables of trust write it."""
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    parts = [*node.get("anyOf", ()), *node.get("allOf", ())]
    named = dict(node.get("properties", {}))
    for items in (node.get("items"), node.get("additionalProperties")):
        if isinstance(items, dict) and items:
            named["*"] = items
    for pattern in node.get("patternProperties", {}).values():
        named.setdefault("*", pattern)
    for part in parts:
        yield from _schema_keys(part, path, schema)
    for name, part in named.items():
        yield from _schema_keys(part, (*path, name), schema)
    yield ".".join(path[2:] if path[:3] == ("pairs", "*", "gate") else path)


def test_every_key_of_a_guard_file_is_allowed_with_a_reason_or_needs_trust() -> None:
    tables = (HARMLESS_KEYS, CHECKED_KEYS, NEEDS_TRUST)
    argued = {key: why for table in tables for key, why in table.items()}
    assert all(argued.values())
    assert sum(map(len, tables)) == len(argued), "a key stands in one table"
    schema = build_guard_schema()
    parts = set(_schema_keys(schema, (), schema)) - {""}
    keys = {key for key in parts if not any(other.startswith(f"{key}.") for other in parts)}
    covered = {
        key: {known for known in argued if key == known or key.startswith(f"{known}.")}
        for key in keys
    }
    missing = sorted(key for key, known in covered.items() if not known)
    assert not missing, "argue them into HARMLESS_KEYS, or say in NEEDS_TRUST what they do"
    assert set(argued) == set().union(*covered.values()), "the schema has no such key any more"
    assert len(keys) > 90


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run: {execution: 'ray://10.0.0.1:10001'}", "run.execution connects to a Ray cluster"),
        ("run: {execution: 'ray://auto'}", "run.execution connects to a Ray cluster"),
        ("run: {execution: 'ray://h:1?actors=2'}", "run.execution connects to a Ray cluster"),
        ("run: {cache_max_size: 1KB}", "run.cache_max_size removes what other runs"),
        ("run: {cache_max_size: 0}", "run.cache_max_size removes what other runs"),
        ("run: {track_documents: true}", "run.track_documents sends prompts and answers"),
        ("requests: ../private.jsonl", "requests names ../private.jsonl, which lies outside"),
        ("requests: /etc/passwd", "requests names /etc/passwd, which lies outside"),
        ("requests: ~/chats.jsonl", "requests names ~/chats.jsonl"),
        ("requests: 'file:///etc/passwd'", "requests names file:///etc/passwd"),
        ("requests: link.jsonl", "requests names link.jsonl"),
        ("pairs: [{base: m, cand: n, requests: ../p}]", "pairs[0].requests names ../p"),
        ("include_path: /usr/share", "include_path names /usr/share"),
        ("include_path: [here, away]", "include_path names away"),
        ("tasks: [../t.yaml]", "tasks names ../t.yaml"),
        ("pairs: [{base: m, cand: n, tasks: [/t.yml]}]", "pairs[0].tasks names /t.yml"),
        ("answers: {t: {schema: ../s.json}}", "answers.t.schema names ../s.json"),
        ("answers: {t: {tools: link.jsonl}}", "answers.t.tools names link.jsonl"),
    ],
)
@pytest.mark.parametrize("place", ["evalguard.yaml", "configs/guard.yaml"])
def test_what_a_found_file_says_beside_its_models_needs_trust_too(
    tmp_path: Path, line: str, said: str, place: str
) -> None:
    inside = tmp_path / "repository"
    folder = (inside / place).parent
    (folder / "here").mkdir(parents=True)
    (tmp_path / "private.jsonl").write_text("{}")
    (folder / "link.jsonl").symlink_to(tmp_path / "private.jsonl")
    (folder / "away").symlink_to(tmp_path)
    line = line.replace("../", "../../") if "configs" in place and "../t" not in line else line
    said = said.replace("../", "../../") if "configs" in place and "../t" not in line else said
    (inside / place).write_text(f"models: {{m: {{}}, n: {{}}}}\n{line}\n")
    guards = load_guards(None, cwd=inside, allow_code=False)
    with pytest.raises(UsageError) as raised:
        require_code_allowed(*guards.find("m"))
    assert f"{place}:2: {said}" in str(raised.value)
    assert f"--config {place}, or --allow-code" in raised.value.hint


HARMLESS_LINES = [
    "run: {execution: here}",
    "run: {execution: 'ray?actors=2', num_gpus: 0, memory_each: 2GB, actors: 2}",
    "run: {cache_max_size: null, track_documents: false, limit: 100, seed: 1, device: cpu}",
    "run: {track: none, history: nights.sqlite, bisect: never, pair_hours: 2}",
    "requests: chats.jsonl",
    "requests: ./deep/../chats.jsonl",
    "include_path: [here]",
    "tasks: [wikitext, here/t.yaml]",
    "clusters: {t: passage}",
    "answers: {t: {schema: {type: object}, call: null}, u: {json: true}, v: {pattern: a+}}",
    "gate: {margin: 2%, metrics: {kl_mean: 0.1, acc: {margin: 1pp}, loops: 0}, only: [acc]}",
    "pairs: [{base: m, cand: [n], differs: [prompt], gate: {margin: 3, metrics: {loops: 1pp}}, "
    "accept: [{task: t, metric: acc, up_to: 3, until: '2030-01-01', reason: known}]}]",
]


@pytest.mark.parametrize("line", HARMLESS_LINES)
def test_what_chooses_documents_numbers_and_verdicts_needs_no_trust(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "here" / "t.yaml").write_text("task: t\n")
    (tmp_path / "chats.jsonl").write_text("{}")
    (tmp_path / "evalguard.yaml").write_text(f"models: {{m: {{}}, n: {{}}}}\n{line}\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        guards = load_guards(None, cwd=tmp_path, allow_code=False)
        require_code_allowed(*guards.find("m"))


def test_a_file_outside_is_not_read_before_it_is_trusted(tmp_path: Path) -> None:
    inside = tmp_path / "repository"
    inside.mkdir()
    (tmp_path / "s.json").write_text("no JSON, which reading would complain of")
    (inside / "evalguard.yaml").write_text("models: {m: {}}\nanswers: {t: {schema: ../s.json}}\n")
    load_guards(None, cwd=inside, allow_code=False)
    with pytest.raises(GuardFileError, match="is no JSON"):
        load_guards(Path("evalguard.yaml"), cwd=inside, allow_code=False)


@pytest.mark.parametrize(
    "entry",
    [
        "model_args: {pretrained: 'file:///model'}",
        "model_args: {pretrained: 'https://example.org/model'}",
        "model_args: {pretrained: [here, there]}",
        "model_args: {pretrained: here, subfolder: a/../../../model}",
        "model_args: {pretrained: o/n, revision: ../../../../model}",
        "settings: {s: {target: 'weights:**', reference: null, candidate: 'file:///model'}}",
        "settings: {s: {target: 'module:**', reference: null, "
        "candidate: {model_args: {pretrained: here, trust_remote_code: true}}}}",
    ],
)
def test_urls_and_ways_out_of_a_models_folder_need_trust(tmp_path: Path, entry: str) -> None:
    inside = tmp_path / "repository"
    (inside / "here").mkdir(parents=True)
    (inside / "evalguard.yaml").write_text(f"models:\n  a:\n    {entry}\n  b: {{extends: a}}\n")
    guards = load_guards(None, cwd=inside, allow_code=False)
    for name in "ab" if "revision" not in entry else "a":
        with pytest.raises(UsageError, match=r"evalguard\.yaml:3: "):
            require_code_allowed(*guards.find(name))


def test_models_of_any_folder_and_of_the_hub_need_none(tmp_path: Path) -> None:
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "b").symlink_to("a")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "guard.yaml").write_text(
        "models:\n"
        "  a: {model_args: {pretrained: ../models/a, dtype: float32}}\n"
        "  b: {model_args: {pretrained: ../models/b, revision: main}}\n"
        "  c: {model_args: {pretrained: owner/name, tokenizer: null, subfolder: x/y}}\n"
        "  d: {extends: a, settings: {s: {target: 'weights:**', reference: null, "
        "candidate: o/n@main}}}\n"
        "  e: {model_args: {pretrained: /models/large, peft: ~/adapter}}\n"
        "  f: {extends: e, settings: {s: {target: 'module:**', reference: null, "
        "candidate: {model_args: {pretrained: ../../port}, settings: {'weights:**': /w}}}}}\n"
    )
    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    for name in "abcdef":
        require_code_allowed(*guards.find(name))


def test_a_value_that_holds_names_is_looked_through() -> None:
    assert model_danger(["a", "b"])
    assert config_danger("text_config", {"auto_map": {"AutoConfig": "x.Y"}})
    assert config_danger("text_config", {"_attn_implementation": "owner/kernel"})
    assert config_danger("parts", [{"quantization_config": {}}])
    assert not config_danger("rope_scaling", {"type": "yarn", "factor": 2.0})
    assert generation_danger("custom_generate")
    assert not generation_danger("temperature")
