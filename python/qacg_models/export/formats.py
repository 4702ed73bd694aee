"""The formats of exported files."""

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

from qacg_models.errors import InputError


@dataclass(frozen=True)
class ExportFormat:
    """A format of exported files.

    Attributes:
        suffix: suffix of file names, with the dot.
        module: dotted name of the module with `write`, `load` and `RUNTIME`.
        packages: import names of required packages in addition to torch.
        int8: whether the module has `write_int8`, which writes linear layers in int8.
    """

    suffix: str
    module: str
    packages: tuple[str, ...] = ()
    int8: bool = False

    def load_module(self, int8: bool = False) -> ModuleType:
        """Imports and returns the module.

        Args:
            int8: whether int8 linear layers are requested.

        Raises:
            InputError: a package is not installed, or the format has no int8 and `int8` is True.
        """
        if int8 and not self.int8:
            having = " or ".join(name for name, known in FORMATS.items() if known.int8)
            raise InputError(f"int8: expected False for {self.suffix} files, got True. Use --to {having}.")
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(
                f"to: expected the packages {', '.join(missing)}, which are not installed. Run pip install"
                f" {' '.join(missing)}."
            )
        return importlib.import_module(self.module)


FORMATS = {
    "onnx": ExportFormat(".onnx", "qacg_models.export.onnx_file", ("onnx", "onnxruntime", "onnxscript"), int8=True),
    "torch-export": ExportFormat(".pt2", "qacg_models.export.torch_file"),
}
