"""Executes ``notebooks/01_local_digits.ipynb`` in a kernel of ``.venv`` and reports the run."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any

from tools.environment import ROOT

NOTEBOOK = ROOT / "notebooks" / "01_local_digits.ipynb"
PLACE = ROOT / "build" / "demo"
RUN_MIME = "application/vnd.amltrain.run+json"
CELL_TIMEOUT = 600  # seconds
IMPORT_TIMEOUT = 30  # seconds


def records(notebook: Any) -> Iterator[dict[str, Any]]:
    """The records of runs that lie in the outputs of a notebook, in the order of its cells."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            record = output.get("data", {}).get(RUN_MIME)
            if record is not None:
                yield record


def row(name: str, value: object) -> str:
    """One line of the table."""
    return f"  {name:<22} {value}"


def table(record: dict[str, Any]) -> list[str]:
    """What the record says of one run, as lines of text."""
    lines = [row("run", record.get("handle", "?")), row("state", record.get("state", "?"))]
    if record.get("exit_code") is not None:
        lines.append(row("exit code", record["exit_code"]))
    phases = record.get("phases") or ()
    total = 0.0
    for phase in phases:
        seconds = phase.get("seconds")
        if seconds is None and phase.get("end") is not None:
            seconds = phase["end"] - phase["start"]
        total += seconds or 0.0
        lines.append(row(f"{phase['name']}", "not ended" if seconds is None else f"{seconds:.2f} s"))
    if phases:
        lines.append(row("duration", f"{total:.2f} s"))
    for name, value in (record.get("outputs") or {}).items():
        lines.append(row(name, f"{value:.4g}" if isinstance(value, float) else value))
    for name, series in (record.get("metrics") or {}).items():
        lines.append(row(f"{name} (last of {series.get('n', '?')})", f"{series.get('last'):.4g}"))
    tracking = record.get("tracking") or {}
    if tracking:
        lines.append(row("MLflow record", imported(tracking)))
    if record.get("error"):
        lines.append(row("error", record["error"]))
    return lines


def imported(tracking: dict[str, Any]) -> str:
    """What MLflow's store holds of the run; the record may be older than the import.

    The notebook's kernel is gone at once after the last cell, the import goes on without it.
    """
    run, store = str(tracking.get("run_id", "")), PLACE / ".amltrain" / "mlflow.db"
    deadline = time.monotonic() + IMPORT_TIMEOUT
    while True:
        # OperationalError: it is not there yet, or the importer migrates or writes just now.
        with contextlib.suppress(sqlite3.OperationalError):
            with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
                found = database.execute("select status from runs where run_uuid = ?", (run,)).fetchone()
                if found and found[0] != "RUNNING":
                    values = database.execute("select count(*) from metrics where run_uuid = ?", (run,)).fetchone()[0]
                    return f"{found[0]}, {values} values, id {run}"
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return f"{tracking.get('state')}, id {run}"


def main() -> int:
    """Execute, write notebook and HTML, print the table; 1 when a run did not complete."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from nbconvert import HTMLExporter

    if not NOTEBOOK.exists():
        print(f"make demo: {NOTEBOOK.relative_to(ROOT)} is missing. Type: git status", file=sys.stderr)
        return 1
    PLACE.mkdir(parents=True, exist_ok=True)
    executed = PLACE / NOTEBOOK.name
    # The notebook's folder is the project: a store of an older demo would mix with this one.
    shutil.rmtree(PLACE / ".amltrain", ignore_errors=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(PLACE)}},
        # Warnings of ipykernel about its own transport would stand between our lines.
        extra_arguments=["--log-level=40"],
    )
    began = time.monotonic()
    print(f"-- executing {NOTEBOOK.relative_to(ROOT)}", flush=True)
    failure: CellExecutionError | None = None
    try:
        client.execute()
    except CellExecutionError as error:
        failure = error
    seconds = time.monotonic() - began
    nbformat.write(notebook, executed)
    page = executed.with_suffix(".html")
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")

    # A run that is shown in several cells is one run; the last record knows most.
    found = list({record.get("handle"): record for record in records(notebook)}.values())
    print(f"\nexecuted in {seconds:.1f} s, {len(found)} run{'' if len(found) == 1 else 's'}\n")
    for record in found:
        print("\n".join(table(record)) + "\n")
    store = next((path for name in (".amltrain",) if (path := PLACE / name).exists()), None)
    print(row("executed notebook", executed))
    print(row("as a page", page))
    print(row("MLflow store", store / "mlflow.db" if store else "none was written"))
    if failure is not None:
        first = f"{failure.ename}: {failure.evalue}".splitlines()[0]
        print(f"\nmake demo: a cell failed: {first}\nThe whole error is in the page above.", file=sys.stderr)
        return 1
    if not found or any(record.get("state") != "completed" for record in found):
        print("\nmake demo: the run did not complete, see its state above.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
