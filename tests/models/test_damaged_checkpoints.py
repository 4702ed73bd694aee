"""Damaged, truncated, foreign and hostile files raise an error with file and tensor, and no code runs."""

import json
import os
import pickle
import subprocess
import warnings
from collections import defaultdict

import pytest
import torch
from errors import raises
from qacg_models.checkpoints.files import open_source, read_tensors, weights_file
from qacg_models.errors import CheckpointError
from safetensors.torch import save_file

TENSORS = {
    "bert.embeddings.word_embeddings.weight": torch.arange(60.0).view(5, 12),
    "bert.embeddings.LayerNorm.weight": torch.ones(12),
    "classifier.bias": torch.zeros(3),
}


def refuse(path, *parts):
    """Checks that reading a file raises an error with its path and `parts`."""
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path)
    text = str(caught.value)
    for part in (str(path), *parts):
        assert part in text, text
    return text


class Call:
    """An object whose unpickling calls a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("kind", ["archive", "old", "plain pickle", "beside tensors"])
def test_read_tensors_never_runs_pickled_code(kind, tmp_path):
    trap, path = Call(os.mkdir, str(tmp_path / "trace")), tmp_path / "pytorch_model.bin"
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps(trap, protocol=2))
    elif kind == "beside tensors":
        torch.save({**TENSORS, "trap": trap}, path)
    else:
        torch.save({"trap": trap}, path, _use_new_zipfile_serialization=kind == "archive")
    text = refuse(path, "Pickled code never runs")
    if kind != "plain pickle":
        assert "mkdir" in text
    assert not (tmp_path / "trace").exists()
    # Other loading runs the code.
    torch.load(path, weights_only=False) if kind != "plain pickle" else pickle.loads(path.read_bytes())
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("function", [exec, eval, subprocess.check_call, getattr])
def test_read_tensors_ignores_other_pickled_objects(function, old, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "checkpoint.pt"
    make = f"__import__('os').mkdir({str(trace)!r})"
    arguments = {subprocess.check_call: (["mkdir", str(trace)],), getattr: ([], "append")}.get(function, (make,))
    content = {"model": TENSORS, "options": Call(function, *arguments), "optimizer": defaultdict(dict, step=3)}
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    found = read_tensors(path)
    assert found.keys() == TENSORS.keys() and all(torch.equal(found[name], TENSORS[name]) for name in found)
    assert not trace.exists()
    torch.save({**TENSORS, "options": content["options"]}, path, _use_new_zipfile_serialization=not old)
    refuse(path, f"expected a tensor for each name, got {function.__name__} for 'options'")
    assert not trace.exists()
    if function is not getattr:  # other loading runs the code
        torch.load(path, weights_only=False)
        assert trace.exists()


def test_truncated_safetensors_file_raises(tmp_path):
    whole, path = tmp_path / "whole.safetensors", tmp_path / "model.safetensors"
    save_file(TENSORS, whole)
    content = whole.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert refuse(path, "is damaged or truncated").endswith("Copy or download the file again.")
    path.write_bytes(content + b"more")
    refuse(path, "is damaged")
    path.write_bytes(content)
    assert read_tensors(path).keys() == TENSORS.keys()


def test_safetensors_file_with_damaged_header_raises(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    refused = 0
    for at in range(8 + length):
        broken = bytearray(content)
        broken[at] ^= 0x10
        path.write_bytes(broken)
        try:
            found = read_tensors(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            # A flipped bit inside a name or the padding leaves a well-formed file.
            assert len(found) in (2, 3)
    assert refused > length // 3


@pytest.mark.parametrize("old", [False, True])
def test_truncated_torch_file_raises(old, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=not old)
    content = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in range(0, len(content) - 30, 7):
            path.write_bytes(content[:length])
            refuse(path, "is damaged")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"version https://example.invalid/spec/v1\nsize 12\n"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_file_of_another_kind_raises(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    refuse(tmp_path / name, "is damaged")


def test_read_tensors_bad_file_or_content_raises(tmp_path):
    refuse(tmp_path / "model.safetensors", "no such file")
    for name in ("model.h5", "bert_model.ckpt.index"):
        (tmp_path / name).write_bytes(b"")
        refuse(tmp_path / name, "expected a file that ends in .safetensors, .bin, .pt")
    path = tmp_path / "pytorch_model.bin"
    torch.save([torch.ones(2)], path)
    refuse(path, "expected a dictionary of tensors, got list")
    torch.save({"weight": torch.ones(2), "steps": 3}, path)
    refuse(path, "expected a tensor for each name, got int for 'steps'")
    torch.save({7: torch.ones(2)}, path)
    refuse(path, "expected a tensor for each name, got Tensor for 7")


def test_read_tensors_checks_shards(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    names = list(TENSORS)

    def write_files(weight_map, **files):
        for path in tmp_path.glob("*.safetensors"):
            path.unlink()
        for stem, expected in files.items():
            save_file({name: TENSORS[name] for name in expected}, tmp_path / f"{stem}.safetensors")
        index.write_text(json.dumps({"weight_map": weight_map}))

    shards = {names[0]: "a.safetensors", names[1]: "b.safetensors", names[2]: "b.safetensors"}
    write_files(shards, a=names[:1], b=names[1:])
    assert all(torch.equal(read_tensors(index)[name], TENSORS[name]) for name in names)
    write_files(shards, a=names[:1])
    with raises("CheckpointError: b.safetensors: no such file"):
        read_tensors(index)
    write_files(shards, a=names[:1], b=names[1:2])
    with raises("CheckpointError: b.safetensors: expected classifier.bias as in model.safeten"):
        read_tensors(index)
    write_files({names[0]: "../a.safetensors"}, a=names)
    with raises("CheckpointError: expected shards in the same folder, got '../a.safetensors'"):
        read_tensors(index)
    for content, message in (
        ("{", "is not JSON"),
        ("[]", "expected an object, got []"),
        ("{}", "weight_map: expected an object with the file of each tensor, got none"),
        ('{"weight_map": [1, 2, 3, 4, 5, 6, 7]}', "file of each tensor, got [1, 2, 3, 4, 5, 6, ...]"),
        ('{"weight_map": {"a": 3}}', "file of each tensor, got {'a': 3}"),
    ):
        index.write_text(content)
        refuse(index, message)


def test_weights_file_selects_one_file(tmp_path):
    def write_files(*names):
        for path in tmp_path.iterdir():
            path.unlink()
        for name in names:
            (tmp_path / name).write_bytes(b"")

    write_files()
    with raises("CheckpointError: expected model.safetensors or ..., got no file of weights"):
        weights_file(tmp_path)
    write_files("pytorch_model.bin", "model.safetensors", "training_args.bin")
    assert weights_file(tmp_path).name == "model.safetensors"
    write_files("pytorch_model.bin", "model.fp16.safetensors")
    assert weights_file(tmp_path).name == "pytorch_model.bin"
    write_files("best_checkpoint.bin", "training_args.bin", "notes.txt")
    assert weights_file(tmp_path).name == "best_checkpoint.bin"
    write_files("checkpoint_1.bin", "checkpoint_2.bin")
    with raises("CheckpointError: one other file of weights, got checkpoint_1.bin, checkp"):
        weights_file(tmp_path)


def test_open_source_errors_name_the_file(tmp_path):
    with raises("CheckpointError: no: no such file or folder"):
        open_source(tmp_path / "no")
    save_file({"wte.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with raises("CheckpointError: model.safetensors: expected a BERT"):
        open_source(tmp_path)
    (tmp_path / "config.json").write_text("{")
    save_file(TENSORS, tmp_path / "model.safetensors")
    with raises("CheckpointError: config.json: is not JSON"):
        open_source(tmp_path)
