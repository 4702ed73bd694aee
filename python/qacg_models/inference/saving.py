"""Saving a trained model as a model folder, and uploading such a folder to the Hugging Face hub."""

import tempfile
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.inference.trained_card import write_card
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.models.base import ASPECT_SENTIMENT
from qacg_models.runs.calibration import UNCALIBRATED, write_calibration
from qacg_models.runs.record import RECORD_NAME, RUN_NAME, write_record, write_run_file
from qacg_models.utils.atomic_files import atomic_folder, explain_write_errors
from qacg_models.utils.quiet import hidden_library_bars

# The files of a model folder that `download` fetches.
FILES = ("*.json", "*.safetensors", "README.md", RUN_NAME)


def save_trained(trained: TrainedModel, folder: Path | str) -> None:
    """Writes a model folder atomically; an existing model folder is replaced.

    The weights in memory are saved. run.yaml has the options of the training, but not the paths of the training data.
    Side effects: `declare_task` changes the model's configuration, and the tokenizer in memory loses its truncation and
    padding.

    Raises:
        InputError: the model was loaded with int8; `folder` is a file, or a folder that is neither empty nor a model
            folder; or a file cannot be written.
    """
    folder = Path(folder)
    if trained.int8:
        raise InputError("int8: expected a model in float to save, got one in int8. Load it without int8.")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD_NAME).is_file()):
        raise InputError(
            f"{folder}: expected a new or empty folder, or a model folder, got other files. Choose another folder."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder.parent}: cannot be created ({error.strerror}). Choose another folder.") from None
    with explain_write_errors(folder.resolve().parent), atomic_folder(folder) as new:
        _write(trained, new)


def declare_task(trained: TrainedModel) -> None:
    """Stores contexts, maximum length and temperatures in the model's configuration, where the pipeline reads them."""
    trained.model.config.task_specific_params = {
        ASPECT_SENTIMENT: {
            "contexts": list(trained.contexts),
            "max_length": trained.record.max_length,
            "temperatures": list(trained.calibration.temperatures),
        }
    }


@hidden_library_bars()
def _write(trained: TrainedModel, new: Path) -> None:
    record = trained.record
    declare_task(trained)
    trained.model.save_pretrained(new)
    # `encode_examples` sets truncation and padding, which the saved tokenizer should not have.
    trained.tokenizer.backend_tokenizer.no_truncation()
    trained.tokenizer.backend_tokenizer.no_padding()
    trained.tokenizer.save_pretrained(new)
    if trained.calibration != UNCALIBRATED:
        write_calibration(new, trained.calibration)
    write_run_file(new / RUN_NAME, [], record.data_options, record.options, [record.options.seed])
    write_record(new / RECORD_NAME, record)
    write_card(new, trained)


def upload(trained: TrainedModel, repo_id: str, *, private: bool | None, token: str | bool | None, message: str) -> str:
    """Uploads a model to a repository of the Hugging Face hub; creates the repository if it does not exist.

    Args:
        trained: the model.
        repo_id: name of the repository, such as "me/hotel-reviews".
        private: whether a new repository is private; None: the default of the hub.
        token: access token of the hub; True or None: the stored token; False: no token.
        message: message of the commit.

    Returns:
        The URL of the commit.

    Raises:
        InputError: the model was loaded with int8, or a file of the temporary folder cannot be written.
        Exception: huggingface_hub cannot create the repository or upload the folder. Its error is raised
            unchanged: OSError, ValueError, or an error of its HTTP client.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        save_trained(trained, model)
        hub = HfApi(token=token)
        name = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        return str(hub.upload_folder(repo_id=name, folder_path=model, commit_message=message))


def download(name: str, *, revision: str | None, token: str | bool | None) -> Path:
    """Downloads a model from the Hugging Face hub, and returns the folder of its local copy.

    Args:
        name: name of the repository, such as "me/hotel-reviews".
        revision: branch, tag or commit; None: the main branch.
        token: access token of the hub; True or None: the stored token; False: no token.

    Raises:
        InputError: the download failed.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{name}: no such folder, and the download from the hub failed: {reason}") from None
