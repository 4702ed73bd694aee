import json
import subprocess
import sys

import pytest
from qacg_models.cli import main
from qacg_models.data import sample_directory
from qacg_models.inference import ModelFolderError, load_trained
from qacg_models.options import TrainingOptions
from safetensors.torch import load_file, save_file

SIZES = [
    "--hidden-size=16",
    "--layers=1",
    "--heads=2",
    "--intermediate-size=32",
    "--epochs=2",
    "--batch-size=16",
]


@pytest.fixture(scope="module")
def model(small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "model"
    assert main(["train", "--data", str(small_data), "--output", str(folder), *SIZES]) == 0
    return folder


def fails(capsys, arguments, *parts):
    """Runs a command that must fail with status 2 and one line on stderr that holds `parts`."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    for part in parts:
        assert part in captured.err
    return captured.err


def test_train_prints_data_results_and_choice(small_data, tmp_path, capsys):
    arguments = ["train", "--data", str(small_data), "--output", str(tmp_path / "m"), "--seed", "4", *SIZES]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "train: " in out
    assert "240 rows (None " in out
    assert "sentences shared between splits: none" in out
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    figure = f"{100 * record['metrics']['test']['aspect_auc']:.1f}"
    (line,) = [line for line in out.partition("\ntest\n")[2].splitlines() if line.startswith("QACG-BERT ")]
    assert line.split()[3] == figure
    assert "chosen by strict accuracy on dev" in out
    assert record["options"] | {"seed": 4, "hidden_size": 16, "epochs": 2} == record["options"]


def test_every_option_reaches_training(monkeypatch, small_data, tmp_path):
    seen = {}

    def spy(dataset, output, options, **kwargs):
        seen.update(vars(options), **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr("qacg_models.training.train", spy)
    wanted = {
        "epochs": 3, "batch_size": 5, "learning_rate": 0.25, "balance": 0.75, "weight_decay": 0.5,
        "dropout": 0.125, "initializer_range": 0.5, "max_length": 33, "hidden_size": 24, "layers": 3,
        "heads": 6, "intermediate_size": 48, "vocab_size": 99, "pooler": "cls", "context_projection": "head",
        "context_standalone": False, "attention": "eager", "threads": 2, "seed": 11,
    }  # fmt: skip
    assert set(wanted) == set(vars(TrainingOptions()))
    flags = []
    for name, value in wanted.items():
        flag = name.replace("_", "-")
        flags += ["--no-" + flag] if value is False else ["--" + flag, str(value)]
    assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "m"), *flags]) == 130
    assert seen == wanted | {"tokenizer": None, "overwrite": False}


def test_evaluate_reproduces_what_training_stored(model, small_data, capsys):
    for split in ("dev", "test"):
        assert main(["evaluate", str(model), "--data", str(small_data), "--split", split]) == 0
        assert "the same figures, to the last digit, as training stored" in capsys.readouterr().out
    assert main(["evaluate", str(model), "--data", str(small_data), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    record = json.loads((model / "training.json").read_text())
    assert printed["QACG-BERT"] == record["metrics"]["test"]
    assert printed["majority"] == record["majority"]["test"]


def test_evaluate_says_when_figures_cannot_be_compared(model, small_data, capsys):
    assert main(["evaluate", str(model), "--data", str(sample_directory()), "--split", "dev"]) == 0
    assert "dev.tsv is not the file whose figures training stored" in capsys.readouterr().out
    assert main(["evaluate", str(model), "--data", str(small_data), "--split", "train"]) == 0
    assert "training stored no figures for train" in capsys.readouterr().out


def test_fused_and_eager_evaluate_alike(model, small_data, capsys):
    figures = []
    for attention in ("fused", "eager"):
        arguments = ["evaluate", str(model), "--data", str(small_data), "--json", "--attention", attention]
        assert main(arguments) == 0
        figures.append(json.loads(capsys.readouterr().out)["QACG-BERT"])
    for name in ("strict_accuracy", "aspect_auc"):
        assert figures[0][name] == pytest.approx(figures[1][name], abs=0.02)


def copy_with(small_data, folder, line, old, new):
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_bytes((small_data / f"{split}.tsv").read_bytes())
    path = folder / "train.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "old_and_new,reason",
    [
        (("location - 1 - safety", "location - 1 - parking"), "unknown context 'location - 1 - parking'"),
        (("\tNone", "\tnan"), "unknown label 'nan'"),
        (("\tNone", ""), "has 3 tab-separated fields, the header has 4"),
    ],
)
def test_bad_data_is_one_line_with_file_and_line(small_data, tmp_path, capsys, old_and_new, reason):
    line = next(
        number
        for number, text in enumerate((small_data / "train.tsv").read_text(encoding="utf-8").splitlines(), 1)
        if text.endswith("location - 1 - safety\tNone")
    )
    path = copy_with(small_data, tmp_path, line, *old_and_new)
    output = tmp_path / "model"
    fails(capsys, ["train", "--data", tmp_path, "--output", output], f"qacg train: {path}:{line}: ", reason)
    assert not output.exists()


def test_other_bad_input(model, small_data, tmp_path, capsys):
    train = ["train", "--data", small_data, "--output"]
    fails(capsys, ["train", "--data", tmp_path / "no", "--output", tmp_path / "m"], "no such folder")
    fails(capsys, [*train, model], "already exists", "--overwrite")
    fails(capsys, [*train, tmp_path, "--heads", 5], "hidden_size must be a multiple of heads")
    fails(capsys, [*train, tmp_path, "--tokenizer", tmp_path / "vocab.txt"], "no such tokenizer")
    fails(capsys, [*train, tmp_path, "--cased"], "--cased speaks of a vocabulary given with --tokenizer")
    fails(capsys, [*train, tmp_path, "--max-length", 2], "max_length must be at least")
    evaluate = ["evaluate", "--data", small_data]
    fails(capsys, [*evaluate, tmp_path / "no"], "no such folder")
    fails(capsys, [*evaluate, tmp_path], "has no training.json")
    fails(capsys, ["evaluate", model, "--data", tmp_path], "has no data in any known form")


def test_a_damaged_model_folder(model, small_data, tmp_path, capsys):
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    evaluate = ["evaluate", tmp_path, "--data", small_data]
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    fails(capsys, evaluate, "cannot be loaded", "model.safetensors: is cut off")
    (tmp_path / "model.safetensors").unlink()
    fails(capsys, evaluate, "has no model.safetensors")
    (tmp_path / "training.json").write_text("{")
    fails(capsys, evaluate, "training.json", "is no JSON")
    (tmp_path / "training.json").write_text('{"format": 99}')
    fails(capsys, evaluate, "is no training record of format 2")


def test_a_model_folder_that_lacks_a_tensor(model, tmp_path):
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(model / "model.safetensors")
    for removed, message in (
        ("classifier.bias", r"model\.safetensors: lacks 1 of the 2 head tensors .*classifier\.bias"),
        ("classifier.weight", r"(?s)is not what training wrote: .*missing +2\n +classifier\.weight"),
    ):
        del tensors[removed]
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelFolderError, match=message):
            load_trained(tmp_path)


def test_evaluate_refuses_contexts_the_model_never_saw(model, small_data, tmp_path, capsys):
    text = (small_data / "test.tsv").read_text(encoding="utf-8").replace("location - 1", "location - 7")
    (tmp_path / "test.tsv").write_text(text, encoding="utf-8")
    fails(
        capsys,
        ["evaluate", model, "--data", tmp_path],
        "test.tsv:2: unknown context 'location - 7 - general'",
    )


def test_a_vocabulary_of_ones_own(small_data, tmp_path, capsys):
    words = sorted(
        {word for line in (small_data / "train.tsv").open(encoding="utf-8") for word in line.split()}
    )
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(word.lower() for word in words)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    output = tmp_path / "model"
    arguments = ["train", "--data", small_data, "--output", output, "--tokenizer", vocabulary, *SIZES]
    assert main([str(argument) for argument in arguments]) == 0
    assert json.loads((output / "config.json").read_text())["vocab_size"] == len(pieces)
    assert main(["evaluate", str(output), "--data", str(small_data)]) == 0
    assert "the same figures" in capsys.readouterr().out


def test_info(capsys):
    assert main(["info", "--json"]) == 0
    assert "reference" in json.loads(capsys.readouterr().out)["backends"]
    assert main(["info"]) == 0
    assert "reference" in capsys.readouterr().out


def test_info_and_help_do_not_wait_for_heavy_imports():
    code = (
        "import sys; from qacg_models.cli import main; main(['info']);"
        " print([m for m in ('transformers', 'matplotlib', 'sklearn', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["train"], ["evaluate", "m"], ["train", "--epochs", "many"]]
)
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: qacg" in capsys.readouterr().err
