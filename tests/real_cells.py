"""Submits each cell of public notebooks as it stands, and compares its text and values with the kernel's.

``python -m tests.real_cells NOTEBOOK.ipynb ... [--cells N] [--dry-run]``

Each notebook is executed from the top in a kernel. Before a cell is executed there, it is submitted to the local target
as it stands. Prints the share of accepted cells, the share whose run printed the same text as the kernel, the share of
equal values among those that the run kept, and each difference. The notebooks are not part of this repository.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.manager import start_new_kernel

from jupyter_amltrain.jobs import kept_names, notebook_syntax

from . import fingerprints

#: Seconds that a cell may take in the kernel, and that all runs of a notebook may take after its last cell.
CELL_TIMEOUT, RUNS_TIMEOUT = 120.0, 240.0
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: What differs between any two executions: addresses, times of day, durations.
_ADDRESS = re.compile(
    r"0[xX][0-9a-fA-F]{6,}|<ipython-input[^>]*>|ipykernel_\d+/\d+\.py|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|(?m:^.* per loop \(mean .*$)|(?m:^(?:CPU times|Wall time):.*$)"
)


#: Bars of tqdm, which are widgets in a notebook.
_PROGRESS = re.compile(r"[^\r\n]*\d%\|[^\r\n]*")


class Outcome(NamedTuple):
    """What became of one cell; `kind` is ``same``, ``refused``, ``different``, ``failed`` or ``kernel failed``."""

    notebook: str
    number: int
    kind: str
    detail: str = ""
    values: int = 0
    other_values: str = ""


#: Code of the kernel: fingerprints of the variables that a cell binds, and of those that its run has kept.
_MARK = """
_aml_marks[{number}] = {{_n: _aml.fingerprint(globals()[_n]) for _n in {names!r} if _n in globals()}}
"""
_COMPARE = """
_one = _aml.attach({handle!r}).wait({timeout})
print(_one.run.status.state.value)
_kept = [] if _one.run.status.state.value != "completed" else _one.results
_marks = {{_n: _m for _n, _m in _aml_marks[{number}].items() if _n in _kept}}
_other = []
for _n, _m in _marks.items():
    try:
        _other += [] if _aml.fingerprint(_one.result(_n)) == _m else [_n]
    except Exception as _error:
        _other.append(f"{{_n}}:{{type(_error).__name__}}")
