"""Builds that change: an input, the script, and what it imports."""

from __future__ import annotations

from pathlib import Path

from world_changes import Case, scaled, text


def built(folder: Path) -> None:
    (folder / "convert.py").write_text(
        "import shutil, sys\n\nfrom factor import F\n"
        "from safetensors.torch import load_file, save_file\n\n"
        "source, target = sys.argv[1:]\nshutil.copytree(source, target)\n"
        "file = target + '/model.safetensors'\n"
        "tensors = {n: F * t for n, t in load_file(file).items()}\n"
        "save_file(tensors, file, metadata={'format': 'pt'})\n"
    )
    (folder / "factor.py").write_text("F = 1.5\n")
    guard = folder / "guard.yaml"
    recipe = "    build: {command: [python, convert.py, '{base}', '{output}'], "
    recipe += f"inputs: {{base: {folder / 'model'}}}, output: built}}\n"
    told = guard.read_text().replace("pretrained: model, ", "")
    guard.write_text(told.replace("tasks: [word", f"{recipe}tasks: [word"))


BUILT: dict[str, Case] = {
    "an input of the build": Case(scaled("model/model.safetensors"), prepare=built),
    "the script of the build": Case(text("convert.py", "F * t", "2 * t"), prepare=built),
    "what that script imports": Case(text("factor.py", "1.5", "2.5"), prepare=built),
}
