"""Tables and the plot of speed-ups."""

from dataclasses import replace

import pytest
from benchmark_records import ORIGIN, SMALL, memory, overhead, time_of, times, to_line

from benchmarks import plot, table
from benchmarks.cases import FORWARD_BACKWARD
from benchmarks.measure.ceiling import ceiling_record


def test_markdown_shows_times_speedups_and_empty_cells():
    measured = [
        *times(eager=[0.200], cpu=[0.010]),
        *times(replace(SMALL, mode=FORWARD_BACKWARD, dropout=0.1), eager=[0.0312], one_map=[0.0156]),
    ]
    assert table.markdown([*measured, memory(50.0)]).splitlines() == [
        "| (B,H,L,D) | dtype | pass | dropout | eager, ms | cpu, ms | sdpa-one-map, ms |",
        "|---|---|---|---|---:|---:|---:|",
        "| (2,3,20,8) | float32 | forward | 0 | 200 | 10 (20.0x) |  |",
        "| (2,3,20,8) | float32 | forward+backward | 0.1 | 31.2 |  | 15.6 (2.0x) |",
        "",
        "| (B,H,L,D) | dtype | pass | dropout | implementation | inputs, MB | output | saved | gradients | temporary |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|",
        "| (1,12,8192,64) | float32 | forward+backward | 0 | cpu | 1.0 | 2.0 | 3.0 | 4.0 | 50.0 |",
        "",
        "Medians of interleaved runs; in brackets the speed-up over eager. Some CPU (R) 9000, 2 threads, "
        "kernels on avx512, avx512_bf16, torch 2.13.0, commit 0123456789ab, 2030-01-02.",
    ]


def test_markdown_shows_shares_lengths_and_overhead():
    case = replace(SMALL, lengths="packed")
    timed = time_of(case, "cpu", 1.0, 1e-2)
    ceilings = [ceiling_record(name, "float32", "cpu", [rate], ORIGIN) for name, rate in (("a", 9.0), ("b", 8.0))]
    text = table.markdown([timed, overhead(SMALL, "cpu", 12.34, 12, 13), *ceilings])
    assert timed.share_of_peak == pytest.approx(6 * case.products / 1e-3 / 1e9 / 1e-2, rel=1e-3)
    assert f"| (2,3,20,8) packed | float32 | forward | 0 | 1 ({timed.share_of_peak:.0%}) |" in text
    assert "| (2,3,20,8) | float32 | forward | cpu | 12.3 | 12.0 to 13.0 |" in text
    assert "Fastest matrix products: a in float32: 9 GFLOP/s." in text
    assert "and the share of the matrix-product ceiling" in text


def test_markdown_of_records_of_two_commits_raises():
    mixed = [memory(1.0), replace(memory(1.0), origin=replace(ORIGIN, commit="fedcba987654"))]
    with pytest.raises(ValueError, match="expected one machine, thread count, version and commit"):
        table.markdown(mixed)
    later = [memory(1.0), replace(memory(1.0), origin=replace(ORIGIN, measured_at="2030-01-02T03:05:00Z"))]
    assert table.markdown(later)


def test_table_options_select_dtype_pass_and_dropout(tmp_path, capsys):
    cases = [
        SMALL,
        replace(SMALL, dropout=0.1),
        replace(SMALL, mode=FORWARD_BACKWARD),
        replace(SMALL, dtype="bfloat16"),
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(to_line(one) + "\n" for case in cases for one in times(case, cpu=[0.01])))
    chosen = ["--dtypes", "float32", "--modes", "forward", "--dropouts", "0", "--"]
    assert table.main([*chosen, str(file)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "(2,3,20,8)" in line] == [
        "| (2,3,20,8) | float32 | forward | 0 | 10 |"
    ]


def test_draw_speedups_writes_reproducible_files(tmp_path):
    pytest.importorskip("matplotlib")
    measured = times(eager=[0.2, 0.3], cpu=[0.1, 0.2], one_map=[0.1, 0.1])
    for name in ("a.svg", "again.svg", "a.png"):
        plot.draw_speedups(measured, str(tmp_path / name))
    text = (tmp_path / "a.svg").read_text()
    for shown in ("times as fast as eager", ">1.7<", ">2.5<", "(2,3,20,8)", "Some CPU (R) 9000"):
        assert shown in text
    assert (tmp_path / "again.svg").read_text() == text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