print(len(_marks), *_other)
print(_one.logs() or "", end="")
"""


class Session:
    """A kernel with the extension, in a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        environ = {
            **os.environ, "HOME": str(folder), "AMLTRAIN_HOME": str(folder / "state"), "MPLBACKEND": "agg",
            "AMLTRAIN_QUEUE": str(folder / "queue"), "AMLTRAIN_DISPATCHER_IDLE": "5", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        self.manager, self.client = start_new_kernel(
            kernel_name="python3", env=environ, cwd=str(self.work), extra_arguments=["--log-level=50"]
        )
        self.run("%load_ext jupyter_amltrain")
        module = Path(fingerprints.__file__).read_text(encoding="utf-8")
        self.run("import types as _aml, jupyter_amltrain\n_aml = _aml.ModuleType('_aml')\n_aml_marks = {}")
        self.run(f"exec({module!r}, vars(_aml))\n_aml.attach = jupyter_amltrain.attach\ndel jupyter_amltrain")

    def run(self, source: str, store: bool = True) -> tuple[str, str]:
        """Execute a cell; return its text and its error."""
        text: list[str] = []
        error: list[str] = []

        def output(message: dict[str, Any]) -> None:
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                text.append(content["text"])
            elif kind == "execute_result":
                text.append(content["data"].get("text/plain", "") + "\n")
            elif kind == "error":
                error.append(_ANSI.sub("", f"{content['ename']}: {content['evalue']}"))

        with contextlib.suppress(TimeoutError):
            self.client.execute_interactive(
                source, output_hook=output, timeout=CELL_TIMEOUT, store_history=store, allow_stdin=False
            )
            return "".join(text), "".join(error)
        self.manager.interrupt_kernel()
        time.sleep(1)
        return "".join(text), "TimeoutError: in the kernel"

    def close(self) -> None:
        """End the kernel and what it started."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def code_cells(path: Path) -> list[str]:
    """The code of a notebook's cells that are not empty."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    sheets = notebook.get("cells") or notebook["worksheets"][0]["cells"]
    cells = [cell for cell in sheets if cell["cell_type"] == "code"]
    sources = ["".join(cell.get("source", cell.get("input", ""))) for cell in cells]
    return [source for source in sources if source.strip()]


def bound_names(source: str) -> list[str]:
    """The variables that a cell binds."""
    try:
        tree = ast.parse(notebook_syntax.translated(source).text)
    except Exception:  # the kernel says so, too
        return []
    return [*kept_names.kept_names(tree).bound]


def plain(text: str) -> list[str]:
    """Text without what differs between any two executions."""
    return _ADDRESS.sub("0x", _PROGRESS.sub("", _ANSI.sub("", text))).split()


def check(path: Path, folder: Path, cells: int, dry_run: bool, prelude: str) -> list[Outcome]:
    """Run a notebook from the top, and submit each of its cells before it is executed."""
    session = Session(folder)
    outcomes: list[Outcome] = []
    waiting: list[tuple[int, str, str]] = []
    flags = "--dry-run" if dry_run else "--as _run"
    try:
        if prelude:
            session.run(prelude)
        for number, source in enumerate(code_cells(path)[:cells], 1):
            _, refused = session.run(f"%%aml_submit {flags}\n{source}")
            handle, _ = session.run("print(_run.handle)", store=False) if not refused and not dry_run else ("", "")
            text, error = session.run(source)
            session.run(_MARK.format(number=number, names=bound_names(source)), store=False)
            if refused:
                kind = "refused, kernel failed" if error else "refused"
                outcomes.append(Outcome(path.stem, number, kind, refused))
            elif error:
                outcomes.append(Outcome(path.stem, number, "kernel failed", error[:200]))
            elif dry_run:
                outcomes.append(Outcome(path.stem, number, "same"))
            else:
                waiting.append((number, handle.strip(), text))
        for number, handle, text in waiting:
            compare = _COMPARE.format(handle=handle, timeout=RUNS_TIMEOUT, number=number)
            got, error = session.run(compare, store=False)
            state, _, rest = got.partition("\n")
            line, _, log = rest.partition("\n")
            count, _, other = line.partition(" ")
            values = (int(count) if count.isdecimal() else 0, other)
            if state != "completed" or error:
                outcomes.append(Outcome(path.stem, number, "failed", f"{state} {error} {log[-300:]}"))
            elif sorted(plain(log)) == sorted(plain(text)):  # the order of two streams is chance
                outcomes.append(Outcome(path.stem, number, "same", "", *values))
            else:
                parts = difflib.unified_diff(plain(text), plain(log), "kernel", "run", lineterm="", n=0)
                outcomes.append(Outcome(path.stem, number, "different", " ".join(list(parts)[2:])[:300], *values))
    finally:
        session.close()
    return sorted(outcomes, key=lambda one: one.number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--prelude", default="", help="code that the kernel runs first, such as a seed")
    args = parser.parse_args()
    every: list[Outcome] = []
    for path in args.notebooks:
        folder = Path(tempfile.mkdtemp(prefix="cells-"))
        start = time.monotonic()
        outcomes = check(path, folder, args.cells, args.dry_run, args.prelude)
        shutil.rmtree(folder, ignore_errors=True)
        every += outcomes
        print(f"{path.name}: {dict(Counter(one.kind for one in outcomes))}, {time.monotonic() - start:.0f} s")
        for one in outcomes:
            if one.kind != "same":
                print(f"  cell {one.number}, {one.kind}: {' '.join(one.detail.split())[:330]}")
            if one.other_values:
                print(f"  cell {one.number}, other values: {one.other_values}")
        sys.stdout.flush()
    kinds = Counter(one.kind for one in every)
    runs = kinds["same"] + kinds["different"] + kinds["failed"]
    alive = len(every) - kinds["kernel failed"] - kinds["refused, kernel failed"]
    print(f"{len(every)} cells, {dict(kinds)}")
    print(f"accepted of those that the kernel runs: {(alive - kinds['refused']) / max(1, alive):.1%}")
    print(f"same text of those that ran: {kinds['same'] / max(1, runs):.1%}")
    values, other = sum(one.values for one in every), sum(len(one.other_values.split()) for one in every)
    print(f"{values} values that runs kept, equal to the kernel's: {(values - other) / max(1, values):.1%}")


if __name__ == "__main__":
    main()
