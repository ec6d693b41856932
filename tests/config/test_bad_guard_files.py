"""Each bad guard file is one clear error: file, line, what was found, the nearest right name."""

from __future__ import annotations

from pathlib import Path

import pytest
from guard_texts import FULL, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalguard.config.guard_search import load_guards
from evalguard.errors import EXIT_USAGE, GuardFileError


def read_cases() -> dict[str, tuple[str, int, str]]:
    """Return name -> (guard file, line of the error, part of its message)."""
    _, *blocks = Path(__file__).with_name("bad_guard_files.txt").read_text().split("\n=== ")
    cases = {}
    for block in blocks:
        head, text = block.split("\n", 1)
        name, line, message = head.split(" | ")
        cases[name] = (text.rstrip("\n") + "\n", int(line), message)
    return cases


BAD = {
    **read_cases(),
    "control character": ("models:\n  m: {model: a\0b}", 2, "is not allowed"),
    "nested too deep": ("models: " + "[" * 5000, 1, "nested over 40 deep"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_guard_file_is_refused_with_its_line_and_what_was_found(
    tmp_path: Path, case: str
) -> None:
    text, line, message = BAD[case]
    with pytest.raises(GuardFileError) as raised:
        load(tmp_path, text)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"guard.yaml:{line}: ")
    assert raised.value.where == f"guard.yaml:{line}"
    assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~"])
def test_an_empty_guard_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(GuardFileError, match=r"^guard.yaml: the guard file is empty$"):
        load(tmp_path, text)


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "guard.yaml").write_bytes(b"models:\n  caf\xe9: {}\n")
    with pytest.raises(GuardFileError, match=r"^guard.yaml:2: is not UTF-8 \(byte 0xe9\)"):
        load_guards(Path("guard.yaml"), cwd=tmp_path, allow_code=False)


def test_a_file_that_is_missing_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "guard.yaml").touch()
    with pytest.raises(GuardFileError, match=r"did you mean 'guard.yaml'\?"):
        load_guards(Path("gaurd.yaml"), cwd=tmp_path, allow_code=False)


def test_a_folder_and_a_missing_folder_are_no_guard_files(tmp_path: Path) -> None:
    with pytest.raises(GuardFileError, match="is a folder"):
        load_guards(tmp_path, cwd=tmp_path, allow_code=False)
    with pytest.raises(GuardFileError, match="no folder"):
        load_guards(Path("no/guard.yaml"), cwd=tmp_path, allow_code=False)


def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "guard.yaml").touch()
    monkeypatch.setattr("evalguard.regular_file.os.open", refuse)
    with pytest.raises(GuardFileError, match=r"guard\.yaml: cannot be read: Permission denied"):
        load_guards(Path("guard.yaml"), cwd=tmp_path, allow_code=False)


def test_all_faults_of_a_file_are_told_one_a_line_in_order(tmp_path: Path) -> None:
    with pytest.raises(GuardFileError) as raised:
        load(tmp_path, "models:\n  m: {modl: 1}\n  m: {}\ngate: {margin: 0}\n")
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"guard.yaml:{n}" for n in (2, 3, 4)]


def test_a_hundred_faults_are_told_and_the_rest_is_counted(tmp_path: Path) -> None:
    text = "models: {m: {}}\n" + "".join(f"key_{n}: 1\n" for n in range(125))
    with pytest.raises(GuardFileError) as raised:
        load(tmp_path, text)
    lines = str(raised.value).splitlines()
    assert len(lines) == 101
    assert lines[-1] == "and 25 more"


