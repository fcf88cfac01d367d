"""The table of several runs."""

from __future__ import annotations

from typing import Any

from jupyter_amltrain.output.run_table import run_table, varying
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Phase, Run, RunHandle, RunState, RunStatus


def run(name: str, **params: Any) -> Run:
    phases = (Phase(name="running", start=1000.0, end=1012.0, seconds=12.0),)
    return Run(
        handle=RunHandle(f"local/{name}"),
        spec=JobSpec(name=name, params=params, experiment="digits"),
        status=RunStatus(state=RunState.COMPLETED, phases=phases),
        created=1000.0,
    )


ONE, TWO = run("one", lr=0.1, epochs=5, opt="sgd"), run("two", lr=0.01, epochs=5)


def test_varying_separates_common_values() -> None:
    assert varying([ONE.spec.params, TWO.spec.params]) == (["lr", "opt"], {"epochs": 5})
    assert varying([{"n": 1}, {"n": True}]) == (["n"], {})
    assert varying([{"n": 1}]) == (["n"], {})


def test_table_has_columns_of_parameters_that_differ_and_of_metrics() -> None:
    table = run_table([ONE, TWO], {ONE.handle: {"loss": 0.25}, TWO.handle: {"loss": 0.125, "f1": 0.9}}, now=1100.0)
    assert table.titles == ["run", "state", "submitted", "ran", "lr", "opt", "loss", "f1"]
    assert table.rows[1] == ["local/two", "completed", "100 s ago", "12 s", "0.01", "", "0.125", "0.9"]
    assert table.same == {"epochs": 5} and "epochs=5" in table.text()


def test_text_in_narrow_terminal_leaves_out_last_columns() -> None:
    table = run_table([ONE, TWO], {ONE.handle: {"loss": 0.25}}, now=1100.0)
    narrow = table.text(width=50)
    assert max(map(len, narrow.splitlines()[:3])) <= 50
    assert "lr" in narrow.splitlines()[0] and "loss" not in narrow.splitlines()[0] and "1 more column" in narrow
    assert "local/two" in table.text(width=10)


def test_html_escapes_values() -> None:
    table = run_table([run("one", note="<b>x</b>"), TWO], {ONE.handle: {"<i>": 1.0}})
    assert "<b>" not in table.html() and "<i>" not in table.html() and "&lt;b&gt;" in table.html()
