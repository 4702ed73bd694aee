"""Tile tables: loading, validation, saving, selection and tuning. Needs neither Triton nor a GPU."""

import json
import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from processes import run_python

from qacg_kernels import tune
from qacg_kernels.backends import triton
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.backends.triton.tile_tables import KEYS
from qacg_kernels.call.problem import Residuals
from qacg_kernels.functional import problem_of
from qacg_kernels.testing.inputs import Case, make_inputs


def record():
    return json.loads((tile_tables.SHIPPED / "sm_90.json").read_text())


@pytest.fixture(autouse=True)
def empty_caches():
    clear_caches()
    yield
    clear_caches()


def clear_caches():
    """Tables are read again, as in a new process."""
    for cached in (tile_tables._found, tile_tables._tuned, triton._gpu_is_there, triton._without_table):
        cached.cache_clear()


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Simulates an H200; returns a function that changes its architecture (NVIDIA's or AMD's) and its shared memory."""
    found = {}

    def change(architecture, kibibytes):
        amd = isinstance(architecture, str)
        monkeypatch.setattr(torch.version, "hip", "7.1" if amd else None)
        found["capability"] = (9, 0) if amd else architecture  # that of an MI200
        found["properties"] = SimpleNamespace(
            shared_memory_per_block_optin=1024 * kibibytes,
            shared_memory_per_block=1024 * kibibytes,
            gcnArchName=architecture,
        )
        clear_caches()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found["capability"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 (simulated)")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found["properties"])
    monkeypatch.setenv("QACG_TRITON_TABLES", str(tmp_path))
    change((9, 0), 227)
    return change


def _as_before_kinds(entry):
    """Changes an entry to the fields of the first tables, which had two kinds of call."""
    entry["busy"] = entry.pop("kind") != "plain"


@pytest.mark.parametrize("architecture", tile_tables.shipped_architectures())
def test_shipped_tables_have_one_entry_per_key(architecture):
    table = tile_tables.shipped(architecture)
    assert table.architecture == architecture
    assert (table.measured or {}).get("gpu") == ("NVIDIA H200" if architecture == "sm_90" else None)
    assert [entry.key for entry in table.entries] == list(KEYS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: _as_before_kinds(r["entries"][3]), "fields of a tile table, got others .*'busy'"),
        (lambda r: r["entries"][3].pop("num_stages"), "fields of a tile table, got others .*'num_stages'"),
        (lambda r: r["entries"][3].update(block_m=48), "block_m: expected one of 16, .*, got 48"),
        (lambda r: r["entries"][3].update(num_warps=True), "num_warps: expected one of .*, got True"),
        (
            lambda r: r["entries"].pop(3),
            r"entries: expected one for \('whole_row_forward', 16, 128, 'plain'\).*, got 0",
        ),
        (lambda r: r["entries"].append(r["entries"][3]), "entries: expected one for .*, got 2"),
        (lambda r: r.update(architecture="gfx942"), r"registers: expected 0 \(no limit\) in all entries of an AMD GPU"),
    ],
)
def test_damaged_table_raises(change, message):
    damaged = record()
    change(damaged)
    with pytest.raises(ValueError, match=message):
        tile_tables.parse(json.dumps(damaged))


def test_saved_table_is_read_back_without_other_files(tmp_path):
    path = tmp_path / "new" / "gpu.json"
    table = replace(tile_tables.shipped("sm_90"), measured={"gpu": "H200"})
    tile_tables.save(table, path)
    assert tile_tables.load(path, "sm_90") == table
    assert list(path.parent.iterdir()) == [path]


def test_saved_tables_are_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("QACG_TRITON_TABLES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = tmp_path / "qacg_kernels" / "triton" / "nvidia-h200-simulated.json"
    assert tile_tables.saved_path("NVIDIA H200 (simulated)") == expected


def test_user_without_home_folder_gets_shipped_tables(gpu, monkeypatch):
    def unknown(path):
        raise RuntimeError("Could not determine home directory.")  # by Path.home() for a uid without an entry

    monkeypatch.setattr(tile_tables.Path, "home", classmethod(unknown))
    for name in ("QACG_TRITON_TABLES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert tile_tables.saved_path("GPU") is None
    assert tile_tables.table_for(torch.device("cuda", 0)) == tile_tables.shipped("sm_90")


def _cut_short(path):
    path.write_text(json.dumps(record())[:1000])


def _of_two_kinds(path):
    old = record()
    for entry in old["entries"]:
        _as_before_kinds(entry)
    path.write_text(json.dumps(old))


def _foreign(path):
    path.write_text(json.dumps(record() | {"architecture": "sm_80"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut_short, ".*; delete the file or tune again"),
        (_of_two_kinds, "expected the fields of a tile table, got others .*'busy'.*; delete the file or tune again"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), ".*can't decode byte 0xff.*; delete the file or tune again"),
        (_foreign, "architecture: expected 'sm_90', that of this GPU, got 'sm_80'; delete the file or tune again"),
        (lambda path: path.mkdir(), "Is a directory; make the file readable, delete it or tune again"),
    ],
)
def test_damaged_tuned_table_warns_once_and_is_ignored(gpu, tmp_path, damage, message):
    path = tmp_path / "nvidia-h200-simulated.json"
    damage(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in (0, 0, 1):  # GPUs of the same name share the file
            assert tile_tables.table_for(torch.device("cuda", index)) == tile_tables.shipped("sm_90")
            source = tile_tables.source_of(torch.device("cuda", index))
    (warning,) = caught
    assert re.search(f"shipped tiles are used: {re.escape(str(path))}: {message}", str(warning.message))
    assert source.startswith("shipped tiles of sm_90")
    assert re.search(message, source)


def test_tuned_table_takes_precedence(gpu, tmp_path):
    device = torch.device("cuda", 0)
    assert tile_tables.table_for(device) == tile_tables.shipped("sm_90")
    assert "shipped tiles of sm_90, partly measured on NVIDIA H200" in tile_tables.source_of(device)
    own = tile_tables.shipped("sm_90")
    own = replace(own, entries=(replace(own.entries[0], num_warps=2), *own.entries[1:]), measured={})
    tile_tables.save(own, tmp_path / "nvidia-h200-simulated.json")
    clear_caches()
    assert tile_tables.table_for(device) == own
    assert "tuned for this GPU" in tile_tables.source_of(device)


@pytest.mark.parametrize(
    ("architecture", "kibibytes", "nearest"),
    [
        ((8, 6), 99, "sm_80"),
        ((9, 0), 227, "sm_90"),
        ((10, 3), 227, "sm_100"),
        ((12, 0), 99, "sm_80"),
        ("gfx942:sramecc+:xnack-", 64, "gfx942"),
        ("gfx950:xnack-", 160, "gfx942"),
    ],
)
def test_unknown_gpu_uses_nearest_older_table_that_fits(architecture, kibibytes, nearest, gpu):
    gpu(architecture, kibibytes)
    device = torch.device("cuda", 0)
    assert triton.missing() == triton.not_for(device) == []
    assert tile_tables.table_for(device).architecture == nearest
    source = tile_tables.source_of(device)
    assert nearest in source
    assert ("nearest older" in source) == (architecture not in ((9, 0), "gfx942:sramecc+:xnack-"))


@pytest.mark.parametrize(
    ("architecture", "kibibytes", "reason"),
    [
        ((7, 5), 64, "architecture: expected 'sm_80' or newer, got 'sm_75'"),
        ((8, 6), 48, "shared memory per block: expected 101376 bytes or more, got 49152"),
        ("gfx90a:sramecc+", 64, "architecture: expected 'gfx942' or newer, got 'gfx90a'"),
        ("gfx1100", 64, "architecture: expected one related to sm_80, sm_90, sm_100, gfx942, got 'gfx1100'"),
    ],
)
def test_gpu_without_a_table_is_not_supported(architecture, kibibytes, reason, gpu):
    gpu(architecture, kibibytes)
    assert triton.not_for(torch.device("cuda", 0)) == [reason]


@pytest.mark.parametrize(("architecture", "by_parts"), [("sm_90", True), ("gfx942", False)])
def test_float32_is_multiplied_whole_on_amd_gpus(architecture, by_parts):
    launch = pytest.importorskip("qacg_kernels.backends.triton.launch")
    inputs = make_inputs(Case("call", batch=1, queries=40), torch.float32)
    with tile_tables.trial(tile_tables.shipped(architecture)):
        plan = launch.LaunchPlan(problem_of(*inputs.arguments(), **inputs.options))
    assert plan.config("tiled_forward")[0].by_parts is by_parts


@pytest.mark.parametrize(("hip", "expected"), [(None, True), ("7.1", False)], ids=["CUDA", "ROCm"])
def test_tf32_is_not_used_in_builds_for_rocm(hip, expected, monkeypatch):
    launch = pytest.importorskip("qacg_kernels.backends.triton.launch")
    from triton_builds import products_in_tf32

    monkeypatch.setattr(torch.version, "hip", hip)
    with products_in_tf32(True):
        assert launch.multiplies_in_tf32(torch.zeros(1)) is expected


def test_entries_are_selected_by_width_head_size_and_kind():
    table = tile_tables.shipped("sm_90")
    for head_dim, expected in ((1, 64), (64, 64), (65, 128), (200, 256)):
        entry = table.entry("tiled_forward", torch.float16, head_dim, "masked")
        assert entry.key == ("tiled_forward", 16, expected, "masked")
    longest = table.entry("whole_row_forward", torch.float32, 64, "plain").block_n
    for keys, expected in ((0, False), (longest, True), (longest + 1, False)):
        assert table.takes_whole_rows("whole_row_forward", torch.float32, 64, "plain", 9, keys) == expected
    assert not table.takes_whole_rows("whole_row_backward", torch.bfloat16, 64, "plain", 129, 4)
    assert not table.takes_whole_rows("whole_row_forward", torch.float64, 64, "plain", 9, 9)


class PTXASError(Exception):
    """An error such as Triton's, whose classes derive from Exception."""