def test_a_part_that_is_wrong_hides_no_fault_elsewhere_and_makes_none(tmp_path: Path) -> None:
    """What hangs on it (a pair, a child, a constraint, a build's setting) is not accused."""
    text = """\
models:
  a: 3
  b:
    setings: {}
    extends: a
    build: {comand: [make]}
    settings:
      s: {reference: 1, candidate: 2, target: build.size}
      t: {reference: 1, target: config.x}
    constraints: [{if: {t: 1}, then: {s: 2}}]
  c:
    extends: b
    settings: {u: {reference: 1, candidate: 2, target: confg.x}}
  d: {extends: e}
pairs:
  - {base: a}
  - {base: a, cand: c}
  - {base: b, cand: f}
run: {limit: -1, track: nobody}
"""
    with pytest.raises(GuardFileError) as raised:
        load(tmp_path, text)
    lines = [line.split(":")[1] for line in str(raised.value).splitlines()]
    assert lines == ["2", "4", "6", "9", "13", "14", "16", "18", "19", "19"]


def test_aliases_that_explode_are_refused_at_once(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    merges = ["b0: &b0 {x: 1}"]
    merges += [f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    for text in ("\n".join(rows), "\n".join(merges)):
        with pytest.raises(GuardFileError, match="once aliases are followed"):
            load(tmp_path, text)
    with pytest.raises(GuardFileError, match="is larger than 512 KiB"):
        load(tmp_path, "# " + "x" * 600_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("abc: {}#", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz"), inner, max_size=3),
    max_leaves=8,
)
UNKNOWN = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12).filter(
    lambda key: key not in ["models", "pairs", "tasks", "include_path", "run", "gate"]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=UNKNOWN, value=JSON)
def test_any_value_under_an_unknown_key_is_refused(tmp_path: Path, key: str, value: object) -> None:
    import json

    unknown = json.dumps({key: value})[1:-1]
    with pytest.raises(GuardFileError, match=f"unknown key '{key}' in the guard file"):
        load(tmp_path, f"{{models: {{m: {{}}}},\n{unknown}}}")


@pytest.mark.parametrize("key", ["pretrained", "dtype", "tokenizer", "base_url", "device"])
def test_an_argument_of_a_model_beside_model_args_is_told_where_it_belongs(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(GuardFileError, match=f"unknown key '{key}' in models.m$") as refused:
        load(tmp_path, f"models: {{m: {{{key}: here}}}}")
    assert f"model_args: {{{key}: ...}}" in str(refused.value.hint)
    with pytest.raises(GuardFileError, match="did you mean 'model_args'") as misspelt:
        load(tmp_path, "models: {m: {model_arg: {}}}")
    assert "stand in" not in str(misspelt.value.hint)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("gate: {metrics: {acc: {margn: 2}}}", "gate.metrics.acc"),
        (
            "pairs: [{base: m, cand: m, gate: {metrics: {acc: {margn: 2}}}}]",
            r"pairs\[0\].gate.metrics.acc",
        ),
        ("gate: {margn: 2}", "gate"),
    ],
)
def test_a_misspelt_key_of_a_margin_leads_to_the_right_one(
    tmp_path: Path, text: str, place: str
) -> None:
    said = f"unknown key 'margn' in {place}; did you mean 'margin'"
    with pytest.raises(GuardFileError, match=said) as refused:
        load(tmp_path, f"models: {{m: {{}}}}\n{text}")
    assert "higher_is_better" in str(refused.value.hint) or place == "gate"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_guard_file_is_an_error_with_a_place_and_never_a_crash(
    tmp_path: Path, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(FULL)))
    stop = data.draw(st.integers(start, min(len(FULL), start + 30)))
    patch = data.draw(st.text(st.characters(codec="utf-8"), max_size=6))
    place = "guard.yaml"
    try:
        load(tmp_path, FULL[:start] + patch + FULL[stop:])
    except GuardFileError as error:
        place = error.where
    assert place.startswith("guard.yaml")


def test_chains_of_extends_have_a_limit_far_above_what_people_write(tmp_path: Path) -> None:
    def chain(length: int) -> str:
        models = [f"  m{n}: {{extends: m{n + 1}}}" for n in range(length - 1)]
        return "\n".join(["models:", *models, f"  m{length - 1}: {{}}"])

    load(tmp_path, chain(50))
    with pytest.raises(GuardFileError, match=r"guard\.yaml:2: 'm0' extends over 50 models"):
        load(tmp_path, chain(52))
