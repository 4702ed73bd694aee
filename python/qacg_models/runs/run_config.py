"""Options of a run from --config (YAML or JSON) and --set, and run.yaml, which a run writes to its output folder."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from qacg_models.data import DataOptions
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import describe_default
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.option_fields import format_value
from qacg_models.utils.plain_text import lone_surrogate, read_text

RUN_NAME = "run.yaml"


def read_run_file(path: Path | str) -> dict[str, object]:
    """Reads the options of a run file.

    Returns:
        The value of each option by name, of the type in `option_types`. Options with the value null are left out.

    Raises:
        InputError: the file cannot be read, is not a mapping in YAML or JSON, names an unknown option, or has a value
            of another type or with a lone surrogate.
    """
    import yaml

    path = Path(path)
    try:
        content = yaml.safe_load(read_text(path))  # JSON is YAML too
    except RecursionError:
        raise InputError(f"{path}: expected option names with values, got YAML that is nested too deep.") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or an impossible number or date
        raise InputError(f"{path}: cannot be read as YAML or JSON ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected option names with values, got a {type(content).__name__}.")
    return checked_options(content, path)


def checked_options(content: dict, source: Path | str, names: Sequence[str] | None = None) -> dict[str, object]:
    """Returns options with values of the type in `option_types`; options with the value None are left out.

    Args:
        content: values by name.
        source: the file or flag that has the options, for errors.
        names: the options that are allowed; None: all.

    Raises:
        InputError: an option is unknown, or has a value of another type or with a lone surrogate.
    """
    kinds = option_types()
    known = list(kinds) if names is None else names
    for name, value in content.items():
        if name not in known:
            raise InputError(f"{source}: unknown option {name!r}. Available: {', '.join(known)}.")
        if value == "":
            raise InputError(
                f"{source}: {name}: expected a value, got none. {describe_options().get(name, '')}".strip()
            )
    return {name: _typed(source, name, value, kinds[name]) for name, value in content.items() if value is not None}


def write_run_file(
    path: Path, data: Sequence[Path], data_options: DataOptions, options: TrainingOptions, seeds: list[int]
) -> None:
    """Writes all options of a run, given or resolved, except the output folder.

    Args:
        path: path of the file.
        data: files or folder of the data; empty for data from memory, which `--config` cannot read again.
        data_options: options for reading the data.
        options: options of training, from `resolve_options`; the seed is not written.
        seeds: seeds of all models.

    Raises:
        InputError: the file cannot be written.
    """
    import yaml

    paths = [str(source) for source in data]
    content: dict[str, object] = {"data": paths[0] if len(paths) == 1 else paths} if paths else {}
    content["seeds"] = seeds
    for source in (data_options, options):
        values = {field.name: getattr(source, field.name) for field in fields(source) if field.name != "seed"}
        content |= {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    with atomic_write(path) as handle:
        handle.write(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def option_types() -> dict[str, type]:
    """Returns the type of every option of a run file, by name."""
    kinds: dict[str, type] = {"data": list, "output": str, "seeds": list}
    for field in fields(DataOptions):
        kinds[field.name] = field.metadata["kind"]
    for field in fields(TrainingOptions):
        if field.name != "seed":
            kinds[field.name] = field.metadata["kind"]
    return kinds


def describe_options() -> dict[str, str]:
    """Returns the meaning, values and default of every option that reads data or trains, by name."""
    found = {}
    for field in (*fields(DataOptions), *fields(TrainingOptions)):
        choices, default = field.metadata["choices"], field.default
        values = f" Values: {', '.join(choices)}." if choices else ""
        known = describe_default(field.name) if default is None else format_value(default)
        text = field.metadata["help"]
        found[field.name] = f"{text[0].upper()}{text[1:]}.{values}" + (f" Default: {known}." if known else "")
    return found


def _typed(source: Path | str, name: str, value: object, kind: type) -> object:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and (half := lone_surrogate(text)):
            raise InputError(
                f"{source}: {name}: expected text that UTF-8 can encode, got {half}, half of a character. Remove it."
            )
    # YAML reads 2e-5 as a text, because it has no decimal point.
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return float(value)
    if name == "data" and isinstance(value, str):
        return [value]
    if kind is list and isinstance(value, list):
        if name != "seeds":
            return [str(item) for item in value]
        wrong = [item for item in value if isinstance(item, bool) or not isinstance(item, int)]
        if wrong:
            raise InputError(f"{source}: seeds: expected integers, got {wrong[0]!r}.")
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{source}: {name}: expected a value of type {kind.__name__}, got {value!r}.")
    return value
