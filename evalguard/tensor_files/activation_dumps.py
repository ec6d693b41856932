"""Activations in files: dumped by any runtime, or kept here while a trace needs them.

A dump is a folder with one folder for each sequence, in the order of their names; a dump of one
sequence may be that folder itself. Tensors stand in ``.safetensors``, ``.npz``, ``.npy`` (named
after the tensor) and ``.gguf`` files, in any number; ``inputs.npz`` holds what the model read, and
no activations. A ``config.json``, ``.yaml`` or ``.yml`` beside them may say with which
hyper-parameters they were made.

A tensor is taken for the point (core/trace_points.py) that a name map says; without a rule it
stands for the point of its own name, one without ``:in`` or ``:out`` for that module's output.
"""

from __future__ import annotations

import difflib
import re
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from evalguard.core.name_map import Layout, NameMap, NameRule, Take
from evalguard.core.trace_points import ModelRounding, PointName
from evalguard.errors import EvaluationError, UsageError
from evalguard.tensor_files.opening import TensorFiles, open_tensors

Array = NDArray[Any]
SUFFIXES = (".safetensors", ".npz", ".npy", ".gguf")
INPUTS_FILE = "inputs.npz"
_SETTINGS_FILES = ("config.json", "config.yaml", "config.yml")
_OWN_KEYS = ("precision", "computes_in")
_MOST_OPEN = 4  # files; a dump may have thousands
_POINT = re.compile(r":(in|out)(\.\d+)?$")


@dataclass(frozen=True, slots=True)
class DumpedTensor:
    """A tensor of a file, which is read when it is asked for."""

    file: Path
    name: str
    shape: tuple[int, ...]

    def read(self) -> Array:
        """Return its values; no file stays open, of which a dump may have thousands."""
        with open_tensors(self.file) as opened:
            return self.read_from(opened)

    def read_from(self, found: TensorFiles) -> Array:
        """Return its values from its file, which is open."""
        if self.name not in found.tensors:
            raise EvaluationError(f"{self.file} no longer has '{self.name}'")
        return found.tensors[self.name].load()


class _OpenFiles:
    """The files that were read last, open: the header of one may name thousands of tensors."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], TensorFiles] = {}
        weakref.finalize(self, _close_all, self._found)

    def read(self, tensor: DumpedTensor) -> Array:
        """Return a tensor's values, of its file as it is now."""
        key: tuple[object, ...] = (tensor.file,)
        with suppress(OSError):  # which opening tells better
            status = tensor.file.stat()
            key = (tensor.file, status.st_ino, status.st_size, status.st_mtime_ns)
        opened = self._found.pop(key, None) or open_tensors(tensor.file)
        self._found[key] = opened
        while len(self._found) > _MOST_OPEN:
            self._found.pop(next(iter(self._found))).close()
        return tensor.read_from(opened)


def _close_all(found: Mapping[tuple[object, ...], TensorFiles]) -> None:
    for opened in found.values():
        opened.close()


_Points = dict[str, tuple[DumpedTensor, Layout]]


