"""The number of CPU threads, and their sleep while they wait for one another."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import torch
from model_sizes import SMALL_FLAGS
from qacg_models import BatchPredictor
from qacg_models.cli.program import main
from qacg_models.sentiment import trained_model
from qacg_models.sentiment.estimators import AspectSentiment
from qacg_models.utils import machine as devices
from untrained import write_model

OPENMP = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Writes the file of a control group that `cpu_quota` reads."""
    monkeypatch.setattr(devices, "_CGROUP", tmp_path)

    def write(text):
        (tmp_path / "cpu.max").write_text(f"{text}\n", encoding="ascii")

    return write


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("max 100000", None), ("", None)],
)
def test_cpu_quota_of_a_control_group_is_read(cgroup, text, cores):
    cgroup(text)
    assert devices.cpu_quota() == cores


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("quota", "count", "expected"), [("1", 0, 1), ("1", None, 1), ("9", 0, 3), ("1", 2, 2)])
def test_cpu_threads_default_stays_within_the_quota(cgroup, three_threads, quota, count, expected):
    cgroup(f"{quota}00000 100000")
    with devices.cpu_threads(count):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 3


def number_in_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_cpu_threads_of_concurrent_threads_are_restored(three_threads):
    """The second thread starts while the first has one thread of torch, and ends after it."""
    inside, ended = threading.Event(), threading.Event()

    def first():
        with devices.cpu_threads(1):
            inside.set()
            assert started.wait(60)
        ended.set()

    def second():
        assert inside.wait(60)
        with devices.cpu_threads(2):
            started.set()
            assert ended.wait(60)
            with devices.cpu_threads(1):  # as an evaluation within a training
                pass
            return torch.get_num_threads()

    started = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(first), pool.submit(second)]
        assert [run.result() for run in runs] == [None, 2]
    assert (number_in_a_new_thread(), torch.get_num_threads()) == (3, 3)


@pytest.mark.skipif(not OPENMP, reason="torch has no libgomp here")
@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_openmp_threads_sleep_unless_configured(given, policy):
    """In a new process: OpenMP reads the variable once, when it is loaded, and prints its value."""
    program = (
        "import ctypes, sys; from qacg_models.utils.machine import let_threads_sleep; let_threads_sleep();"
        "ctypes.CDLL(sys.argv[1])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "TRUE", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    done = subprocess.run(
        [sys.executable, "-c", program, str(OPENMP[0])], env=environment, capture_output=True, text=True, check=True
    )
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


def test_let_threads_sleep_after_torch_changes_nothing(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # so that what the test sets is undone
    monkeypatch.delenv("OMP_WAIT_POLICY")
    devices.let_threads_sleep()
    assert "OMP_WAIT_POLICY" not in os.environ


def test_train_prints_and_records_its_thread_count(cgroup, three_threads, small_data, tmp_path, capsys):
    cgroup("100000 100000")
    flags = [*SMALL_FLAGS, "--max-steps=1", "--threads=0"]
    assert main(["train", "--data", str(small_data), "--output", str(tmp_path / "model"), *flags]) == 0
    assert capsys.readouterr().out.count(", 1 CPU thread (--batch-size, --threads)\n") == 1
    assert json.loads((tmp_path / "model" / "training.json").read_text())["machine"]["threads"] == 1


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize(
    ("flags", "line"),
    [([], "512 rows per batch, 1 CPU thread"), (["--threads=2", "--batch-size=5"], "5 rows per batch, 2 CPU threads")],
)
def test_batch_and_threads_are_printed_once(command, flags, line, tmp_path, capsys, monkeypatch):
    seen, plain = [], trained_model.predict_logits

    def spy(*given):
        seen.append((given[4], torch.get_num_threads()))
        return plain(*given)

    monkeypatch.setattr(trained_model, "predict_logits", spy)
    model, data = write_model(tmp_path / "m"), tmp_path / "data.csv"
    data.write_text("text,aspect,label\ngood food,food,good\nbad food,food,bad\n")
    record = json.loads((model / "training.json").read_text())
    record["options"]["threads"] = 1
    (model / "training.json").write_text(json.dumps(record))
    asked = {"predict": ["--text", "good food"], "evaluate": ["--data", str(data)]}[command]
    capsys.readouterr()  # without the bar of transformers for the model that is written
    assert main([command, str(model), *asked, *flags]) == 0
    assert capsys.readouterr().err == f"at most {line}, float32 (--batch-size, --threads, --precision)\n"
    assert seen == [(5, 2) if flags else (512, 1)]


@pytest.mark.parametrize("loads", ["parent", "child"])
def test_forked_process_predicts_with_one_thread(three_threads, tmp_path, loads):
    model, frame = write_model(tmp_path / "m"), pd.DataFrame({"text": ["good food"]})
    predict = BatchPredictor(model) if loads == "child" else AspectSentiment.from_pretrained(model, threads=1).predict
    torch.randn(300, 300).softmax(-1)  # starts torch's threads, which a fork lacks
    child = os.fork()
    if child == 0:
        predict(frame)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    if not done[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert done == (child, 0)


def test_aspect_sentiment_predicts_with_given_threads(tmp_path):
    ask = AspectSentiment.from_pretrained(write_model(tmp_path / "m"), threads=2)
    assert ask.trained.thread_count == 2
