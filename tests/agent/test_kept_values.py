"""Values that a cell's run keeps at its end: how much, in which form, and what never."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent import kept_values, values
from jupyter_amltrain.agent.supervise import job_hooks


class Kept:
    """A script that has ended, and the values that it kept."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.done, self.folder = done, folder / f"{kept_values.NAME}.values"
        value = json.loads((folder / f"{kept_values.NAME}.json").read_text())["value"]
        self.nodes, self.left = value["nodes"], value["left"]

    def read(self, name: str) -> Any:
        return values.read(self.nodes[name], str(self.folder), allow_pickle=True)

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir()) if self.folder.exists() else 0


def keep(folder: Path, code: str, *bound: str, used: tuple[str, ...] = (), exact: bool = True, **env: str) -> Kept:
    """Run code with the hooks of a job, which then keeps values."""
    environ = {**os.environ, "AML_OUTPUT_DIR": str(folder / "outputs"), **env}
    job_hooks.add(environ, str(folder), str(folder), gpus=False, cell="script.py")
    last = f"\nimport amltrain_kept\namltrain_kept.keep({bound}, {used}, (), {exact})\n"
    (folder / "script.py").write_text("import amltrain_kept\n" + code + last)
    command = [sys.executable, str(folder / "script.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    return Kept(folder / "outputs", done)


def test_newest_values_are_kept_up_to_the_limit(tmp_path: Path) -> None:
    code = "import numpy as np\namltrain_kept.MAX_BYTES = 3_000_000\na, b, c = (np.ones(100_000) * i for i in range(3))"
    kept = keep(tmp_path, code + "\nd = 1\nbig = np.ones(500_000)", "big", "d", "c", "b", "a", "gone")
    assert {*kept.nodes} == {"d", "c", "b", "a"} and kept.left == {"big": "it is too large"}
    assert kept.done.returncode == 0 and "--out big" in kept.done.stderr
    assert kept.read("c").sum() == 200_000


@pytest.mark.thorough
def test_pickle_over_the_limit_leaves_nothing(tmp_path: Path) -> None:
    code = "amltrain_kept.MAX_BYTES = 100_000\nclass Own: pass\nown = Own()\nown.data = [str(i) for i in range(50_000)]"
    kept = keep(tmp_path, code, "own")
    assert not kept.nodes and "too large" in kept.left["own"] and kept.size == 0


@pytest.mark.thorough
def test_values_that_share_objects_are_one_file_here_and_apart_elsewhere(tmp_path: Path) -> None:
    code = "import numpy as np\na = [np.arange(3.0)]\nb = {'a': a}"
    kept = keep(tmp_path, code, "b", "a")
    assert (
        kept.nodes["a"]["as"] == kept.nodes["b"]["as"] == "graph" and kept.nodes["a"]["file"] == kept.nodes["b"]["file"]
    )
    kept = keep(tmp_path, code, "b", "a", exact=False)
    assert list(kept.read("a")[0]) == list(kept.read("b")["a"][0]) == [0, 1, 2]
    assert not {file["as"] for node in kept.nodes.values() for file in values.files_of(node)} & {*values.PICKLES}


@pytest.mark.thorough
def test_frame_is_exact_here_and_has_a_form_elsewhere(tmp_path: Path) -> None:
    code = (
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]}, index=pd.date_range('2026-01-01', periods=2, freq='D'))"
    )
    assert keep(tmp_path, code, "df").read("df").index.freq is not None
    assert keep(tmp_path, code, "df", exact=False).nodes["df"]["as"] == "frame"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        "x = 'hf_' + 'a1B2c3D4e5F6g7H8i9J0k1L2'",
        "import os\nx = os.environ['DB_PASSWORD']",
        "import os\nx = {'a': [os.environ['OWN']]}",
        "import os\nx = dict(os.environ)",
        "class Client:\n    def __init__(self, key): self.api_key = key\nx = Client('abc123def456ghi789')",
    ],
)
def test_secrets_are_not_kept(tmp_path: Path, code: str) -> None:
    kept = keep(tmp_path, code, "x", DB_PASSWORD="correct horse", OWN="battery staple", AMLTRAIN_SECRETS="OWN")
    assert not kept.nodes and "secret" in kept.left["x"]
    stored = [path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert not any(word in data for data in stored for word in (b"hf_a1", b"horse", b"staple", b"abc123"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "reduce", ["raise ValueError('no')", "import time; time.sleep(100)", "raise SystemExit(3)", "return 5"]
)
def test_object_that_cannot_be_pickled_changes_nothing(tmp_path: Path, reduce: str) -> None:
    code = f"amltrain_kept._MAX_SECONDS = 8\nclass Own:\n    def __reduce__(self): {reduce}\nown, y = Own(), 1"
    kept = keep(tmp_path, code, "y", "own")
    assert [*kept.nodes] == ["y"] and "own" in kept.left
    assert (kept.done.returncode, kept.done.stderr) == (0, "")


@pytest.mark.thorough
def test_modules_functions_classes_and_figures_are_not_kept(tmp_path: Path) -> None:
    code = (
        "import json, matplotlib.pyplot as plt\ndef f(): pass\nclass C: pass\nfig, ax = plt.subplots()\n"
        "axes = [ax]\nnothing = None\ng = json.dumps"
    )
    kept = keep(tmp_path, code, "json", "f", "C", "fig", "ax", "axes", "nothing", "g")
    assert not kept.nodes and {*kept.left} == {"fig", "ax", "axes"}


def test_only_objects_that_a_call_may_have_changed_are_kept(tmp_path: Path) -> None:
    code = "import numpy as np\nfrom collections import Counter\nX, n, names, counts = np.ones(3), 1, [], Counter('a')"
    kept = keep(tmp_path, code, used=("X", "n", "names", "counts"))
    assert {*kept.nodes} == {"names", "counts"}


def test_further_ranks_keep_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "rank-1"
    code = "import os\nx = 1\namltrain_kept.keep(['x'])"
    with pytest.raises(FileNotFoundError):
        keep(tmp_path, code, "x", AML_OUTPUT_DIR=str(folder))
    assert not folder.exists()


def test_file_that_names_the_values_stays_small(tmp_path: Path) -> None:
    code = "n, text = 1, 'word ' * 100_000\npairs = {i: {i} for i in range(2000)}\n"
    code += "many = [({i}, {i: {i}}) for i in range(2400)]"
    kept = keep(tmp_path, code, "n", "text", "pairs", "many")
    assert (tmp_path / "outputs" / "_amltrain_kept.json").stat().st_size < 10_000
    assert kept.read("text") == "word " * 100_000 and kept.read("n") == 1
    assert kept.read("pairs")[3] == {3} and kept.read("many")[2] == ({2}, {2: {2}}) and not kept.left
