"""Imports with which the scripts of a notebook's cells begin: a waiting interpreter does them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.agent.supervise import warm_plan
from jupyter_amltrain.commands.submit import parse_submit
from jupyter_amltrain.jobs.closure import Notebook

IMPORTS = "import warnings\nimport numpy as np\nfrom json import loads, dumps\n"
DATA = "X = np.ones((3, 3))"
FUNCTION = "def mean(data, axis=0):\n    return np.mean(data, axis)"


def script_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, cell: str) -> str:
    """Return the script of a cell of a notebook."""
    monkeypatch.setenv("AMLTRAIN_HOME", str(tmp_path))
    ip = InteractiveShell()
    monkeypatch.setitem(sys.modules, "__main__", ip.user_module)
    ip.run_cell(before, store_history=True).raise_error()
    history = list(ip.history_manager.input_hist_parsed)
    return parse_submit([], cell, prog="%%aml_submit", notebook=Notebook(ip.user_ns, lambda: history)).spec.script


@pytest.mark.parametrize(
    ("before", "cell", "expected"),
    [
        (
            "",
            '"""Train."""\nfrom __future__ import annotations\n\nimport numpy as np\nLR = 0.1\nimport re\n',
            "numpy re",
        ),
        ("", "%load_ext autoreload\n%autoreload 2\n%matplotlib inline\nimport numpy as np\nprint(1)", "numpy"),
        ("", "%%time\nimport numpy as np\nx = np.ones(3)", "numpy"),
        ("", "import numpy as np\nimport json\n\ndisplay(np.ones(2))\n!ls", "numpy json"),
        ("", "import warnings\nwarnings.filterwarnings('ignore')\nimport numpy as np\nx = np.ones(2)", "warnings"),
        ("", "import os\nos.environ['A'] = '1'\nimport numpy as np\nx = np.ones(2)", "os"),
        ("", "import asyncio\n\nawait asyncio.sleep(0)", "asyncio"),
        (IMPORTS, "x = np.ones(3)\nloads('1')", "numpy json"),
        (IMPORTS + DATA, "print(np.ones(1), X)", "numpy"),
        (IMPORTS + DATA, "import re\nimport decimal\n\nprint(np.ones(1), X)", "numpy re decimal"),
        (IMPORTS + DATA, "import re\nprint(np.ones(1), X)", "numpy"),  # no empty line for what it reads
        (IMPORTS + FUNCTION, "import re\nimport numpy as np\n\nprint(mean([1]))", "numpy re numpy"),
        (IMPORTS + FUNCTION + "\nimport decimal", "print(mean([1]), decimal)", "decimal numpy"),
        (IMPORTS + "np.set_printoptions(precision=3)\nimport decimal", "print(np, decimal)", "decimal numpy"),
    ],
)
def test_script_of_cell_begins_with_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, cell: str, expected: str
) -> None:
    (tmp_path / "script.py").write_text(script_of(tmp_path, monkeypatch, before, cell))
    lines = warm_plan.leading_imports(str(tmp_path / "script.py"))
    assert lines is not None and " ".join(name for line in lines for name in line.modules) == expected


@pytest.mark.parametrize("cell", ['import re; text = """\n\n"""\nprint(X)', "import re; text = [X,\n\n1]"])
def test_statement_that_goes_on_behind_an_import_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    script = script_of(tmp_path, monkeypatch, IMPORTS + DATA, cell)
    texts = [ast.unparse(node.value) for node in ast.parse(script).body if isinstance(node, ast.Assign)]
    assert ast.unparse(ast.parse(cell).body[1].value) in texts  # type: ignore[attr-defined]