class DumpedActivations:
    """A dump as recorded activations of a model (``RecordedActivations``).

    Only names and shapes are read when it is opened; each tensor is read when it is asked for, and
    none is kept.

    Args:
        folder: of the dump.
        names: which tensor is which point; the base's side of its rules are points.
        modules: of the base. A tensor that rules with wildcards take for several points is none of
            those whose modules are not among them.

    Attributes:
        rounding: precision and computes_in as its configuration says; "" where it does not.
        hyperparameters: what the configuration says; {} where there is none.
        inputs_known: whether each sequence has the inputs that it was made of.

    Raises:
        UsageError: there is no such folder, nothing in it, or nothing that is a point.
        EvaluationError: a file is damaged.
    """

    def __init__(
        self, folder: Path, names: NameMap | None = None, *, modules: Collection[str] = ()
    ) -> None:
        self.folder = folder
        self._modules = frozenset(modules)
        self._map = names or NameMap()
        folders = list_sequences(folder)
        self.inputs_known = all((sequence / INPUTS_FILE).is_file() for sequence in folders)
        self._sequences = [self._find_points(sequence) for sequence in folders]
        self._files = _OpenFiles()
        self.hyperparameters = _read_settings(folder)
        declared = [self.hyperparameters.get(key) for key in ("precision", "dtype", "torch_dtype")]
        dtype = next((value for value in declared if isinstance(value, str)), "")
        self.rounding = ModelRounding(
            precision=dtype.removeprefix("torch."),
            computes_in=str(self.hyperparameters.get("computes_in") or ""),
        )

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._sequences)

    def names(self, sequence: int) -> Sequence[str]:
        """Points of a sequence, as the names of files and tensors order them.

        Raises:
            UsageError: there is no such sequence.
        """
        return list(self._points(sequence))

    def read(self, sequence: int, point: str) -> Array:
        """Read a tensor, laid out as the base has it.

        Raises:
            EvaluationError: its file is damaged, or the map's layout does not fit it.
        """
        tensor, layout = self._points(sequence)[point]
        values = self._files.read(tensor)
        try:
            return layout.apply(values)
        except ValueError as error:
            raise EvaluationError(
                f"{tensor.file}: '{tensor.name}', a tensor of {list(tensor.shape)}, cannot be laid "
                f"out as {point}: {error}",
                hint="correct its rule in the name map",
            ) from error

    def _points(self, sequence: int) -> _Points:
        if not 0 <= sequence < len(self._sequences):
            raise UsageError(
                f"{self.folder} has {len(self._sequences)} sequences, and sequence {sequence + 1} "
                "is asked for",
                hint="dump one folder for each document that is traced, named so that they sort "
                "in their order: 000, 001, ...",
            )
        return self._sequences[sequence]

    def _find_points(self, folder: Path) -> _Points:
        tensors = [
            tensor
            for file in _tensor_files(folder)
            for tensor in _open(file)
            if not self._map.ignores(tensor.name)
        ]
        points: _Points = {}
        matches = {id(tensor): self._match(tensor) for tensor in tensors}
        for rule in range(len(self._map.rules)):  # an earlier one counts
            own: _Points = {}
            for tensor in tensors:
                for point, layout in matches[id(tensor)].get(rule, ()):
                    _refuse_second(own, point, tensor)
                    own[point] = (tensor, layout)
            points = {**own, **points}
        own = {}
        for tensor in tensors:
            if not matches[id(tensor)]:
                _refuse_second(own, point := point_named(tensor.name), tensor)
                own[point] = (tensor, Layout())
        points = {**own, **points}
        if not points:
            raise UsageError(
                f"{folder} has no tensor that the name map does not ignore",
                hint="correct ignore in the name map",
            )
        return points

    def _match(self, tensor: DumpedTensor) -> Mapping[int, Sequence[tuple[str, Layout]]]:
        """Points of a tensor by the rule that says so."""
        by_rule = {
            number: points
            for number, rule in enumerate(self._map.rules)
            if (points := list(_name_points(tensor, rule)))
        }
        known = {
            number: own_points
            for number, points in by_rule.items()
            if (
                own_points := [
                    point for point in points if PointName.parse(point[0]).module in self._modules
                ]
            )
        }
        return known or by_rule


def is_dump(path: Path) -> bool:
    """Whether a folder holds activations and no model: tensors in it or in a folder for each
    sequence, none of them a weight by its name.
    """
    if not path.is_dir() or (path / "config.json").is_file():
        return False
    inside = [
        entry for entry in path.iterdir() if entry.is_dir() and not any(entry.glob("*config.json"))
    ]
    file_lists = (files for folder in (path, *sorted(inside)) if (files := _tensor_files(folder)))
    files = next(file_lists, [])
    return bool(files) and not any(map(_holds_weights, files))


def _holds_weights(file: Path) -> bool:
    """Whether a file is of a model: every library calls its weights so, and nothing else."""
    if file.suffix in (".npy", ".npz"):  # which may be called after a weight that they show
        return False
    try:
        with open_tensors(file) as opened:
            return any(name.endswith(".weight") for name in opened.tensors)
    except (EvaluationError, UsageError):
        return file.suffix == ".gguf"  # damaged, or a part: hardly ever activations


def read_recorded_inputs(folder: Path) -> dict[str, Array]:
    """What the model read, by name, as a folder of a dump keeps it; {} where it keeps nothing.

    Raises:
        EvaluationError: the file is damaged.
    """
    file = folder / INPUTS_FILE
    return {tensor.name: tensor.read() for tensor in _open(file)} if file.is_file() else {}


def _refuse_second(found: _Points, point: str, tensor: DumpedTensor) -> None:
    if point in found:
        first = found[point][0]
        raise UsageError(
            f"'{first.name}' ({first.file}) and '{tensor.name}' ({tensor.file}) both stand for "
            f"{point}",
            hint="ignore one of them in the name map",
        )


