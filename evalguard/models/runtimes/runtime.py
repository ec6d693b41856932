"""Runtime: what a library has to give so that evalguard can score a model with it.

The files of this room import numpy and, where it is used, their one library: they run in a worker
whose interpreter has neither lm-eval nor evalguard's other dependencies.

Points are those of the Hugging Face model of the same architecture (core/trace_points.py).
"""

from __future__ import annotations

import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.hyperparameters import HeldValue
from evalguard.core.settings import Value
from evalguard.core.trace_points import ModelRounding
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.models.arguments import check_known

Array = NDArray[Any]
Activation = tuple[str, NDArray[np.float32]]
# Sees a point while the model runs: its name, and what gives its value (what nobody wants is not
# copied). Returns what is to stand in the value's place, of as many elements; None: it stays.
Visit = Callable[[str, Callable[[], Array]], Array | None]


def stream_activations(
    read: Callable[[Visit], None],
    wanted: Collection[str] = (),
    forced: Mapping[str, str] | None = None,
) -> Iterator[Activation]:
    """Yield what flows at points while ``read`` runs, one value at a time.

    The model waits in a thread of its own until a value has been taken, so that never more than one
    is in memory. Left unfinished, the pass is broken off.

    Args:
        read: runs the model once and shows every point to its argument.
        wanted: points; empty: all.
        forced: files by point, ``.npy``: what is to stand in place of the model's own value, which
            is yielded first.

    Raises:
        EvaluationError: a file is damaged.
        Exception: what the pass raised.
    """
    points, files = frozenset(wanted), forced or {}
    values: Queue[Activation | BaseException | None] = Queue()
    taken = threading.Semaphore(0)
    stopped = threading.Event()

    def visit(point: str, value: Callable[[], Array]) -> Array | None:
        if stopped.is_set():
            raise _StoppedError
        given = _read_file(files[point], point) if point in files else None
        if given is not None or not points or point in points:
            values.put((point, np.array(value(), dtype=np.float32)))
            taken.acquire()
        return given

    def run() -> None:
        try:
            read(visit)
            values.put(None)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  raised where the values are taken
            values.put(error)

    thread = threading.Thread(target=run, name="evalguard-activations", daemon=True)
    thread.start()
    try:
        while (item := values.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
            taken.release()
    finally:
        stopped.set()
        taken.release()
        thread.join()


class _StoppedError(Exception):
    """Nobody takes the values of this pass any more."""


def _read_file(file: str, point: str) -> Array:
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{file}, the value at {point}, cannot be read: {error}") from error


class FiledActivations:
    """Activations of another model in ``.npy`` files, by point (``RecordedActivations``)."""

    inputs_known = True  # it was asked for these

    def __init__(self, files: Sequence[Mapping[str, str]], rounding: ModelRounding) -> None:
        self.rounding = rounding
        self._files = files

    def names(self, sequence: int) -> Sequence[str]:
        """Points of a sequence."""
        return list(self._files[sequence])

    def read(self, sequence: int, point: str) -> Array:
        """Read one value.

        Raises:
            EvaluationError: its file is damaged.
        """
        return _read_file(self._files[sequence][point], point)


Logits = NDArray[np.float32]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Runtime(ABC):
    """A causal language model as token ids in, logits out.

    Attributes:
        max_length: tokens that it may read at once.
        vocabulary_size: logits at every position.
        prefix_token_id: read before a text that has no context; lm-eval's prefix token.
        eot_token_id: ends a generated text.
        dtype, device: of the computation, by name.
        parameters: number of weights, 0 where the library does not say.
        module: the torch module that ``attr:``, ``dtype:`` and ``call:`` settings edit, or None.
        files: files and whole folders that its weights and tokenizer were read from; empty where
            that is not known, and then its scores are not kept.
        caveats: what a reader of its scores has to know.
    """

    max_length: int
    vocabulary_size: int
    prefix_token_id: int
    eot_token_id: int
    dtype: str = ""
    device: str = "cpu"
    parameters: int = 0
    module: Any = None
    files: tuple[Path, ...] = ()
    caveats: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids of a text; ``special``: whether BOS is put first, None: as the model has it."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""

    @abstractmethod
    def decode_special(self, token: int) -> str:
        """How a special token is written in a text; "" where it cannot be."""

    @abstractmethod
    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits after the tokens ``ids[first:]``, float32, shape (len(ids) - first, V).

        Args:
            ids: at most ``max_length``.
            first: position of the first row that is wanted.
        """

    def visit_activations(self, ids: Sequence[int], visit: Visit) -> None:  # noqa: ARG002
        """Read a text, all of it in one pass, and show what flows at every point on the way.

        Points have the names of the Hugging Face model of the same architecture, and values its
        order of heads and features; see ``activations``.

        Raises:
            UsageError: the library does not show them.
        """
        raise UsageError(
            "this model type shows no activations",
            hint="dump them to files, and name their folder in place of the model",
        )

    def traced_module(self) -> Any:
        """The torch module whose modules' names are those of points; a base of a trace.

        Raises:
            UsageError: there is none, or it is not all that reads a text.
        """
        raise UsageError(
            "a model of this type is no base of a trace",
            hint="name a model: hf as the base, or one of types transformers and fla",
        )

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as the loaded model holds them; () where its library shows none."""
        return ()

    @property
    def effective(self) -> Mapping[str, Value]:
        """Arguments as the loaded model has them, by name, as far as it shows them."""
        return {}

    @property
    def computation(self) -> Mapping[str, Value]:
        """How it computes, as ``ModelDescription.computation`` has it, beside its device."""
        return {}

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Texts of all tokens with their ids; {} where the library does not show them."""
        return {}

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],  # noqa: ARG002
        add_generation_prompt: bool,  # noqa: ARG002
    ) -> str:
        """Apply the model's chat template; a runtime without one says so."""
        raise UsageError(
            "this model type applies no chat template",
            hint="leave out --apply_chat_template, or compare with model: hf",
        )

    @abstractmethod
    def close(self) -> None:
        """Release the model. May be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeArguments:
    """The model_args of a runtime, taken one by one, so that none is ignored without a word.

    Attributes:
        given: as they stand in the guard file, settings laid over them.
        device: of the run; "" leaves it to the runtime.
        threads: CPU threads; 0 leaves them to the runtime.
        code_allowed: whether code that comes with a checkpoint may run.
        pickle_allowed: whether pickled weights may be loaded.
    """

    model_type: str
    given: Mapping[str, Value]
    device: str = ""
    threads: int = 0
    code_allowed: bool = False
    pickle_allowed: bool = False
    taken: set[str] = field(default_factory=set)

    def take(self, name: str, default: Value = None) -> Any:
        """Return an argument, or its default."""
        self.taken.add(name)
        value = self.given.get(name)
        return default if value is None else value

    def take_whole(self, name: str, default: int | None = None, *, least: int = 1) -> Any:
        """Return an argument that is a whole number, None where neither it nor a default is there.

        Raises:
            UsageError: it is no whole number, or a smaller one.
        """
        value = self.take(name, default)
        if value is not None and (type(value) is not int or value < least):
            raise UsageError(
                f"model_args.{name}: {value!r} is no whole number from {least} on",
                target=f"model_args.{name}",
            )
        return value

    def take_number(self, name: str) -> float | None:
        """Return an argument that is a finite number, None where it is not given.

        Raises:
            UsageError: it is none.
        """
        value: Value = self.take(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value)):  # type: ignore[arg-type]
            raise UsageError(
                f"model_args.{name}: {value!r} is no number", target=f"model_args.{name}"
            )
        return value  # type: ignore[return-value]

    def take_flag(self, name: str) -> bool | None:
        """Return an argument that is true or false, None where it is not given.

        Raises:
            UsageError: it is neither.
        """
        value: Value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise UsageError(
                f"model_args.{name}: {value!r} is neither true nor false",
                target=f"model_args.{name}",
            )
        return value

    def take_text(self, name: str) -> str | None:
        """Return an argument that is a text, None where it is not given.

        Raises:
            UsageError: it is none.
        """
        value: Value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise UsageError(
                f"model_args.{name}: {value!r} is no text", target=f"model_args.{name}"
            )
        return value

    def choose(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return an argument that has to be one of some words.

        Raises:
            UsageError: it is another one.
        """
        word = str(self.take(name, default))
        check_known(name, word, choices)
        return word

    def path(self, name: str = "pretrained") -> Path:
        """Return an argument that is a file or folder, or a hub id, whose files are fetched.

        Raises:
            UsageError: it is missing, or there is nothing.
        """
        value = self.take(name)
        if not isinstance(value, str) or not value:
            raise UsageError(
                f"model type '{self.model_type}' needs model_args.{name}: a path",
                hint=f"write model_args: {{{name}: PATH}}",
                target=f"model_args.{name}",
            )
        path = Path(value).expanduser()
        if path.exists():
            return path
        if not _HUB_ID.fullmatch(value):
            raise UsageError(
                f"model_args.{name}: there is nothing at {path}", target=f"model_args.{name}"
            )
        try:
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(value, revision=self.take("revision")))
        except Exception as error:
            raise UsageError(
                f"model_args.{name}: '{value}' is neither here nor to be had from the hub: {error}",
                target=f"model_args.{name}",
            ) from error

    def check_all_taken(self) -> None:
        """Refuse arguments that the runtime does not know.

        Raises:
            UsageError: naming the first, and the nearest right name.
        """
        for name in self.given:
            if name not in self.taken:
                raise UsageError(
                    f"model type '{self.model_type}' takes no argument '{name}'"
                    f"{nearest(name, self.taken)}",
                    hint=f"its arguments: {', '.join(sorted(self.taken))}",
                    target=f"model_args.{name}",
                )
