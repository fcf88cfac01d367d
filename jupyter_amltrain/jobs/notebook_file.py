"""The code of a notebook file that runs as one job."""

from __future__ import annotations

import json

from jupyter_amltrain.errors import CommandError

#: Suffix of notebooks, and the module that runs one in the job (``agent/supervise/notebook_runner.py``).
SUFFIX, RUNNER = ".ipynb", "amltrain_notebook"
#: What the runner needs in the job's Python.
_NEEDS = "import nbclient, ipykernel"


def is_notebook(name: str) -> bool:
    """Whether a file is a notebook, by its name."""
    return name.lower().endswith(SUFFIX)


def code_of(data: bytes, name: str) -> str:
    """Return the code cells of a notebook as one text, without lines for IPython, to see what it imports and reads.

    Raises
    ------
    CommandError
        It is no notebook, or has no code.
    """
    try:
        cells = json.loads(data)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise CommandError(
            f"{name} is not a notebook: it has no list of cells.",
            hint="Save it again in JupyterLab, or name another file.",
        ) from None
    if not any(source.strip() for source in sources):
        raise CommandError(f"{name} has no code cells, there is nothing to run.", hint="Save it first.")
    lines = [line for source in sources if not source.lstrip().startswith("%%") for line in source.splitlines()]
    plain = ["pass" if not line.strip() else _plain(line) for line in lines]
    return "\n".join([*plain, _NEEDS, ""])


def python_of(data: bytes, name: str) -> bytes:
    """Return the Python of a script file: its bytes, or the code of a notebook; empty for a damaged one."""
    if not is_notebook(name):
        return data
    try:
        return code_of(data, name).encode("utf-8", "replace")
    except CommandError:
        return b""


def _plain(line: str) -> str:
    """Return a line without notebook syntax."""
    begin = line.lstrip()
    return line[: len(line) - len(begin)] + "pass" if begin[:1] in ("%", "!", "?") or begin.endswith("?") else line
