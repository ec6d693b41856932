"""What runtimes over torch share: the folder's tokenizer, dtype and device, and rows of logits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.hyperparameters import HeldValue
from evalguard.core.settings import Value
from evalguard.core.trace_points import OUTPUT
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.models.arguments import check_device
from evalguard.models.runtimes.runtime import Array, Logits, Runtime, RuntimeArguments, Visit
from evalguard.models.runtimes.tokenizer import TextTokenizer, TokenizedRuntime

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def hook_modules(root: Any, names: Mapping[str, str], visit: Visit) -> Iterator[None]:
    """Show the inputs and outputs of submodules while the block runs.

    A submodule's input is its first argument that holds floating-point numbers.

    Args:
        root: the torch module.
        names: what a submodule is called in the names of its points, by its path.
    """
    calls: dict[str, int] = {}
    handles = []

    def show(name: str, side: str, part: str, value: torch.Tensor) -> torch.Tensor | None:
        number = "" if calls[name] == 1 else f"#{calls[name]}"
        point = f"{name}{number}:{side}{part}"
        given = visit(point, lambda: to_numpy(value))
        return None if given is None else replace_values(given, value, point)

    def before(name: str) -> Callable[..., Any]:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return _replace_argument(args, kwargs, lambda value: show(name, "in", "", value))

        return hook

    def after(name: str) -> Callable[..., Any]:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            return _replace_outputs(output, lambda part, value: show(name, "out", part, value))

        return hook

    modules = dict(root.named_modules())
    try:
        for path, name in names.items():
            module = modules[path]
            # First, so that casts by hooks of the module's own are its own doing.
            handles.append(
                module.register_forward_pre_hook(before(name), prepend=True, with_kwargs=True)
            )
            handles.append(module.register_forward_hook(after(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def to_numpy(value: torch.Tensor) -> NDArray[np.float32]:
    """Return a tensor's values in float32."""
    values: NDArray[np.float32] = value.detach().float().cpu().numpy()
    return values


def replace_values(given: Array, value: torch.Tensor, point: str) -> torch.Tensor:
    """Return what is forced at a point as a tensor like the model's own.

    Raises:
        EvaluationError: it has another number of elements.
    """
    import torch

    if given.size != value.numel():
        raise EvaluationError(
            f"the value to be forced at {point} has shape {given.shape}, the model's own "
            f"{tuple(value.shape)}"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(given)).reshape(value.shape)
    return tensor.to(device=value.device, dtype=value.dtype)


def _is_values(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _replace_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], show: Callable[[Any], Any]
) -> Any:
    """Show the first argument that holds floating-point numbers; None where it stays."""
    for index, value in enumerate(args):
        if _is_values(value):
            given = show(value)
            return None if given is None else ((*args[:index], given, *args[index + 1 :]), kwargs)
    for name, value in kwargs.items():
        if _is_values(value):
            given = show(value)
            return None if given is None else (args, {**kwargs, name: given})
    return None


def _replace_outputs(output: Any, show: Callable[[str, Any], Any]) -> Any:
    """Show the outputs that hold floating-point numbers; None where they stay."""
    if _is_values(output):
        return show("", output)
    if not isinstance(output, tuple | list):
        return None
    replaced, tensors = list(output), 0
    for index, value in enumerate(output):
        if _is_values(value):
            given = show(f".{tensors}" if tensors else "", value)
            tensors += 1
            replaced[index] = value if given is None else given
    changed = any(new is not old for new, old in zip(replaced, output, strict=True))
    return type(output)(replaced) if changed else None


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
        logits: torch.Tensor = self.module(ids)
        return logits

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
        from evalguard.models.hyperparameters_read import read_model  # makes no score

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
