"""Finding a checkpoint: a local path, or a repository of the Hugging Face hub."""

from dataclasses import dataclass
from pathlib import Path

from qacg_models.checkpoints.files import SAFETENSORS, TORCH
from qacg_models.checkpoints.source import CONFIG_NAMES


@dataclass(frozen=True)
class HubOptions:
    """Options of a download from the hub, with the names of transformers' from_pretrained."""

    cache_dir: str | Path | None = None
    force_download: bool = False
    local_files_only: bool = False
    token: str | bool | None = None
    revision: str = "main"


def locate(
    name: str | Path, *, subfolder: str, use_safetensors: bool | None, variant: str | None, options: HubOptions
) -> Path:
    """Returns the file or folder of a checkpoint; downloads the checkpoint if `name` is no existing path.

    Only weights and configuration are downloaded.

    Args:
        name: a path, or the name of a repository on the hub.
        subfolder: folder of the checkpoint inside the folder or repository; "": that folder or repository itself.
        use_safetensors: True for safetensors files only, False for torch files only; None prefers safetensors.
        variant: infix of file names as in transformers, such as "fp16" for `model.fp16.safetensors`; None: no infix.
        options: options of the download.

    Raises:
        OSError: the path does not exist, and the download failed.
    """
    if Path(name).exists():
        return Path(name) / subfolder
    from huggingface_hub import snapshot_download

    inside = f"{subfolder}/" if subfolder else ""
    infix = f".{variant}" if variant else ""
    patterns = {
        True: [f"{inside}model{infix}*.safetensors", f"{inside}model.safetensors.index{infix}.json"],
        False: [f"{inside}pytorch_model{infix}*.bin", f"{inside}pytorch_model.bin.index{infix}.json"],
    }
    configurations = [inside + config for config in CONFIG_NAMES]
    for safetensors in (True, False) if use_safetensors is None else (use_safetensors,):
        try:
            copy = snapshot_download(
                str(name),
                allow_patterns=configurations + patterns[safetensors],
                cache_dir=options.cache_dir,
                force_download=options.force_download,
                local_files_only=options.local_files_only,
                token=options.token,
                revision=options.revision,
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise OSError(f"{name}: no such file or folder, and the download from the hub failed: {reason}") from error
        folder = Path(copy) / subfolder
        if any(path.suffix in (SAFETENSORS if safetensors else TORCH) for path in folder.glob("*")):
            break
    return folder
