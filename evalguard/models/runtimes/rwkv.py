"""RWKV-7 by rwkv-pip: a ``.pth`` file, one sequence at a time."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.core.hyperparameters import HeldValue
from evalguard.core.settings import Value
from evalguard.core.trace_points import OUTPUT
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.arguments import check_device
from evalguard.models.runtimes.runtime import Logits, Runtime, RuntimeArguments, Visit
from evalguard.models.runtimes.tokenizer import TextTokenizer, TokenizedRuntime, open_tokenizer

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LONGEST = 4096  # a recurrent model reads any length; windows of whole texts need one


def load(arguments: RuntimeArguments) -> Runtime:
    """Load a ``.pth`` file.

    model_args: ``pretrained`` (the file, or a folder with one), ``strategy`` (``cpu fp32``, ``cuda
    bf16``), ``tokenizer`` (a folder; default: RWKV's world vocabulary), ``add_bos_token`` (default:
    as the tokenizer does), ``prefix_token_id``, ``max_length``.

    Raises:
        UsageError: no such file, strategy or device.
        EvaluationError: it is no RWKV-7.
    """
    path = _checkpoint(arguments.path())
    strategy = str(arguments.take("strategy", "cpu fp32"))
    check_strategy(strategy)
    named = arguments.take("tokenizer")
    prefix = arguments.take_whole("prefix_token_id", least=0)
    add_bos = arguments.take_flag("add_bos_token")
    longest = arguments.take_whole("max_length", _LONGEST)
    arguments.check_all_taken()
    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    folder = find_world_folder() if named is None else Path(str(named))
    tokenizer = open_tokenizer(folder, trust_remote_code=arguments.code_allowed)
    return RWKV7(path, strategy, tokenizer, add_bos=add_bos, prefix=prefix, longest=longest)


def check_strategy(strategy: str, *, check: Callable[[str], object] = check_device) -> None:
    """Refuse a device or a dtype that is none.

    Args:
        check: raises UsageError for a device; the default also for one that is not here.

    Raises:
        UsageError: naming it.
    """
    device, _, kind = strategy.partition(" ")
    reason = f"'{strategy}' is not known" if kind not in _DTYPES else ""
    if not reason:
        try:
            check(device)
        except UsageError as error:
            reason = str(error)
    if reason:
        raise UsageError(
            f"model_args.strategy: {reason}",
            hint=f"DEVICE and one of {', '.join(_DTYPES)}, e.g. cpu fp32",
            target="model_args.strategy",
        )


def find_world_folder() -> Path:
    """Where package rwkv has its vocabulary; nothing of the package is run.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec("rwkv")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'rwkv'", name="rwkv")
    return Path(spec.origin).parent


def _checkpoint(path: Path) -> Path:
    if path.is_file():
        return path
    checkpoints = sorted(path.glob("*.pth"))
    if len(checkpoints) != 1:
        raise UsageError(
            f"{path} has {len(checkpoints)} .pth files", hint="name one in model_args.pretrained"
        )
    return checkpoints[0]


class RWKV7(TokenizedRuntime):
    """rwkv-pip's model of version 7."""

    def __init__(
        self,
        path: Path,
        strategy: str,
        tokenizer: TextTokenizer,
        *,
        add_bos: bool | None,
        prefix: int | None,
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
        self.files = (path, *tokenizer.files)
        super().__init__(tokenizer, add_bos=add_bos, prefix=prefix)
        self.max_length = longest
        self.vocabulary_size = int(self._model.args.vocab_size)
        self.dtype, self.device = _DTYPES[kind], device
        self.parameters = sum(int(tensor.numel()) for tensor in self._model.z.values())
        self._strategy = strategy
        self.caveats = (
            f"rwkv {importlib.metadata.version('rwkv')} casts every tensor to {self.dtype}, the "
            "group norm's too",
        )

    @property
    def effective(self) -> Mapping[str, Value]:
        """What the model has."""
        return {"strategy": self._strategy}

    def held_values(self) -> Sequence[HeldValue]:
        """Its sizes, which it reads off the weights, their dtype, and the epsilons of its code."""
        from evalguard.models.hyperparameters_read import read_named_values

        epsilons = self._read_unscripted([0, 0], lambda _point, _values: None)

        sizes = {"n_layer": "n_layer", "n_embd": "n_embd", "head_dim": "head_size",
                 "vocab_size": "vocab_size"}  # fmt: skip
        sizes_by_name = {name: getattr(self._model.args, own) for name, own in sizes.items()}
        return [
            *read_named_values({**sizes_by_name, "dtype": self.dtype}, prefix="args"),
            *(
                HeldValue(name="norm_eps", value=epsilon, module=module, source="eps")
                for module, epsilon in epsilons.items()
            ),
        ]

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits of one text, from an empty state."""
        import torch

        with torch.inference_mode():
            rows, _ = self._model.forward(list(ids), None, full_output=True)
        logits = rows.float().cpu().numpy()
        if logits.ndim == 1:  # of a single token
            logits = logits[None]
        return np.asarray(logits[first:], dtype=np.float32)

    def visit_activations(self, ids: Sequence[int], visit: Visit) -> None:
        """Read a text, and show what flows through every weight that is a module of fla's."""
        self._read_unscripted(ids, visit)

    def _read_unscripted(self, ids: Sequence[int], visit: Visit) -> Mapping[str, float]:
        """Read a text in Python; the epsilons of its norms, by module."""
        import torch

        model = self._model
        read = _import_unscripted().RWKV_x070.forward_seq
        from evalguard.models.runtimes.rwkv_points import WeightVisitor

        visitor = WeightVisitor(model.z, visit)
        with torch.inference_mode(), visitor:
            rows, _ = read(model, list(ids), model.generate_zero_state(), True)
        visit(OUTPUT, lambda: np.atleast_2d(rows.float().cpu().numpy()))
        return visitor.epsilons

    def close(self) -> None:
        """Let go of the model."""
        self._model = None


def _import_unscripted() -> Any:
    """Import rwkv's file once more with its functions in Python, where they can be looked into.

    They are compiled otherwise, whatever RWKV_JIT_ON says.
    """
    import torch

    jit: Any = torch.jit
    names = {"ScriptModule": torch.nn.Module, "script_method": _same, "script": _same}
    before = {name: getattr(jit, name) for name in names}
    spec: Any = importlib.util.find_spec("rwkv.model")
    module = importlib.util.module_from_spec(spec)
    try:
        for name, plain in names.items():
            setattr(jit, name, plain)
        spec.loader.exec_module(module)
    finally:
        for name, compiled in before.items():
            setattr(jit, name, compiled)
    return module


def _same(function: Any) -> Any:
    return function
