"""Bars of `tqdm.notebook` in a job, which has no notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise import job_hooks


def bars(folder: Path, code: str, **env: str) -> str:
    """Return what code writes to the log, in a Python with the hooks."""
    environ = {**os.environ, **env}
    job_hooks.add(environ, str(folder), str(folder), gpus=False)
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3), desc='epochs', leave=True): pass",
        "import tqdm.notebook as bars\nfor _ in bars.trange(3, desc='epochs'): pass",
        "from tqdm import tqdm_notebook\nfor _ in tqdm_notebook(range(3), desc='epochs'): pass",
        "from tqdm.notebook import tqdm\nbar = tqdm(total=3, desc='epochs', display=True)\nbar.update(3)\nbar.close()",
        "from tqdm.notebook import tqdm_notebook as tqdm\nwith tqdm(total=3, desc='epochs') as bar: bar.update(3)",
        "__import__('sys').modules['ipywidgets'] = None\nimport tqdm.notebook as t\nlist(t.trange(3, desc='epochs'))",
    ],
    ids=["class", "trange", "old name", "display", "with", "no widgets"],
)
def test_notebook_bar_reaches_its_end_as_text(tmp_path: Path, code: str) -> None:
    assert "epochs: 100%" in bars(tmp_path, code) and "3/3" in bars(tmp_path, code)


def test_notebook_bar_in_kernel_of_notebook_stays_widget(tmp_path: Path) -> None:
    kernel = "import IPython\nIPython.get_ipython = lambda: type('Shell', (), {'kernel': 1})()\n"
    code = kernel + "import tqdm.notebook, tqdm.std\nassert hasattr(tqdm.notebook.tqdm, 'status_printer')\n"
    code += "assert 'FloatProgress' in tqdm.notebook.tqdm.status_printer.__doc__ or tqdm.notebook.IProgress\n"
    bars(tmp_path, code + "assert tqdm.notebook.tqdm.__init__.__module__ == 'tqdm.notebook'")