def test_tuning_keeps_the_fastest_candidate_that_runs(monkeypatch, capsys):
    base = tile_tables.shipped("sm_90")
    key, other = KEYS[0], KEYS[5]
    expected = tune._comparable(base, key)[-1]
    saved, compiled = [], []
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(tune.time, "monotonic", lambda: next(clock))

    def measure(table, entry):
        assert entry in table.entries
        assert entry in compiled
        if entry.num_warps == 4:
            raise PTXASError("ptxas died")
        return 1.0 if entry == expected else 2.0

    def prepare(pairs):
        compiled.extend(entry for _, entry in pairs)

    table = tune.with_fastest_tiles(base, [key, other], measure, prepare, saved.append, end=1.0)
    assert table.entries[0] == expected
    assert table.entries[1:] == base.entries[1:]
    assert saved == [table]
    _, second = capsys.readouterr().out.splitlines()
    assert "unchanged, the time limit is reached" in second


@pytest.mark.parametrize("kind", tile_tables.KINDS)
def test_tuning_measures_a_call_of_the_entrys_kind(kind):
    entry = tile_tables.shipped("sm_90").by_key["whole_row_forward", 16, 64, kind]
    problem, _ = tune.example(entry, torch.device("cpu"))
    assert tile_tables.kind_of(problem) == kind


