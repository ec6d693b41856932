"""What runtimes over torch share: the folder's tokenizer, dtype and device, and rows of logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.settings import Value
from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.core.tracing.points import OUTPUT
from evalguard.errors import UsageError, nearest
from evalguard.models.arguments import check_device
from evalguard.models.runtimes.points.activations import Visit
from evalguard.models.runtimes.points.torch_hooks import hook_modules, to_numpy
from evalguard.models.runtimes.runtime import Logits, Runtime, RuntimeArguments
from evalguard.models.runtimes.tokenized import TokenizedRuntime
from evalguard.models.runtimes.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch

_DTYPES = ("float32", "bfloat16", "float16", "float64")


class TorchRuntime(TokenizedRuntime):
    """A torch module with the tokenizer of a Hugging Face folder."""

    def __init__(
        self,
        module: Any,
        tokenizer: TextTokenizer,
        *,
        max_length: int,
        vocabulary_size: int,
        add_bos: bool | None = None,
        prefix: int | None = None,
    ) -> None:
        import torch

        self.module = module.eval()
        super().__init__(tokenizer, add_bos=add_bos, prefix=prefix)
        self.max_length, self.vocabulary_size = max_length, vocabulary_size
        sizes: dict[str, int] = {}
        for tensor in module.parameters():
            kind = type(tensor.data)  # a quantiser's own has the dtype of what it stands for
            name = str(tensor.dtype).removeprefix("torch.")
            name = name if kind is torch.Tensor else kind.__name__
            sizes[name] = sizes.get(name, 0) + tensor.numel()
        self.dtype = "+".join(sorted(sizes, key=lambda name: -sizes[name]))
        self.parameters = sum(sizes.values())
        first = next(module.parameters(), None)
        self.device = "cpu" if first is None else str(first.device)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of token ids, shape (1, n) -> (1, n, V)."""
        found: torch.Tensor = self.module(ids)
        return found

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits of one text."""
        import torch

        with torch.no_grad():  # quanto's 4-bit weights refuse inference_mode
            rows = self.forward(torch.tensor([list(ids)], device=self.device))[0, first:]
            return np.asarray(rows.float().cpu().numpy(), dtype=np.float32)

    def visit_activations(self, ids: Sequence[int], visit: Visit) -> None:
        """Read a text, and show the inputs and outputs of all modules that are points."""
        import torch

        with torch.no_grad(), hook_modules(self.module, self.point_names(), visit):
            logits = self.forward(torch.tensor([list(ids)], device=self.device))
        visit(OUTPUT, lambda: to_numpy(logits))

    def point_names(self) -> Mapping[str, str]:
        """What each submodule is called in the names of points, by its path."""
        return {path: path for path, _ in self.module.named_modules() if path}

    def held_values(self) -> Sequence[HeldValue]:
        """What modules, weights and config hold."""
        from evalguard.models.tracing.read_hyperparameters import read_model  # makes no score

        return read_model(self.module)

    def close(self) -> None:
        """Let go of the module."""
        self.module = None


def take_common(arguments: RuntimeArguments) -> dict[str, Any]:
    """Take the arguments that all runtimes over torch have.

    Returns:
        folder, dtype (a torch dtype or None), device, max_length, add_bos, prefix.

    Raises:
        UsageError: a dtype or a device that is none, or no folder.
    """
    import torch

    folder = arguments.path()
    named = arguments.take("dtype")
    if named not in (None, "auto", *_DTYPES):
        raise UsageError(
            f"model_args.dtype: '{named}' is no dtype here{nearest(str(named), _DTYPES)}",
            hint=f"one of: {', '.join(_DTYPES)}",
            target="model_args.dtype",
        )
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = arguments.take("device", arguments.device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    return {
        "folder": folder,
        "tokenizer": Path(str(arguments.take("tokenizer", str(folder)))),
        "dtype": None if named in (None, "auto") else getattr(torch, named),
        "device": device,
        "max_length": arguments.take_whole("max_length"),
        "add_bos": arguments.take_flag("add_bos_token"),
        "prefix": arguments.take_whole("prefix_token_id", least=0),
    }


def effective_dtype(runtime: Runtime) -> Mapping[str, Value]:
    """The dtype of most weights that are floating-point numbers, as an argument."""
    kinds = runtime.dtype.split("+")  # quantised weights are stored as integers
    return {"dtype": next((kind for kind in kinds if kind in _DTYPES), kinds[0])}
