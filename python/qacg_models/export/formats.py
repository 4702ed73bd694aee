"""The files that a model can be exported to."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

from qacg_models.errors import InputError


@dataclass(frozen=True)
class ExportFormat:
    """One kind of file.

    Attributes:
        suffix: of its name.
        module: writes it (`write`) and runs it (`load`).
        packages: what that needs beside torch.
        int8: whether the module can write it with linear layers in int8 (`write_int8`).
    """

    suffix: str
    module: str
    packages: tuple[str, ...] = ()
    int8: bool = False

    def load_module(self, int8: bool = False) -> ModuleType:
        """The module, which imports the packages.

        Raises:
            InputError: one is not installed, with the command that installs it; or int8 is wanted, and the format
                does not have it.
        """
        if int8 and not self.int8:
            having = " or ".join(name for name, known in FORMATS.items() if known.int8)
            raise InputError(f"int8: got it for a {self.suffix} file, which has none; wanted --to {having} beside it")
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(f"to: needs {', '.join(missing)}, not installed here; pip install {' '.join(missing)}")
        return importlib.import_module(self.module)


FORMATS = {
    "onnx": ExportFormat(".onnx", "qacg_models.export.onnx_file", ("onnx", "onnxruntime", "onnxscript"), int8=True),
    "torch-export": ExportFormat(".pt2", "qacg_models.export.torch_file"),
}