def test_tuning_ignores_small_gains():
    base = tile_tables.shipped("sm_90")

    def measure(table, entry):
        return 1.0 if entry == base.entries[0] else 0.98

    assert tune.with_fastest_tiles(base, [KEYS[0]], measure, len, str, end=float("inf")) == base


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.full
def test_tuning_without_gpu_exits_with_2():
    assert "expected an NVIDIA or AMD GPU, got none" in run_python("-m", "qacg_kernels.tune", status=2).stderr


def test_tuning_without_time_saves_no_table(gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    tune.main(["--seconds", "0"])
    assert "nothing was measured, so no table is saved" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 168])
def test_register_limit_is_passed_to_the_compiler(limit):
    first_calls = pytest.importorskip("qacg_kernels.backends.triton.first_calls")
    shipped, options = tile_tables.shipped("sm_90"), []
    table = replace(shipped, entries=(replace(shipped.entries[0], registers=limit), *shipped.entries[1:]))
    inputs = make_inputs(Case("call", batch=1, heads=2, queries=16, head_dim=64), torch.bfloat16)
    with tile_tables.trial(table):
        problem = problem_of(*inputs.arguments())
        first_calls.run_in_python(problem, Residuals(False, False), lambda *given: options.append(given[4]))
    assert [given.get("maxnreg", 0) for given in options] == [limit]
