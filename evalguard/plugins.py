"""Trackers and recipes by name: evalguard's own, and those of other packages, by entry points.

A package brings one by an entry point ``name = "package.module:function"`` in the group of
``TRACKERS`` or ``RECIPES``. Reading names imports nothing of it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from evalguard.core.settings import Value
from evalguard.core.tracked_run import BUILT_IN_TRACKERS
from evalguard.errors import UsageError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A function that a name stands for.

    Attributes:
        function: ``package.module:function``.
        distribution: the installed package that brings it, with its version; "": evalguard.
    """

    function: str
    distribution: str = ""

    @property
    def origin(self) -> str:
        """Where it comes from: ``package.module:function of DISTRIBUTION VERSION``."""
        return f"{self.function} of {self.distribution or 'evalguard'}"

    def load(self) -> Callable[..., Any]:
        """Import it.

        Raises:
            RuntimeError: that failed; names where it comes from.
        """
        module, _, name = self.function.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            raise RuntimeError(
                f"{self.origin} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if not callable(function):
            raise RuntimeError(f"{self.origin} is no function")
        return function  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginKind:
    """What can be added by an entry point, and what evalguard has of it.

    Evalguard's own stand in a table, not among its entry points: those of an editable install are
    as old as the install, and ``--help`` would have to search all that is installed for them.

    Attributes:
        what: a word for one; ``group``: of entry points.
        built_in: name to function.
    """

    what: str
    group: str
    built_in: Mapping[str, str]

    def list_names(self) -> tuple[str, ...]:
        """All names, evalguard's own first."""
        return tuple(dict.fromkeys([*self.built_in, *sorted(self._installed())]))

    def find(self, name: str) -> Plugin:
        """Find what a name stands for; a name of evalguard's own stands for that.

        Raises:
            UsageError: for nothing, or two packages bring it.
        """
        if name in self.built_in:
            return Plugin(function=self.built_in[name])
        plugins = self._installed().get(name, [])
        if not plugins:
            raise UsageError(
                f"there is no {self.what} '{name}'{nearest(name, self.list_names())}",
                hint=f"there are {', '.join(self.list_names())}; installing a package that has an "
                f"entry point in {self.group} adds one",
            )
        if len(plugins) > 1:
            raise UsageError(
                f"{self.what} '{name}' is {' and '.join(plugin.origin for plugin in plugins)}",
                hint="uninstall one of them",
            )
        return plugins[0]

    def find_shadowed(self, name: str) -> tuple[Plugin, ...]:
        """Find what other packages bring under a name of evalguard's own, which is not used."""
        return tuple(self._installed().get(name, ())) if name in self.built_in else ()

    def list_installed(self) -> tuple[Plugin, ...]:
        """What other packages bring."""
        return tuple(plugin for plugins in self._installed().values() for plugin in plugins)

    def _installed(self) -> dict[str, list[Plugin]]:
        from importlib.metadata import entry_points  # it loads much, which --help does without

        by_name: dict[str, list[Plugin]] = {}
        for entry in entry_points(group=self.group):
            dist = entry.dist
            by_name.setdefault(entry.name, []).append(
                Plugin(
                    function=entry.value.partition("[")[0].strip(),
                    distribution=f"{dist.name} {dist.version}" if dist else "an unknown package",
                )
            )
        return by_name


TRACKERS = PluginKind(
    what="tracker",
    group="evalguard.trackers",
    built_in={name: tracker.function for name, tracker in BUILT_IN_TRACKERS.items()},
)
RECIPES = PluginKind(
    what="recipe",
    group="evalguard.recipes",
    built_in={
        "gguf": "evalguard.recipes.gguf:convert",
        "mergekit": "evalguard.recipes.mergekit:merge",
        "onnx": "evalguard.recipes.onnx:export",
        "rwkv7": "evalguard.recipes.rwkv7:convert",
        "torchao": "evalguard.recipes.torchao:quantise",
    },
)


def recipe_function(call: str) -> str:
    """Return the ``package.module:function`` that a recipe's ``call`` stands for.

    A call with a colon is that already, or a file's; a bare word is the name of a recipe. Nothing
    is imported.

    Raises:
        UsageError: there is no recipe of that name.
    """
    return call if ":" in call else RECIPES.find(call).function


def recipe_origin(function: str) -> str:
    """Say which other package has registered a function as a recipe; "" where none has."""
    origins = (
        plugin.distribution for plugin in RECIPES.list_installed() if plugin.function == function
    )
    return next(origins, "")


OWN_RECIPES = "evalguard.recipes."


def check_recipe_inputs(function: str, inputs: Mapping[str, Value]) -> None:
    """Refuse what one of evalguard's own recipes does not take: an input, or a kind of value.

    Recipes of others are not imported here: the process that builds checks their names.

    Raises:
        UsageError: naming the input.
    """
    if not function.startswith(OWN_RECIPES):
        return
    from pydantic import TypeAdapter, ValidationError

    module, _, name = function.rpartition(":")
    try:
        recipe = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return  # the build says which function is missing
    parameters = {n: p for n, p in inspect.signature(recipe).parameters.items() if n != "output"}
    hints = get_type_hints(recipe)
    for key, value in inputs.items():
        if key not in parameters:
            raise UsageError(
                f"recipe {function} has no input '{key}'{nearest(key, parameters)}",
                hint=f"its inputs: {', '.join(parameters)}",
            )
        try:
            TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise UsageError(
                f"input '{key}' of recipe {function} takes {parameters[key].annotation}, "
                f"not {value!r}"
            ) from error
