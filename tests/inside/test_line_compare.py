"""Lines of two runs side by side."""

from __future__ import annotations

import json

from jupyter_amltrain.inside.line_compare import MAX_LINES, compared_lines, compared_text
from jupyter_amltrain.inside.line_files import processes_of
from jupyter_amltrain.inside.line_report import LineReader, LineReport, report_of
from jupyter_amltrain.schema.job import JobSpec


def report(cell: str, *shares: int) -> LineReport:
    """Return the report of a cell whose lines took these parts of 100 s."""
    rows = [["h", 1, 7, 0, 1000.0, "", "/x/cell.py", 1], ["f", 0, "/x/source/cell.py"]]
    rows += [["n", at, 0, 0, at + 1, "<module>"] for at in range(1, len(shares) + 1)]
    samples = [[0, at, "", 1000 * share, 0, 0, 1000 * share, 50.0] for at, share in enumerate(shares, 1)]
    data = "".join(f"{json.dumps(row)}\n" for row in [*rows, ["w", 1000.0, 1100.0, samples]])
    reader = LineReader(JobSpec(name="x", script=f"#\n{cell}", script_name="cell.py", cell=cell))
    return report_of(processes_of(data.encode()), reader)


def test_line_is_the_same_where_its_number_differs() -> None:
    old = report("for x in loader:\n    step(x)", 60, 40)
    new = report("import y\nfor x in loader:\n    step(x)", 1, 10, 89)
    first, second = compared_lines([old, new])
    assert (first["name"], [value["share"] for value in first["values"]]) == ("step(x)", [0.4, 0.89])
    assert second["differs"] and second["values"][1]["seconds"] == 10
    assert compared_text(second["values"][0]) == "60 %, 60 s, GPU 50 %"


def test_line_that_one_run_has_not_is_none_there() -> None:
    rows = {row["name"]: row["values"] for row in compared_lines([report("a()\nb()", 50, 50), report("a()", 50), None])}
    assert rows["b()"][1:] == [None, None] and rows["a()"][2] is None


def test_runs_that_are_not_sampled_have_no_rows() -> None:
    assert compared_lines([None, None]) == []


def test_equal_lines_count_together_and_rows_are_bounded() -> None:
    (row,) = compared_lines([report("a()\na()", 20, 30), report("a()", 50)])
    assert [value["share"] for value in row["values"]] == [0.5, 0.5] and not row["differs"]
    many = report("\n".join(f"f{at}()" for at in range(30)), *[3] * 30)
    assert len(compared_lines([many, None])) == MAX_LINES
