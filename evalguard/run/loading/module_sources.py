"""Models that ``module:`` settings take modules from, loaded beside the one that takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from evalguard.conversion.as_loaded import AsLoaded
from evalguard.core.settings import Value, Variant
from evalguard.errors import SettingError
from evalguard.run.loading.loading_facts import PLACEMENT_ARGUMENTS

# Loads a variant on a device and edits it as its settings say; its torch module.
LoadEdited = Callable[[Variant], Any]


@dataclass(slots=True, kw_only=True)
class ModuleSources:
    """Other models, each loaded once and given back as it was loaded.

    What belongs to a model as a whole is that of the model which takes modules: dtype, device and
    attention implementation. Masks are made outside of the layers, for one implementation.

    Attributes:
        load: loads a model with its own settings, as any other.
        were_loaded: whether one ever was, in this process.
    """

    load: LoadEdited
    _files: Mapping[str, Value] = field(default_factory=dict)
    _loaded: dict[str, tuple[Any, AsLoaded]] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    were_loaded: bool = field(default=False, init=False)

    def renew(self, files: Mapping[str, Value] | None) -> None:
        """Give every model back as it was loaded; one that cannot be is loaded anew when needed.

        Args:
            files: digests of the files of all that are needed now; None: they cannot be known.
        """
        known = {name: self._files.get(name, digest) for name, digest in (files or {}).items()}
        if files is None or known != files:
            self._loaded.clear()  # of other files by now, or nobody knows
        self._files = {**self._files, **(files or {})}
        for key in self._used & self._loaded.keys():
            if not self._loaded[key][1].restore():
                del self._loaded[key]
        self._used.clear()

    def model(self, source: Variant, into: HostModel) -> Any:
        """The torch module of a model whose modules fit into another one.

        Raises:
            EvaluationError: as loading does.
            SettingError: one of its settings did not take.
        """
        wanted = into.adapt(source)
        key = wanted.digest
        if key not in self._loaded:
            self.were_loaded = True
            model = self.load(wanted)
            self._loaded[key] = model, AsLoaded(SimpleNamespace(), model)
        self._used.add(key)
        return self._loaded[key][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostModel:
    """What a model that takes modules imposes on those that it takes them from.

    Attributes:
        dtype: in which most of its weights are computed with, before settings edit it.
        device: on which all of it is.
        attention: its attention implementation, "" where it has none.
        trust_remote_code, allow_pickle: leaves that were given for it.
    """

    dtype: str
    device: str
    attention: str
    trust_remote_code: bool
    allow_pickle: bool

    @classmethod
    def of(cls, model: Any, variant: Variant, setting: str) -> HostModel:
        """Read them off a model as it was loaded, before it is edited.

        Raises:
            SettingError: it is none that can take modules.
        """
        from transformers import PreTrainedModel

        from evalguard.models.tracing.weights import computing_dtype

        if not isinstance(model, PreTrainedModel):
            raise SettingError(
                f"setting '{setting}': modules of a {type(model).__name__} cannot be replaced",
                hint="module: settings work with transformers models, without peft",
                setting=setting,
            )
        devices = {str(tensor.device) for tensor in model.parameters()}
        if len(devices) != 1 or "meta" in devices:
            raise SettingError(
                f"setting '{setting}': modules cannot be replaced in a model that lies on "
                f"{', '.join(sorted(devices)) or 'no device'}",
                hint="load it on one device, without offloading or parallelize",
                setting=setting,
            )
        return cls(
            dtype=computing_dtype(model),
            device=devices.pop(),
            attention=str(getattr(model.config, "_attn_implementation", None) or ""),
            trust_remote_code=variant.trust_remote_code,
            allow_pickle=variant.allow_pickle,
        )

    def adapt(self, source: Variant) -> Variant:
        """A source as it is to be loaded for this model."""
        arguments: dict[str, Value] = {
            name: value
            for name, value in source.model_args.items()
            if name not in PLACEMENT_ARGUMENTS
        }
        arguments |= {"dtype": self.dtype, "device": self.device}
        if self.attention:
            arguments["attn_implementation"] = self.attention
        return replace(
            source,
            model_args=arguments,
            settings=tuple(one for one in source.settings if str(one.target) not in _OF_HOST),
            trust_remote_code=self.trust_remote_code,
            allow_pickle=self.allow_pickle,
        )


_OF_HOST = frozenset(f"model_args.{name}" for name in ("dtype", "device", "attn_implementation"))
