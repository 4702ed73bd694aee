"""The commands of `benchmarks` print their help without importing transformers."""

import pytest
from processes import ROOT, run_python

# Its exit status is the number of programs whose --help failed or imported transformers.
ASK_FOR_HELP = """
import gc, os, runpy, sys, torch
gc.freeze()
wrong = 0
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        sys.argv = [name, "--help"]
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if "transformers" in sys.modules:
                sys.exit(f"{name} imports transformers")
            sys.stdout.flush()
            os._exit(ended.code or 0)
    wrong += os.waitpid(child, 0)[1] != 0
sys.exit(wrong)
"""


@pytest.mark.full
def test_help_of_all_commands_prints_only_help():
    """Where torchao is installed, transformers imports it and prints warnings."""
    programs = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    assert {"benchmarks.accuracy", "benchmarks.end_to_end", "benchmarks.targets.__main__"} <= set(programs)
    done = run_python("-c", ASK_FOR_HELP, *programs)
    assert done.stderr == ""
    assert done.stdout.count("usage: ") == len(programs)