def list_sequences(folder: Path) -> list[Path]:
    """The folders of a dump's sequences, in their order.

    Raises:
        UsageError: there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}", hint="name the folder that activations were dumped to")
    inside = [entry for entry in folder.iterdir() if entry.is_dir() and any(_tensor_files(entry))]
    own = list(_tensor_files(folder))
    if own and inside:
        raise UsageError(
            f"{folder} has tensors of its own ({own[0].name}) beside folders of sequences "
            f"({inside[0].name})",
            hint="one folder for each sequence, and nothing but them",
        )
    if not own and not inside:
        raise UsageError(
            f"{folder} holds no activations",
            hint=f"files that are read: {', '.join(SUFFIXES)}, in one folder for each sequence",
        )
    return [folder] if own else sorted(inside, key=lambda sequence: _natural_key(sequence.name))


def list_sequence_tensors(folder: Path) -> list[list[DumpedTensor]]:
    """Tensors of each sequence of a dump, under the names that its files give them.

    Raises:
        UsageError: there is no such folder, or nothing in it.
        EvaluationError: a file is damaged.
    """
    return [
        [tensor for file in _tensor_files(sequence) for tensor in _open(file)]
        for sequence in list_sequences(folder)
    ]


def _tensor_files(folder: Path) -> list[Path]:
    files = (
        file
        for file in folder.iterdir()
        if file.suffix in SUFFIXES and file.name != INPUTS_FILE and file.is_file()
    )
    return sorted(files, key=lambda file: _natural_key(file.name))


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Numbers by their value: layer-10 after layer-9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def _name_points(tensor: DumpedTensor, rule: NameRule) -> Iterator[tuple[str, Layout]]:
    """Points of a tensor by a rule: one, several of a stack, or none."""
    for inverse in _invert(rule, tensor.shape):
        matched = inverse.match(tensor.name)
        if matched is not None:
            yield point_named(matched[0]), matched[1]


def point_named(name: str) -> str:
    """The point that a name says; of a module's name, its output."""
    return str(PointName.parse(name if _POINT.search(name) else f"{name}:out"))


def _invert(rule: NameRule, shape: Sequence[int]) -> Iterator[NameRule]:
    """The rule from the candidate's names to the base's; one for each slice of a stack."""
    take = rule.layout.take
    if take is None or isinstance(take.index, int):
        yield NameRule(base=rule.cand, cand=rule.base, layout=rule.layout)
        return
    wild = list(re.finditer(r"\*\*|\*|\?", rule.base))[int(take.index.removeprefix("$")) - 1]
    slices = shape[take.axis] if -len(shape) <= take.axis < len(shape) else 0
    for number in range(slices):
        numbered = f"{rule.base[: wild.start()]}{number}{rule.base[wild.end() :]}"
        layout = Layout(
            take=Take(axis=take.axis, index=number),
            split=rule.layout.split,
            reshape=rule.layout.reshape,
            transpose=rule.layout.transpose,
            permute=rule.layout.permute,
            scale=rule.layout.scale,
            add=rule.layout.add,
        )
        yield NameRule(base=rule.cand, cand=numbered, layout=layout)


def _open(file: Path) -> list[DumpedTensor]:
    """Names and shapes of a file; its values are read when they are asked for.

    Raises:
        EvaluationError: it is damaged, or needs a package that is not installed.
    """
    with open_tensors(file) as opened:
        for tensor in opened.tensors.values():
            if tensor.fault:
                raise EvaluationError(
                    f"{file}: '{tensor.name}' cannot be read: {tensor.fault}",
                    hint="write the activations again",
                )
        return [DumpedTensor(file, name, stored.shape) for name, stored in opened.tensors.items()]


def _read_settings(folder: Path) -> Mapping[str, Any]:
    for name in _SETTINGS_FILES:
        file = folder / name
        if not file.is_file():
            continue
        try:
            settings = yaml.safe_load(file.read_text(encoding="utf-8"))  # JSON is YAML
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
        if not isinstance(settings, dict):
            raise UsageError(f"{file} must hold a mapping of hyper-parameters to values")
        if file.suffix != ".json":
            _check_spelling(file, settings)
        return {str(key): _read_number(value) for key, value in settings.items()}
    return {}


def _check_spelling(file: Path, found: Mapping[object, object]) -> None:
    """Refuse what was meant for one of our keys: any other name is a hyper-parameter's.

    Raises:
        UsageError: naming the key.
    """
    for key in found:
        close = difflib.get_close_matches(str(key).lower(), _OWN_KEYS, n=1, cutoff=0.8)
        if close and key not in _OWN_KEYS:
            raise UsageError(f"{file}: '{key}' is no key; did you mean '{close[0]}'?")


def _read_number(value: Any) -> Any:
    """A number without a point (1e-5), which YAML 1.1 takes for a text."""
    written = isinstance(value, str) and re.fullmatch(r"[+-]?\d+[eE][+-]?\d+", value)
    return float(value) if written else value
