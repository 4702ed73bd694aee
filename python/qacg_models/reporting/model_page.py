"""The page of `qacg export --to page`: one file with a model that predicts labels of texts in a browser, offline."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from qacg_kernels import __version__
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.reporting.html_report import Section, page_html
from qacg_models.reporting.summary_page import READING, STYLE
from qacg_models.reporting.tokenizer_facts import tokenizer_facts
from qacg_models.runs.calibration import VALIDITY
from qacg_models.utils.atomic_files import atomic_write

SUFFIX = ".html"
RUNTIME_VERSION = "1.30.0"
RUNTIME_ARCHIVE = f"onnxruntime-web-{RUNTIME_VERSION}.tgz"
# The files of the npm package that the page contains, with their SHA-256.
_RUNTIME_FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
# The policy blocks connections. Only the runtime is loaded, from a blob that the page creates from its own content.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:;"
    " connect-src 'none'; form-action 'none'; base-uri 'none'"
)
_FOLDER = Path(__file__).with_name("page")
_SCRIPTS = ("wordpiece.js", "tables.js", "model_page.js")


@dataclass(frozen=True)
class Runtime:
    """The files of onnxruntime-web that a page contains.

    Attributes:
        script: the JavaScript module.
        wasm: the WebAssembly module.
    """

    script: bytes
    wasm: bytes


def read_runtime(path: Path) -> Runtime:
    """Reads the files of onnxruntime-web from the archive of its npm package.

    Args:
        path: path of `RUNTIME_ARCHIVE`, which `npm pack` writes.

    Raises:
        InputError: the file does not exist, cannot be read as such an archive, or has another version of the files.
    """
    advice = f"Run npm pack onnxruntime-web@{RUNTIME_VERSION}, and pass --runtime {RUNTIME_ARCHIVE}."
    if not path.is_file():
        raise InputError(f"runtime: expected the file {RUNTIME_ARCHIVE}, got none at {path}. {advice}")
    try:
        with tarfile.open(path) as archive:
            found = [archive.extractfile(f"package/dist/{name}").read() for name in _RUNTIME_FILES]
    except (tarfile.TarError, zlib.error, OSError, EOFError, KeyError, AttributeError) as error:
        raise InputError(
            f"runtime: expected {RUNTIME_ARCHIVE}, got {path}, which cannot be read as that file ({error}). {advice}"
        ) from None
    for content, (name, digest) in zip(found, _RUNTIME_FILES.items()):
        if hashlib.sha256(content).hexdigest() != digest:
            expected = f"the {name} of onnxruntime-web {RUNTIME_VERSION}"
            raise InputError(f"runtime: expected {expected}, got another file in {path}. {advice}")
    return Runtime(*found)


def page_facts(trained: TrainedModel) -> dict:
    """Returns the labels, contexts, tokenizer and other data that the page requires to predict, in JSON types.

    Raises:
        InputError: the model's tokenizer is not BERT's.
    """
    task = trained.task
    return {
        "labels": task.labels,
        "has_absent": task.has_absent,
        "has_targets": task.has_targets,
        "aspects": task.aspects,
        "targets": trained.record.targets,
        "contexts": trained.contexts,
        "context_standalone": getattr(trained.model.config, "context_standalone", False),
        "max_length": trained.record.max_length,
        "pad_token_id": trained.tokenizer.pad_token_id,
        "temperatures": trained.calibration.temperatures,
        "text_column": trained.data_options.text_column,
        "reading": READING,
        "tokenizer": tokenizer_facts(trained.tokenizer),
    }


def write_model_page(path: Path, trained: TrainedModel, facts: dict, model: bytes, runtime: Runtime) -> None:
    """Writes the page with the model, the data and the runtime to one file.

    Args:
        path: path of the file.
        trained: the model; the page states its title and its labels.
        facts: the result of `page_facts`.
        model: the model as ONNX, with the inputs and the output of `qacg export --to onnx`.
        runtime: the result of `read_runtime`.

    Raises:
        InputError: the file cannot be written.
    """
    texts = Section("Texts", [(_FOLDER / "inputs.html").read_text(encoding="utf-8")])
    summary = Section("Summary", ['<div id="summary"><p class="note">No texts have been predicted.</p></div>'])
    predictions = Section(
        "Predictions", ['<div id="predictions"><p class="note">No texts have been predicted.</p></div>']
    )
    about = Section("About this page")
    labels, size = ", ".join(trained.task.labels), len(model) / 1e6
    about.text(f"Model: {trained.title}, int8, {size:.1f} MB; labels: {labels}. Written by qacg {__version__}.")
    about.text(
        "The page predicts the same labels as qacg predict --int8, except where two labels have similar probabilities."
    )
    about.text(VALIDITY)
    about.text(
        "The page contains the model and its runtime. Its content security policy forbids connections to other"
        " computers."
    )
    about.text(
        f"The runtime is ONNX Runtime Web {RUNTIME_VERSION}, copyright Microsoft Corporation, under the MIT license."
    )
    about.markup((_FOLDER / "runtime-license.html").read_text(encoding="utf-8"))
    # An unescaped "<" in a text could end the element.
    data = json.dumps(facts, ensure_ascii=False).replace("<", "\\u003c")
    about.markup(f'<script type="application/json" id="facts">{data}</script>')
    for name, content in (("runtime", runtime.script), ("wasm", runtime.wasm), ("model", model)):
        packed = base64.b64encode(gzip.compress(content, mtime=0)).decode("ascii")
        about.markup(f'<script type="application/octet-stream" id="{name}">{packed}</script>')
    style = STYLE + (_FOLDER / "model_page.css").read_text(encoding="utf-8")
    # The script is a block, so that it defines no global names.
    script = "\n".join(
        ['"use strict";\n{', *((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS), "}\n"]
    )
    lead = "Predicts the opinion on each aspect of a text. Everything runs in this page: no text leaves this computer."
    page = page_html(
        "Aspect sentiment", lead, [texts, summary, predictions, about], style=style, script=script, policy=_POLICY
    )
    with atomic_write(path) as handle:
        handle.write(page)
