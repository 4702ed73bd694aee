"""Registration with transformers: model types, the pipeline, an attention implementation and its mask function.

transformers and the models take seconds to import. `import qacg_models` therefore only installs an import hook,
which registers this package in four modules of transformers after their import. If one of the four is already loaded,
it is changed at once. In both cases no model is imported.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from qacg_models.models.auto import MODELS, register_with
from qacg_models.modules.transformers_attention import NAME, fused_attention_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class LazyConfigurations(dict):
    """Configuration classes by model type; reading a class of this package imports it and registers its models.

    Args:
        known: the configuration classes that are already registered, by model type.
    """

    def __init__(self, known: dict[str, Any]):
        super().__init__(known)
        self.pending = {one.model_type: one.configuration for one in MODELS if one.model_type not in known}
        for model_type in self.pending:
            super().__setitem__(model_type, None)

    def __getitem__(self, model_type: str) -> Any:
        self._import(model_type)
        return super().__getitem__(model_type)

    def __setitem__(self, model_type: str, configuration: Any) -> None:
        self.pending.pop(model_type, None)
        super().__setitem__(model_type, configuration)

    def get(self, model_type: str, default: Any = None) -> Any:
        self._import(model_type)
        return super().get(model_type, default)

    def values(self) -> Any:
        self._import_all()
        return super().values()

    def items(self) -> Any:
        self._import_all()
        return super().items()

    def _import(self, model_type: str) -> None:
        configuration = self.pending.get(model_type)
        if configuration is not None:
            register_with(configuration)  # assigns the item

    def _import_all(self) -> None:
        for model_type in list(self.pending):
            self._import(model_type)


def _add_configurations(module: ModuleType) -> None:
    mapping = module.CONFIG_MAPPING
    mapping._extra_content = LazyConfigurations(mapping._extra_content)


def _add_pipeline(module: ModuleType) -> None:
    # aspect_pipeline registers the pipeline in its last statement. If aspect_pipeline is being imported, and has just
    # imported transformers.pipelines, this line does nothing.
    importlib.import_module("qacg_models.inference.aspect_pipeline")


def _add_attention(module: ModuleType) -> None:
    module.AttentionInterface.register(NAME, fused_attention_forward)


def _add_mask(module: ModuleType) -> None:
    module.AttentionMaskInterface.register(NAME, module.sdpa_mask)


_AFTER: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _add_configurations,
    "transformers.pipelines": _add_pipeline,
    "transformers.modeling_utils": _add_attention,
    "transformers.masking_utils": _add_mask,
}


def register_lazily() -> None:
    """Registers this package with transformers, without importing transformers.

    Each module in `_AFTER` gets the entries of this package: at once if it is loaded, otherwise after its import.
    """
    pending = {}
    for name, add in _AFTER.items():
        if name in sys.modules:
            add(sys.modules[name])
        else:
            pending[name] = add
    if pending:
        sys.meta_path.insert(0, _AfterImport(pending))  # type: ignore[arg-type]  # no ABC, whose import takes time


class _AfterImport:
    """A finder that calls a function after the import of each module in `pending`. Other finders do the import."""

    def __init__(self, pending: dict[str, Callable[[ModuleType], None]]):
        self.pending = pending

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.pending:
            return None
        import importlib.util

        add = self.pending.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _CallingLoader(spec.loader, add)
        return spec


class _CallingLoader:
    def __init__(self, loader: Any, add: Callable[[ModuleType], None]):
        self.loader, self.add = loader, add

    def __getattr__(self, name: str) -> Any:  # such as get_source
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.add(module)
