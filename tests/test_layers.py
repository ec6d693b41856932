"""The layers of the design hold, lazy and type-only imports included.

cli -> pipeline -> adapters, report -> core. Adapters never import each other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "evalguard"
CORE = {
    "bisect",
    "bisect_report",
    "errors",
    "settings",
    "scorer",
    "items",
    "scores",
    "across_tasks",
    "amounts",
    "cache_report",
    "checksum",
    "comparison",
    "comparison_check",
    "compare_report_check",
    "confusion",
    "chosen_option",
    "distribution_comparison",
    "garbage",
    "gate_reason",
    "gate_result",
    "limits",
    "divergence",
    "document_fields",
    "answer_scale",
    "document_scale",
    "limit_scale",
    "log_rows",
    "reference",
    "reference_check",
    "tail",
    "top_tokens",
    "tracked_night",
    "tracked_run",
    "compare_report",
    "several_report",
    "plan_report",
    "positions",
    "pairing",
    "escaping",
    "unwritable",
    "redaction",
    "secret_shapes",
    "resources",
    "rescoring",
    "report_format",
    "run_documents",
    "stats",
    "stopping",
    "verdict",
    "waiver",
    "gate",
    "history",
    "influence",
    "night_changes",
    "night_report",
    "noise_floor",
    "distribution_floor",
    "floor_report",
    "task_group",
    "shell_words",
    "typed_command",
}
ADAPTERS = {
    "config",
    "conversion",
    "harness",
    "lmeval_runs",
    "models",
    "store",
    "execution",
    "tracking",
    "forges",
}
LAYERS = CORE | ADAPTERS | {"report", "pipeline", "cli", "pytest_plugin", "__main__"}

CORE_MAY_IMPORT = {"numpy", "scipy"}
# The core sees no files, no clock, no environment, no processes, no hidden randomness.
CORE_MUST_NOT_IMPORT = {
    "asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "shutil", "socket", "subprocess", "sys", "tempfile", "threading", "time",
}  # fmt: skip


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            assert node.module is not None
            if node.module == "evalguard":
                yield from (f"evalguard.{alias.name}" for alias in node.names)
            else:
                yield node.module


def imported_rooms() -> Iterator[tuple[str, str, str]]:
    """Yield (importing module, its room, imported room) for every import inside the package."""
    for name, tree in modules():
        if not room_of(name):
            continue
        for target in imports_of(tree):
            if target.split(".")[0] == "evalguard" and room_of(target) in LAYERS:
                yield name, room_of(name), room_of(target)


def test_every_room_of_the_package_has_a_layer() -> None:
    rooms = {room_of(name) for name, _ in modules()} - {""}
    assert rooms <= LAYERS, f"give these a layer in this test: {sorted(rooms - LAYERS)}"


def test_the_core_imports_only_the_core_and_numpy_and_scipy() -> None:
    for name, tree in modules():
        if room_of(name) not in CORE:
            continue
        for target in imports_of(tree):
            head = target.split(".")[0]
            if head == "evalguard":
                assert room_of(target) in CORE, f"{name} imports {target}"
            else:
                allowed = head in CORE_MAY_IMPORT or head in sys.stdlib_module_names
                assert allowed, f"{name} imports {target}"
                assert head not in CORE_MUST_NOT_IMPORT, f"{name} imports {target}"


def test_adapters_import_the_core_and_never_each_other() -> None:
    for name, room, target in imported_rooms():
        if room in ADAPTERS:
            assert target in CORE | {room}, f"{name} imports {target}"


def test_reports_import_the_core_only() -> None:
    for name, room, target in imported_rooms():
        if room == "report":
            assert target in CORE | {"report"}, f"{name} imports {target}"


def test_nothing_below_the_pipeline_imports_the_pipeline_or_the_command_line() -> None:
    for name, room, target in imported_rooms():
        if target in ("cli", "pytest_plugin"):
            assert room in {target, "__main__"}, f"{name} imports {target}"
        if target == "pipeline":
            assert room in {"pipeline", "cli", "pytest_plugin"}, f"{name} imports {target}"


def test_command_line_and_pytest_plugin_import_the_pipeline_and_the_core_only() -> None:
    for name, room, target in imported_rooms():
        if room in ("cli", "pytest_plugin"):
            assert target in CORE | {room, "pipeline"}, f"{name} imports {target}"


def test_no_module_is_on_an_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    names = {name for name, _ in modules()}
    for name, tree in modules():
        edges = {t for t in imports_of(tree) if t in names} - {name}
        graph[name] = edges if name != "evalguard" else set()
    for start in graph:
        seen: set[str] = set()
        stack = list(graph[start])
        while stack:
            node = stack.pop()
            assert node != start, f"{start} is on an import cycle"
            if node not in seen:
                seen.add(node)
                stack.extend(graph.get(node, ()))


RUN = "import evalguard.cli\ntry: evalguard.cli.main([{}])\nexcept SystemExit: pass"
HEAVY = (
    "torch",
    "lm_eval",
    "transformers",
    "pandas",
    "datasets",
    "pyarrow",
    "scipy.stats",
    "wandb",
    "mlflow",
    "trackio",
)


@pytest.mark.parametrize(
    "statement",
    [
        "import evalguard",
        RUN.format("'--help'"),
        RUN.format("'compare', '--help'"),
        RUN.format("'plan', '--help'"),
        RUN.format("'schema'"),
        RUN.format("'models'"),
        RUN.format("'compare', '--base', 'no-such', '--cand', '/no/such/folder'"),
    ],
)
def test_these_load_neither_torch_nor_lm_eval(statement: str) -> None:
    code = (
        f"{statement}\nimport sys\n"
        f"loaded = [m for m in {HEAVY!r} if m in sys.modules]\nassert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
