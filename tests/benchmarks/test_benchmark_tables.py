"""Tables and the plot of speed-ups, from rows."""

from dataclasses import replace

import pytest
from benchmark_rows import ORIGIN, SMALL, memory_row, seconds_rows

from benchmarks import rows, table
from benchmarks.analysis import speedup_plot
from benchmarks.analysis.tables import markdown, of_machines
from benchmarks.cases.case import FORWARD_BACKWARD
from benchmarks.measure.ceiling import ceiling_row
from benchmarks.measure.side_by_side import time_rows
from benchmarks.providers.registry import PROVIDERS
from benchmarks.rows.selection import disturbance_note


def test_table_shows_times_speedups_and_holes():
    times = [
        *seconds_rows(eager=[0.200], cpu=[0.010]),
        *seconds_rows(replace(SMALL, mode=FORWARD_BACKWARD, dropout=0.1), eager=[0.0312], one_map=[0.0156]),
    ]
    assert markdown([*times, memory_row(50.0)]).splitlines() == [
        "| (B,H,L,D) | type | pass | dropout | eager, ms | cpu, ms | sdpa-one-map, ms |",
        "|---|---|---|---|---:|---:|---:|",
        "| (2,3,20,8) | float32 | forward | 0 | 200 | 10 (20.0x) |  |",
        "| (2,3,20,8) | float32 | forward+backward | 0.1 | 31.2 |  | 15.6 (2.0x) |",
        "",
        "| (B,H,L,D) | type | pass | dropout | provider | inputs, MB | output | saved | gradients | beyond them |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|",
        "| (1,12,8192,64) | float32 | forward+backward | 0 | cpu | 1.0 | 2.0 | 3.0 | 4.0 | 50.0 |",
        "",
        "Medians of interleaved runs, in brackets the speed-up over eager. Some CPU (R) 9000, 2 threads, "
        "kernels on avx512, avx512_bf16, torch 2.13.0, commit 0123456789ab, 2030-01-02.",
    ]
    assert len(markdown([memory_row(50.0)]).splitlines()) == 5


def test_table_shows_shares_of_the_ceiling_lengths_and_the_host():
    case = replace(SMALL, lengths="packed")
    (timed,) = time_rows(case, {"cpu": PROVIDERS["cpu"]}, {"cpu": [1e-3]}, 0.01, ORIGIN, 1e-2)
    assert timed.share_of_peak == pytest.approx(6 * case.products / 1e-3 / 1e9 / 1e-2, rel=1e-3)
    ceilings = [ceiling_row(name, "float32", "cpu", [rate], ORIGIN) for name, rate in (("a", 9.0), ("b", 8.0))]
    where = rows.case_fields(SMALL)
    host = rows.HostRow(ORIGIN, **where, provider="cpu", median_us=12.34, q1_us=12, q3_us=13, repeats=9)
    text = markdown([timed, host, *ceilings])
    assert f"| (2,3,20,8) packed | float32 | forward | 0 | 1 ({timed.share_of_peak:.0%}) |" in text
    assert "| (2,3,20,8) | float32 | forward | cpu | 12.3 | 12.0 to 13.0 |" in text
    assert "Fastest matrix products: a in float32: 9 GFLOP/s." in text
    assert "and the share of the matrix-product ceiling" in text


def test_table_refuses_to_mix_origins():
    mixed = [memory_row(1.0), replace(memory_row(1.0), origin=replace(ORIGIN, commit="fedcba987654"))]
    with pytest.raises(ValueError, match="different machines, versions or commits"):
        markdown(mixed)
    later = [memory_row(1.0), replace(memory_row(1.0), origin=replace(ORIGIN, taken="2030-01-02T03:05:00Z"))]
    assert markdown(later)


def test_machines_share_a_table_of_the_cases_that_all_have():
    other = replace(ORIGIN, machine=ORIGIN.machine | {"cpu": "Another"}, commit="fedcba987654")
    ours = [*seconds_rows(cpu=[0.010], one_map=[0.02]), *seconds_rows(replace(SMALL, dropout=0.1), cpu=[0.010])]
    theirs = [replace(row, origin=other) for row in seconds_rows(eager=[0.200], cpu=[0.010])]
    lines = of_machines([*ours, *theirs, memory_row(50.0)]).splitlines()
    assert lines[:4] == [
        "| machine | (B,H,L,D) | type | pass | dropout | eager, ms | sdpa-one-map, ms | cpu, ms |",
        "|---|---|---|---|---|---:|---:|---:|",
        "| Some CPU (R) 9000, avx512, avx512_bf16 | (2,3,20,8) | float32 | forward | 0 |  | 20 | 10 |",
        "| Another, avx512, avx512_bf16 | (2,3,20,8) | float32 | forward | 0 | 200 |  | 10 (20.0x) |",
    ]
    assert any(line.startswith("Another, 2 threads") and "fedcba987654" in line for line in lines)
    with pytest.raises(ValueError, match="no case"):
        of_machines([*ours[2:], *theirs])
    with pytest.raises(ValueError, match="different machines, versions or commits"):
        of_machines([*theirs, replace(theirs[0], origin=replace(other, commit="0"))])


def test_times_are_chosen_by_type_pass_and_dropout(tmp_path, capsys):
    cases = [
        SMALL,
        replace(SMALL, dropout=0.1),
        replace(SMALL, mode=FORWARD_BACKWARD),
        replace(SMALL, dtype="bfloat16"),
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(rows.to_line(row) + "\n" for case in cases for row in seconds_rows(case, cpu=[0.01])))
    machine = "| Some CPU (R) 9000, avx512, avx512_bf16 "
    for options, before in ([], ""), (["--machines"], machine):
        chosen = ["--dtypes", "float32", "--modes", "forward", "--dropouts", "0", "--"]
        assert table.main([*options, *chosen, str(file)]) == 0
        assert [line for line in capsys.readouterr().out.splitlines() if "(2,3,20,8)" in line] == [
            f"{before}| (2,3,20,8) | float32 | forward | 0 | 10 |"
        ]
    assert table.main(["--machines", "--dtypes", "float64", "--", str(file)]) == 1
    assert "no case has times" in capsys.readouterr().err


def test_plot_writes_the_format_that_the_name_asks_for(tmp_path):
    pytest.importorskip("matplotlib")
    measured = seconds_rows(eager=[0.2, 0.3], cpu=[0.1, 0.2], one_map=[0.1, 0.1])
    for name in ("a.svg", "again.svg", "a.png"):
        speedup_plot.draw(measured, str(tmp_path / name))
    text = (tmp_path / "a.svg").read_text()
    for shown in ("times as fast as eager", ">1.7<", ">2.5<", "(2,3,20,8)", "Some CPU (R) 9000"):
        assert shown in text
    assert (tmp_path / "again.svg").read_text() == text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="run eager beside"):
        speedup_plot.draw(seconds_rows(cpu=[0.1]), str(tmp_path / "b.svg"))


def test_a_disturbed_measurement_is_told():
    quiet = seconds_rows(cpu=[0.1])
    assert disturbance_note([*quiet, replace(quiet[0], others_share=None)]) == []
    disturbed = [*quiet, replace(quiet[0], others_share=0.42)]
    assert "Not to be quoted: other processes used up to 42% of the processors" in markdown(disturbed)
