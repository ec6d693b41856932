"""RWKV-7 by rwkv-pip: a ``.pth`` file, one sequence at a time."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes.runtime import Logits, Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenizer import FolderTokenizer

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_WORLD = "rwkv_vocab_v20230424"
_LONGEST = 4096  # a recurrent model reads any length; windows of whole texts need one


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a ``.pth`` file.

    model_args: ``pretrained`` (the file, or a folder with one), ``strategy`` (``cpu fp32``, ``cuda
    bf16``), ``tokenizer`` (a Hugging Face folder; default: RWKV's world vocabulary),
    ``bos_token_id`` (default 0), ``add_bos_token`` (default: not), ``max_length``.

    Raises:
        UsageError: no such file or strategy.
        EvaluationError: it is no RWKV-7.
    """
    path = _checkpoint(arguments.path())
    strategy = str(arguments.take("strategy", "cpu fp32"))
    parts = strategy.split()
    if len(parts) != 2 or parts[1] not in _DTYPES:
        raise UsageError(
            f"model_args.strategy: '{strategy}' is not known",
            hint=f"DEVICE and one of {', '.join(_DTYPES)}, e.g. cpu fp32",
        )
    tokenizer = arguments.take("tokenizer")
    bos = int(arguments.take("bos_token_id", 0))
    add_bos = bool(arguments.take("add_bos_token", False))
    longest = int(arguments.take("max_length", _LONGEST))
    arguments.check_all_taken()
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    return RWKV7(path, strategy, tokenizer, bos=bos, add_bos=add_bos, longest=longest)


def _checkpoint(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.glob("*.pth"))
    if len(found) != 1:
        raise UsageError(
            f"{path} has {len(found)} .pth files", hint="name one in model_args.pretrained"
        )
    return found[0]


class RWKV7(Runtime):
    """rwkv-pip's model of version 7."""

    def __init__(
        self,
        path: Path,
        strategy: str,
        tokenizer: str | None,
        *,
        bos: int,
        add_bos: bool,
        longest: int,
    ) -> None:
        # Read when the module is imported; compiled code would take longer than a small model.
        os.environ["RWKV_V7_ON"] = "1"
        os.environ.setdefault("RWKV_JIT_ON", "0")
        module = importlib.import_module("rwkv.model")
        device, kind = strategy.split()
        try:
            self._model: Any = module.RWKV(model=str(path.with_suffix("")), strategy=strategy)
        except KeyError as error:
            raise EvaluationError(
                f"{path} is not an RWKV-7 checkpoint: it has no {error}"
            ) from error
        self.files = (path,)
        self._folder: FolderTokenizer | None = None
        self._world: Any = None
        if tokenizer is None:
            utils = importlib.import_module("rwkv.rwkv_tokenizer")
            vocabulary = Path(str(utils.__file__)).parent / f"{_WORLD}.txt"
            self._world = utils.TRIE_TOKENIZER(str(vocabulary))
        else:
            self._folder = FolderTokenizer(Path(tokenizer))
            self.files = (path, *self._folder.files)
        self._bos, self._add_bos = bos, add_bos
        self.prefix_token_id = bos
        self.eot_token_id = 0
        self.max_length = longest
        self.vocabulary_size = int(self._model.args.vocab_size)
        self.dtype, self.device = _DTYPES[kind], device
        self.parameters = sum(int(tensor.numel()) for tensor in self._model.z.values())
        self._strategy = strategy
        self.caveats = (
            f"rwkv {importlib.metadata.version('rwkv')} casts every tensor to {self.dtype}, the "
            "group norm's too",
        )

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Token ids of a text."""
        first = [self._bos] if (self._add_bos if special is None else special) else []
        if self._folder is not None:
            return [*first, *self._folder.encode(text, special=False)]
        return [*first, *self._world.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        plain = [one for one in ids if one != self._bos]
        if self._folder is not None:
            return self._folder.decode(plain)
        return str(self._world.decodeBytes(plain).decode("utf-8", "replace"))

    def decode_special(self, token: int) -> str:
        """How BOS is written: it is not, in RWKV's world vocabulary."""
        return "" if self._folder is None else self._folder.decode_special(token)

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Of a folder's tokenizer; the world's tokens are bytes, and not all of them texts."""
        return {} if self._folder is None else self._folder.vocabulary

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the model has."""
        return {
            "strategy": self._strategy,
            "bos_token_id": self._bos,
            "add_bos_token": self._add_bos,
        }

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits of one text, from an empty state."""
        import torch

        with torch.inference_mode():
            rows, _ = self._model.forward(list(ids), None, full_output=True)
        found = rows.float().cpu().numpy()
        if found.ndim == 1:  # of a single token
            found = found[None]
        return np.asarray(found[first:], dtype=np.float32)

    def close(self) -> None:
        """Let go of the model."""
        self._model = None
