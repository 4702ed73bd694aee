"""Child processes import nothing from the current folder."""

import re
import subprocess
import sys

from processes import ROOT
from qacg_models.utils.child_python import module_command


def test_module_command_imports_nothing_from_the_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("print('the planted module runs')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bare = subprocess.run([sys.executable, "-m", "json.tool", "--help"], capture_output=True, text=True, check=False)
    assert "planted" in bare.stdout
    done = subprocess.run(module_command("json.tool", "gone"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "planted" not in done.stdout


def test_every_python_process_is_isolated():
    """Every command starts Python in isolated mode or with the path of a script, which exclude the current folder.

    `Path(sys.executable)` is in a text for the user, not in a command. The selftest removes the folder from the path.
    """
    isolated = re.compile(r'"-I"| -I |sys\.executable, str\(_[A-Z]+\)|Path\(sys\.executable\)|"-c", child')
    sources = [
        path
        for name in ("qacg_kernels", "python", "benchmarks", "distributions")
        for path in (ROOT / name).rglob("*.py")
    ]
    starts = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources
        if path.name != "child_python.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if "sys.executable" in line and not isolated.search(line)
    }
    assert not starts
