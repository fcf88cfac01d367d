"""Statements that were run in a job are events of the run: in its state, record, charts, comparison and repetition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.asking import pokes
from jupyter_amltrain.agent.asking.asked_hook import keep, last_step
from jupyter_amltrain.agent.protocol import METRICS, POKES
from jupyter_amltrain.backends.run_files import status_of
from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as run_command
from jupyter_amltrain.commands.resubmit import repeated_spec
from jupyter_amltrain.inside.pokes import poke_text, repeat_note
from jupyter_amltrain.kernel.run_charts import charts_of
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.output.text_view import record_text
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Phase, Poke, Run, RunState, RunStatus, make_handle
from tests.helpers import api_of, until

POKE = Poke(time=130.0, who="anna on gpu1", step=7, text="lr /= 10")


def write_metrics(folder: Path, *rows: object) -> None:
    (folder / METRICS).parent.mkdir()
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / METRICS).write_text("\n".join(lines) + "\n")


def note(folder: Path, text: str, rank: int = 0) -> None:
    keep(pokes.record_of(str(folder), {"who": "gpu1"}), rank, text, "")


def test_statement_is_kept_with_the_last_step(tmp_path: Path) -> None:
    write_metrics(
        tmp_path,
        {"seq": 1, "op": "runs/log-metric", "b": {"key": "loss", "value": 1, "step": 3}},
        {"seq": 2, "op": "runs/log-batch", "b": {"metrics": [{"key": "a", "step": 4}, {"key": "b", "step": 5}]}},
        {"seq": 3, "op": "runs/set-tag", "b": {"key": "x", "value": 'a "step": 9'}},
        '{"seq": 4, "op": "runs/log-metric", "b": {"st',
    )
    note(tmp_path, "a = 1\nb = 2", rank=1)
    (row,) = map(json.loads, (tmp_path / POKES).read_text().splitlines())
    assert row["step"] == 5 and row["who"].endswith(" on gpu1") and row["text"] == "a = 1\nb = 2" and row["rank"] == 1


def test_run_without_metrics_has_no_step(tmp_path: Path) -> None:
    assert last_step(str(tmp_path / METRICS)) is None


def test_newest_statements_reach_the_state_once(tmp_path: Path) -> None:
    new, state = pokes.NewPokes(str(tmp_path)), dict[str, Any]()
    assert not new.take(state)
    for number in range(pokes.MAX_SHOWN + 3):
        note(tmp_path, f"x = {number}\n" + "y" * 1000)
    assert new.take(state) and not new.take(state)
    assert len(state["pokes"]) == pokes.MAX_SHOWN and state["pokes"][-1]["text"].startswith("x = 22 yyy")
    assert all(len(row["text"]) <= pokes.MAX_TEXT for row in state["pokes"])


@pytest.mark.parametrize("text", ["", "[]\n", '{"time": "soon"}\n', "\x00\xff\n", '{"time": 1}\n', "null\n"])
def test_damaged_file_of_statements_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / POKES).write_text(text)
    state: dict[str, Any] = {}
    assert not pokes.NewPokes(str(tmp_path)).take(state) and not state


@pytest.mark.parametrize("rows", [None, 3, [1], [{"time": "x"}], [{"time": 1e300}], [{"text": "x"}]])
def test_damaged_state_has_no_statements(rows: Any) -> None:
    assert status_of({"state": "running", "pokes": rows}).pokes == ()


def test_status_has_the_statements_of_the_state(tmp_path: Path) -> None:
    state = {"state": "running", "pokes": [{"time": 130.0, "who": "anna on gpu1", "step": 7, "text": "lr /= 10"}]}
    assert status_of(state).pokes == (POKE,)


def test_record_text_and_charts_show_the_statement() -> None:
    status = RunStatus(state=RunState.RUNNING, phases=(Phase(name="running", start=100.0),), pokes=(POKE,))
    run = Run(handle=make_handle("local", "r-22222"), spec=JobSpec(name="r"), status=status, created=90.0)
    entry = Entry(run)
    entry.metrics.metrics["loss"] = Metric()
    entry.metrics.metrics["loss"].append(7, 120.0, 0.5)
    record = record_of(entry)
    text = "after 30 s, step 7, by anna on gpu1: lr /= 10"
    assert f"poke {text}" in record_text(record)
    (mark,) = charts_of(record).marks
    assert (mark.time, mark.step, mark.label) == (130.0, 7, text)


def test_failed_statement_names_its_error() -> None:
    assert "(NameError: x)" in poke_text(Poke(time=1.0, text="x", error="NameError: x"), None)


def test_note_of_a_repetition_counts_the_statements() -> None:
    assert repeat_note("local/a", ()) == ""
    assert "2 statements" in repeat_note("local/a", (POKE, POKE)) and "lr /= 10" in repeat_note("local/a", (POKE,))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("pokes")) as module:
        yield module


@pytest.mark.thorough
def test_poked_run_shows_it_when_it_has_ended(api: Any, tmp_path: Path) -> None:
    end = tmp_path / "end"
    code = "import os, time, mlflow\nmlflow.log_metric('loss', 1, step=12)\nlr = 1\n"
    code += f"while not os.path.exists({str(end)!r}):\n    time.sleep(0.1)\nprint(lr)\n"
    run, plain = (api.submit(code, name=name) for name in ("poked", "plain"))
    until(lambda: run.metrics().get("loss"), "the metric")
    run.poke("lr = 2")
    until(lambda: run.record().pokes, "the statement")
    end.touch()
    run.wait(60), plain.wait(60)
    (poke,) = api.attach(run.handle).run.status.pokes
    assert poke.text == "lr = 2" and poke.step == 12 and run.logs() == "2\n"
    table = run_command("runs", ["compare", run.handle, plain.handle], Context(prog="%aml_runs")).text
    assert "lr = 2" in table
    assert any("lr = 2" in note for note in repeated_spec(run, {}).notes)
