"""What a cell that runs in Azure shows of itself, figures, values and lines: the same as here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.connected_api import lab, log, submit
from tests.contracts import failed_values
from tests.helpers import DEADLINE, until

CELL = """\
import time
import matplotlib.pyplot as plt
import mlflow

plt.plot([1, 2]); plt.title("Loss"); plt.show()
print("shown", flush=True)
fig, ax = plt.subplots()
ax.plot([1])
mlflow.log_figure(fig, "plots/confusion.png")
time.sleep(wait)
"""


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("figures")) as module:
        yield module


@pytest.mark.thorough
def test_figures_in_azure_are_in_record(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)
    run = submit("--target cpu --param wait=0", CELL).wait(DEADLINE)
    record = run.record()
    assert [(one.picture, one.title) for one in record.displays] == [("pictures/figure-1.png", "Loss")], log(run)
    (picture,) = record.pictures
    assert picture.name == "confusion.png" and picture.thumbnail


@pytest.mark.thorough
def test_figure_in_azure_is_shown_while_job_runs(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)
    run = submit("--target cpu --param wait=600", CELL)
    frames: list[Any] = []
    run.watch(lambda record, picture: frames.append(record))
    until(lambda: frames and frames[-1].displays, "the figure in a frame")
    assert frames[-1].state == "running" and frames[-1].displays[0].title == "Loss"
    run.cancel()


TABLE = """\
import time
class Table:
    def __repr__(self): return "a table"
    def _repr_html_(self): return "<table><tr><td>cell</td></tr></table>"
print("before", flush=True)
display(Table())
print("after", flush=True)
time.sleep(wait)
"""


@pytest.mark.thorough
def test_table_in_azure_is_shown_while_job_runs(api: Any) -> None:
    run = submit("--target cpu --param wait=600", TABLE)
    frames: list[Any] = []
    run.watch(lambda record, picture: frames.append(record))
    until(lambda: frames and frames[-1].displays and "after" in frames[-1].log.tail, "the table in a frame")
    (table,) = frames[-1].displays
    assert frames[-1].state == "running" and "cell" in table.data["text/html"]
    assert frames[-1].log.tail.split("\n")[table.line] == "a table"
    run.cancel()


@pytest.mark.thorough
def test_failed_run_in_azure_shows_its_values(api: Any) -> None:
    failed_values.check_failed_values(submit("--target cpu", failed_values.CELL), DEADLINE)


SLOW = """\
import time
def load():
    for _ in range(40):
        time.sleep(0.05)
        print("loaded", flush=True)
load()
time.sleep(wait)
"""


@pytest.mark.thorough
def test_ended_run_in_azure_has_its_lines(api: Any) -> None:
    run = submit("--target cpu --param wait=0.5", SLOW).wait(DEADLINE)
    lines = run.lines
    assert lines.loc[lines["share"].idxmax(), "code"].strip() == "time.sleep(0.05)", log(run)


@pytest.mark.thorough
def test_running_run_in_azure_has_lines(api: Any) -> None:
    run = submit("--target cpu --param wait=600", SLOW)
    until(lambda: len(run.lines), "lines of a running job")
    run.cancel()


@pytest.mark.thorough
def test_run_in_azure_without_lines_has_none(api: Any) -> None:
    run = submit("--target cpu --no-lines --param wait=0.5", SLOW).wait(DEADLINE)
    assert not len(run.lines)
