"""The number of texts that `qacg predict` and `qacg evaluate` truncate."""

import json

import pytest
from interrupted_runs import interrupted
from qacg_models.cli.program import main
from qacg_models.sentiment.encoding import encode_examples
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.predictor import Predictor, describe_truncation
from qacg_models.sentiment.trained_model import load_trained
from table_files import write_table
from untrained import OWN, write_model

SHORT, LONG = "service is slow", "the food was great but the bill was not " * 9
ADVICE = "--by sentence and --by document read the whole text"


def _write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module", params=[{}, {"context_standalone": True}], ids=["pair", "standalone"])
def trained(request, tmp_path_factory):
    return load_trained(write_model(tmp_path_factory.mktemp("truncation") / "model", layers=1, fields=request.param))


@pytest.mark.parametrize("aspect", OWN.aspects)
def test_truncation_count_equals_encoding(trained, aspect):
    rows = [Example(str(n), "slow " * n, OWN.context("", aspect), "", aspect, 0, n) for n in range(1, 60)]
    standalone = trained.model.config.context_standalone
    _, expected = encode_examples(rows, trained.tokenizer, trained.contexts, trained.record.max_length, standalone)
    assert 0 < expected < len(rows)
    cut, note = describe_truncation(trained, [(row.sentence, [row.context]) for row in rows], "advice")
    assert cut == expected and f": {expected} of 59 texts; advice" in note


def test_predict_prints_the_number_of_truncated_texts(model, tmp_path, capsys):
    source = _write_texts(tmp_path / "texts.jsonl", [SHORT, LONG, SHORT, LONG, LONG])
    arguments = ["predict", str(model), "--input", str(source)]
    length = load_trained(model).record.max_length
    expected = f"truncated to {length} tokens: 3 of 5 texts; {ADVICE}"
    assert main([*arguments, "--output", str(tmp_path / "out.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == expected
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 15, "standard output has predictions only"
    assert printed.err.splitlines()[-1] == expected
    assert main([*arguments, "--by", "document"]) == 0
    assert "truncated" not in capsys.readouterr().err


def test_predict_resumed_counts_all_texts(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("qacg_models.cli.commands.predict.WINDOW", 1)
    source, output = _write_texts(tmp_path / "texts.jsonl", [LONG, SHORT, LONG]), tmp_path / "out.csv"
    arguments = ["predict", str(model), "--input", str(source), "--output", str(output)]
    with interrupted(Predictor, "predict", 3):
        main(arguments)
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    assert ": 2 of 3 texts; " in capsys.readouterr().out


def test_predict_table_clips_long_texts(model, capsys):
    assert main(["predict", str(model), "--text", SHORT, LONG]) == 0
    out, error = capsys.readouterr()
    assert ": 1 of 2 texts; " in error
    assert out.splitlines()[5].startswith(f"{LONG[:77]}...  food ")
    assert all(len(line) < 160 for line in out.splitlines())


def test_evaluate_prints_the_number_of_truncated_texts(model, tmp_path, capsys):
    rows = [(text, aspect, "good") for text in (SHORT, LONG) for aspect in OWN.aspects]
    path = write_table(tmp_path / "rows.csv", [("text", "aspect", "label"), *rows])
    arguments = ["evaluate", str(model), "--data", str(path)]
    assert main(arguments) == 0
    assert ": 1 of 2 texts; train with a larger --max-length, or split the texts" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["truncated_texts"] == 1
