"""Guard files are found in one order: named, evalguard.yaml, configs/, embedded."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalguard.config.guard_search import embedded_folder, load_guards
from evalguard.errors import GuardFileError


def write(path: Path, name: str, rest: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"models:\n  {name}: {{}}\n{rest}")


def test_the_named_file_then_evalguard_yaml_then_configs_then_the_demo(tmp_path: Path) -> None:
    def found(config: Path | None = None) -> tuple[str, tuple[str, ...]]:
        guards = load_guards(config, cwd=tmp_path, allow_code=False)
        return guards.origin, guards.names

    assert found()[0] == "embedded"
    (tmp_path / "configs").mkdir()
    assert found()[0] == "embedded"
    write(tmp_path / "configs" / "b.yml", "b")
    write(tmp_path / "configs" / "a.yaml", "a")
    (tmp_path / "configs" / "notes.txt").write_text("not a guard file")
    assert found() == ("configs/", ("a", "b"))
    write(tmp_path / "evalguard.yaml", "c")
    assert found() == ("evalguard.yaml", ("c",))
    write(tmp_path / "d.yaml", "d")
    assert found(Path("d.yaml")) == ("named", ("d",))
    assert found(tmp_path / "d.yaml") == ("named", ("d",))


def test_each_file_of_configs_keeps_its_own_tasks_and_gate(tmp_path: Path) -> None:
    write(tmp_path / "configs" / "a.yaml", "a", "tasks: [one]\ngate: {margin: 2}")
    write(tmp_path / "configs" / "b.yaml", "b", "tasks: [two]")
    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    guard_a, variant_a = guards.find("a")
    guard_b, variant_b = guards.find("b")
    assert (variant_a.name, guard_a.tasks, guard_a.gate.margin) == ("a", ("one",), 2.0)
    assert (variant_b.name, guard_b.tasks, guard_b.gate.margin) == ("b", ("two",), 1.0)
    assert guards.where == "configs/a.yaml, configs/b.yaml"


def test_a_name_defined_in_two_files_is_an_error_that_names_both(tmp_path: Path) -> None:
    write(tmp_path / "configs" / "a.yaml", "m")
    write(tmp_path / "configs" / "b.yaml", "n", "  m: {}")
    with pytest.raises(GuardFileError) as raised:
        load_guards(None, cwd=tmp_path, allow_code=False)
    message = "configs/b.yaml:3: model 'm' is already at configs/a.yaml:2"
    assert str(raised.value) == message


def test_faults_of_several_files_are_told_together(tmp_path: Path) -> None:
    write(tmp_path / "configs" / "a.yaml", "m", "taks: [x]")
    write(tmp_path / "configs" / "b.yaml", "n", "gat: {}")
    with pytest.raises(GuardFileError) as raised:
        load_guards(None, cwd=tmp_path, allow_code=False)
    first, second = str(raised.value).splitlines()
    assert first.startswith("configs/a.yaml:3: unknown key 'taks'")
    assert second.startswith("configs/b.yaml:3: unknown key 'gat'")
    assert "--config FILE" in raised.value.hint


def test_the_embedded_folder_holds_the_demo_and_its_tasks() -> None:
    folder = embedded_folder()
    assert (folder / "configs" / "demo.yaml").is_file()
    assert (folder / "tasks").is_dir()
