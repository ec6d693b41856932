"""A model's tensors visited, and replaced, at the borders of its modules during one pass."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evalguard.core.trace_points import ROOT, PointName
from evalguard.errors import EvaluationError
from evalguard.models.failures import quote_error

if TYPE_CHECKING:
    import torch

    from evalguard.core.trace_points import ModelInputs

# Arguments that hold what a module works on, where it is called with keywords only.
_MAIN_ARGUMENTS = ("hidden_states", "input", "x", "inputs_embeds", "input_ids")


@dataclass(frozen=True, slots=True)
class PointEvent:
    """A tensor at a border of a module.

    Attributes:
        name: canonical, under the base's names. module: under the base's name.
        code: the module whose code made the tensor: the module itself for an output, for an input
            the innermost module whose code is running.
        leaf: whether the module has no children.
        given: points whose own tensors, not replaced, that code was called with.
    """

    name: str
    module: str
    code: str
    leaf: bool
    given: tuple[str, ...] = ()


# Sees a tensor; what it returns takes the tensor's place.
Visit = Callable[[PointEvent, "torch.Tensor"], "torch.Tensor | None"]


def run_pass(
    model: torch.nn.Module,
    inputs: ModelInputs,
    visit: Visit,
    *,
    names: Mapping[str, str] | None = None,
    rows: int = 1,
) -> None:
    """Run the model once without gradients, caches and dropout, and visit every point.

    The model is left as it was: its hooks, modes and settings.

    Args:
        names: the base's name of each of the model's modules; others are not visited. None: all,
            under their own names.
        rows: how many copies of the sequence the batch has.

    Raises:
        EvaluationError: the model failed; with the module in which it did.
    """
    import torch

    passage = _Calls(visit)
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(1))
    with ExitStack() as left_as_it_was:
        left_as_it_was.enter_context(torch.no_grad())
        left_as_it_was.enter_context(_evaluating(model))
        left_as_it_was.enter_context(_without_cache(model))
        for own_name, module in model.named_modules():
            name = (own_name or ROOT) if names is None else names.get(own_name or ROOT)
            for handle in passage.hook(module, name):
                left_as_it_was.callback(handle.remove)
        arguments = {key: _as_input(value, like, rows) for key, value in inputs.items()}
        try:
            model(**arguments)
        except Exception as error:  # a model's own code may raise anything
            if isinstance(error, EvaluationError):
                raise
            innermost = passage.stack[-1] if passage.stack else ROOT
            raise EvaluationError(
                f"{type(model).__name__} failed in {innermost}: {type(error).__name__}",
                quotes=quote_error(error),
                hint="trace inputs that the model accepts on its own: "
                f"it was called with {', '.join(sorted(inputs))}",
            ) from error


@dataclass(slots=True)
class _Calls:
    """Hooks of one pass: who is running, and how often each module has been called."""

    visit: Visit
    stack: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    given: list[tuple[str, ...]] = field(default_factory=list)
    kept: dict[int, tuple[weakref.ref[torch.Tensor], str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def hook(self, module: torch.nn.Module, name: str | None) -> Iterator[Any]:
        if name is None:
            return
        leaf = next(module.children(), None) is None

        def before(_module: object, args: Any, kwargs: Any) -> Any:
            code = self.stack[-1] if self.stack else ROOT
            code_given = self.given[-1] if self.given else ()
            self.counts[name] += 1
            self.stack.append(name)
            self.numbers.append(self.counts[name])
            self.given.append(self._name_given(args, kwargs))
            if name == ROOT:
                return None
            return self._visit_input(name, code, leaf, code_given, args, kwargs)

        def after(_module: object, _args: Any, _kwargs: Any, output: Any) -> Any:
            call = self.numbers.pop()
            self.stack.pop()
            return self._visit_outputs(name, call, leaf, self.given.pop(), output)

        yield module.register_forward_pre_hook(before, with_kwargs=True)
        yield module.register_forward_hook(after, with_kwargs=True)

    def _name_given(self, args: Any, kwargs: Any) -> tuple[str, ...]:
        """Name the points whose tensors these are, or are views of."""
        named = []
        for _, value in tensors_of((args, kwargs)):
            reference, point = self.kept.get(_storage(value), (lambda: None, ""))
            if reference() is not None:
                named.append(point)
        return tuple(named)

    def _visit_input(
        self, name: str, code: str, leaf: bool, given: tuple[str, ...], args: Any, kwargs: Any
    ) -> Any:
        key = _main_argument(args, kwargs)
        if key is None:
            return None
        value = args[key] if isinstance(key, int) else kwargs[key]
        point = str(PointName(name, "in", call=self.numbers[-1]))
        event = PointEvent(point, name, code, leaf, given)
        replacement = self.visit(event, value)
        if replacement is None:
            return None
        if isinstance(key, int):
            return (*args[:key], replacement, *args[key + 1 :]), kwargs
        return args, {**kwargs, key: replacement}

    def _visit_outputs(
        self, name: str, call: int, leaf: bool, given: tuple[str, ...], output: Any
    ) -> Any:
        changed: dict[tuple[Any, ...], torch.Tensor] = {}
        for index, (path, value) in enumerate(tensors_of(output)):
            point = str(PointName(name, "out", index, call))
            replacement = self.visit(PointEvent(point, name, name, leaf, given), value)
            if replacement is not None:
                changed[path] = replacement
            else:
                self.kept[_storage(value)] = (weakref.ref(value), point)
        return _with_tensors(output, changed) if changed else None


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _is_value(value: object) -> bool:
    """Whether this is a tensor of numbers (of no truth values) that a point can hold."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and not value.is_complex()
        and value.dtype is not torch.bool
        and value.numel() > 0
    )


def _main_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    for index, value in enumerate(args):
        if _is_value(value):
            return index
    known = [key for key in _MAIN_ARGUMENTS if _is_value(kwargs.get(key))]
    value_keys = (key for key, value in kwargs.items() if _is_value(value))
    return known[0] if known else next(value_keys, None)


def tensors_of(output: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Give the tensors in what a module was given or gives, each with the way to it."""
    if _is_value(output):
        yield path, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from tensors_of(value, (*path, key))
    elif isinstance(output, (tuple, list)):
        for index, value in enumerate(output):
            yield from tensors_of(value, (*path, index))


def _with_tensors(
    output: Any, changed: Mapping[tuple[Any, ...], torch.Tensor], path: tuple[Any, ...] = ()
) -> Any:
    """Build the output again, of the same types, with other tensors at some paths."""
    if path in changed:
        return changed[path]
    if isinstance(output, Mapping):
        values = {key: _with_tensors(v, changed, (*path, key)) for key, v in output.items()}
        return type(output)(**values)
    if isinstance(output, (tuple, list)):
        items = [_with_tensors(v, changed, (*path, i)) for i, v in enumerate(output)]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    return output


def _as_input(value: Any, like: torch.Tensor, rows: int) -> torch.Tensor:
    """Give an input with so many rows; numbers that are no integers in the model's dtype."""
    import torch

    tensor = torch.as_tensor(value).to(like.device)
    if tensor.is_floating_point():
        tensor = tensor.to(like.dtype)
    return tensor.repeat(rows, *[1] * (tensor.ndim - 1)) if rows > 1 else tensor


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _without_cache(model: torch.nn.Module) -> Iterator[None]:
    """Switch caches off in the model's configuration, and in those inside it."""
    seen: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", None):
            seen[id(config)] = config
    for config in seen.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in seen.values():
            config.use_cache = True
