"""``runs compare``: parameters, metrics, outcome, time by line, provenance and code of several runs, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.inside.line_compare import compared_lines, compared_text
from jupyter_amltrain.output.run_table import run_seconds
from jupyter_amltrain.schema.provenance import GROUPS, Provenance, facts_of
from jupyter_amltrain.text import bytes_text, seconds_text, table, value_text

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.backends.run_files import RunFiles
    from jupyter_amltrain.inside.line_report import LineReport
    from jupyter_amltrain.run import TrackedRun
    from jupyter_amltrain.schema.run import Run

#: Maximum number of runs of a comparison, and lines of each code diff.
MAX_RUNS, MAX_DIFF_LINES = 10, 200


def _flags(parser: Parser) -> None:
    parser.flag("run", nargs="+", help="two or more runs: handle, run id or prefix, or last")
    parser.flag("--all-rows", action="store_true", help="also show what is the same in all runs")


def _compare(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    if not 2 <= len(args.run) <= MAX_RUNS:
        raise CommandError(
            f"compare needs 2 to {MAX_RUNS} runs, got {len(args.run)}.",
            hint=f"Example: {context.prog} compare RUN RUN",
            code="compare.count",
            field="run",
        )
    runs = [api.attach(name) for name in args.run]
    if len({run.handle for run in runs}) < len(runs):
        raise CommandError("compare: a run is named twice.", hint="Name each run once.", code="compare.twice")
    data = comparison(runs)
    return Result(comparison_text(data, all_rows=args.all_rows), data)


def comparison(runs: Sequence[TrackedRun]) -> dict[str, Any]:
    """Return runs side by side, JSON-serializable.

    Returns
    -------
    dict
        ``runs``: the handles. ``rows``: each with ``group``, ``name``, the ``values`` in the order of the runs
        (``None`` for none) and ``differs``; of installed packages only those that differ.
        ``code``: the unified diff from the first run's script to
        each other's, by handle, at most :data:`MAX_DIFF_LINES` lines; or one sentence if code cannot be read.
    """
    from jupyter_amltrain.run_list import read_runs

    handles = [run.handle for run in runs]
    jobs, metrics = read_runs(handles)
    now = time.time()
    rows = list[dict[str, Any]]()
    rows += _rows("params", [job.spec.params for job in jobs])
    rows += _rows("metrics", [metrics.get(handle, {}) for handle in handles])
    rows += _rows("outputs", [job.outputs for job in jobs])
    rows += _rows(
        "run",
        [
            {
                "state": job.status.state.value,
                "seconds": run_seconds(job, now),
                "experiment": job.experiment,
                "target": job.target,
                "gpus": len(job.status.devices),
                **({"pokes": [poke.text for poke in job.status.pokes]} if job.status.pokes else {}),
            }
            for job in jobs
        ],
    )
    rows += compared_lines([_line_report(job, run) for job, run in zip(jobs, runs, strict=True)])
    rows += _rows("tags", [job.spec.tags for job in jobs])
    rows += _provenance_rows([run.read_provenance() for run in runs])
    scripts = {str(job.handle): code_of(job, run.reader) for job, run in zip(jobs, runs, strict=True)}
    return {"runs": [str(handle) for handle in handles], "rows": rows, "code": code_diffs(scripts)}


def _line_report(job: Run, run: TrackedRun) -> LineReport | None:
    """Return where the time of a run went; ``None`` if it was not sampled or cannot be read. Blocks."""
    try:
        return None if job.spec.no_lines else run.read_lines()
    except AmlTrainError:
        return None


def _rows(group: str, columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        values = [column.get(name) for column in columns]
        differs = len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1
        rows.append({"group": group, "name": name, "values": values, "differs": differs})
    return rows


def _provenance_rows(provenances: Sequence[Provenance]) -> list[dict[str, Any]]:
    """Return the rows of git, data, Python, packages and hardware; of packages only those that differ."""
    columns = [facts_of(provenance) for provenance in provenances]
    rows = []
    for group in (group for group in GROUPS if group != "code"):
        parts = [column[group] for column in columns]
        if not all(parts) and group in ("python", "packages", "hardware"):
            continue  # a run that does not know its packages does not differ in each of them
        found = _rows(group, parts)
        rows += [row for row in found if row["differs"]] if group == "packages" else found
    return rows


def code_of(run: Run, files: RunFiles) -> str | None:
    """Return the code of a run as the user wrote it; ``None`` if it cannot be read. Blocks."""
    spec = run.spec
    if text := spec.cell or spec.script:
        return text
    data = files.read(f"source/{spec.script_name}") if spec.script_name else b""
    return data.decode("utf-8", "replace") or None


def code_diffs(scripts: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the unified diff from the first script to each other one, by handle; empty lists for equal scripts."""
    (first, before), *others = scripts.items()
    return {handle: _diff(before, script, first, handle) for handle, script in others}


def _diff(before: str | None, after: str | None, one: str, other: str) -> list[str]:
    """Return the unified diff of two scripts, bounded."""
    import difflib  # slow: keep it out of %load_ext

    if before is None or after is None:
        return [f"The code of {one if before is None else other} cannot be read."]
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), one, other, lineterm=""))
    if len(lines) > MAX_DIFF_LINES:
        lines[MAX_DIFF_LINES:] = [f"... {len(lines) - MAX_DIFF_LINES} more lines"]
    return lines


def comparison_text(data: Mapping[str, Any], *, all_rows: bool = False) -> str:
    """Return :func:`comparison` as text; by default only the rows that differ."""

    def cell(group: str, name: str, value: Any) -> str:
        if value is None:
            return ""
        if group == "lines":
            return compared_text(value)
        if name == "seconds":
            return seconds_text(value)
        return bytes_text(value) if group == "hardware" and name == "memory" else value_text(value)

    shown = [row for row in data["rows"] if all_rows or row["differs"]]
    lines = [
        [row["group"], row["name"], *(cell(row["group"], row["name"], value) for value in row["values"])]
        for row in shown
    ]
    parts = [table(["", "", *data["runs"]], lines)]
    if same := len(data["rows"]) - len(shown):
        parts.append(f"{same} rows are the same in all runs: --all-rows shows them.")
    parts += ["\n".join(lines) for lines in data["code"].values() if lines]
    if not any(data["code"].values()):
        parts.append("The submitted cell or script is the same.")
    return "\n\n".join(parts)


COMPARE = Command(
    verb="compare",
    summary="Compare parameters, metrics, packages, hardware, data and code of several runs.",
    run=_compare,
    flags=_flags,
    json=True,
    examples=Examples(("%aml_runs compare digits-k3f9x digits-m2c7w",), ("amltrain runs compare RUN RUN --json",)),
)
