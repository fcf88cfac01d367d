"""Faults from the submit to the record, over the real agent, in a home with an awkward name."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_amltrain.errors import ResultMissing, RunFailed

from .contracts.failed_values import CELL, check_failed_values
from .helpers import DEADLINE, api_of, until

HOME = "state of Zoë, 数 'quoted' $HOME"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("faults"), HOME) as module:
        yield module


def python(code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Another process of the same user, as another notebook would be."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---- the sink is killed


def sinks(run: Any) -> list[psutil.Process]:
    """Helpers of a run that listen: its sink (a sampler may hold the socket too, and is as good a victim)."""
    state = json.loads((Path(run.run.folder) / "state.json").read_text())
    found = []
    for child in psutil.Process(state["supervisor"]["pid"]).children():
        with contextlib.suppress(psutil.Error):
            if child.pid != state["rank"]["pid"] and child.net_connections("tcp"):
                found.append(child)
    return found


@pytest.mark.thorough
def test_killed_mlflow_sink_loses_and_doubles_nothing(api: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"""
import mlflow, os, time
for i in range(80):
    mlflow.log_metric("m", float(i), step=i)
    if i == 60:
        while not os.path.exists({str(gate)!r}): time.sleep(0.02)
"""
    run = api.submit(code, name="story")
    killed = set()
    for count in (10, 30, 61):  # twice in the flood of calls, once in the quiet
        until(lambda count=count: len(run.metrics().get("m", ())) >= count)
        # On a busy machine the one that was killed last may still be listed.
        for sink in until(lambda: [one for one in sinks(run) if one.pid not in killed]):
            killed.add(sink.pid)
            sink.kill()
    gate.touch()
    run.wait(DEADLINE)
    assert len(killed) >= 3
    assert [(step, value) for step, _, value in run.metrics()["m"]] == [(i, float(i)) for i in range(80)]
    until(lambda: run.run.tracking == "imported")
    with sqlite3.connect(Path(run.run.project) / ".amltrain" / "mlflow.db") as database:
        (rows,) = database.execute("SELECT count(*), count(DISTINCT step) FROM metrics WHERE key='m'").fetchall()
    database.close()
    assert rows == (80, 80)


# ---- many at once

MANY = """
import sys
from jupyter_amltrain import api
runs = [api.submit(f"print({i})\\nn = {i}", name=sys.argv[1], out=["n"]) for i in range(50)]
print(sum(run.wait(300).result("n") == i for i, run in enumerate(runs)))
"""


@pytest.mark.thorough
def test_two_kernels_with_50_submits_each_complete(api: Any) -> None:
    both = [python(MANY, name) for name in ("left", "right")]
    for process in both:
        out, err = process.communicate(timeout=170)
        assert process.returncode == 0, err[-3000:]
        assert out == "50\n"
    found = [run.run for run in api.runs() if run.name in ("left", "right")]
    assert len(found) == len({run.handle for run in found}) == 100
    assert {run.status.state.value for run in found} == {"completed"}
    assert not list(Path(os.environ["AMLTRAIN_HOME"], "staging").iterdir())  # every file found its run


# ---- a kernel dies before the record is written

DIES = """
from jupyter_amltrain import api
run = api.submit("import mlflow\\nmlflow.log_metric('loss', 0.25, step=3)", name="orphan", experiment="faults")
print(run.handle, flush=True)
run.wait(300)
raise SystemExit("the failpoint was not reached")
"""


@pytest.mark.thorough
def test_import_left_by_dead_kernel_is_done_by_next(api: Any) -> None:
    process = python(DIES, AMLTRAIN_FAILPOINT="kernel_before_import")
    out, _ = process.communicate(timeout=170)
    assert process.returncode == -signal.SIGKILL
    run = api.attach(out.strip())
    assert run.run.tracking == "pending" and run.wait(DEADLINE).state == "completed"
    until(lambda: run.run.tracking == "imported")
    with sqlite3.connect(Path(run.run.project) / ".amltrain" / "mlflow.db") as database:
        found = database.execute(
            "SELECT status, step, value FROM runs JOIN metrics USING (run_uuid)"
            " WHERE name='orphan' AND key NOT LIKE 'system/%'"
        ).fetchall()
    database.close()
    assert found == [("FINISHED", 3, 0.25)]
    again = api.attach("orphan")
    assert again.run.tracking == "imported"


# ---- names and places


@pytest.mark.parametrize("name", ["n" * 64, "数" * 64, "a  b", "--help", "..", "é'\"`$(x)"])
def test_run_with_awkward_name_completes(api: Any, name: str) -> None:
    run = api.submit("print('hi')", name=name)
    assert run.wait(DEADLINE).name == name and run.logs() == "hi\n"
    assert api.attach(run.run_id).handle == run.handle


def test_out_with_overlong_name_is_missing(api: Any) -> None:
    name = "v" * 260
    run = api.submit(f"{name} = 1\nn = 2", out=[name, "n"])
    run.wait(DEADLINE)
    assert run.result("n") == 2
    with pytest.raises(ResultMissing, match="ended before its last line"):
        run.result(name)


def test_state_root_with_awkward_name_works(api: Any) -> None:
    assert HOME in api.compute().home
    code = "import os\nprint(os.environ['AML_OUTPUT_DIR'], os.environ['AML_NOTEBOOK_DIR'])\nhere = os.getcwd()\n"
    run = api.submit(code, out=["here"], secrets={"TOKEN": "s3cret-value"}, env={"A": "1"})
    run.wait(DEADLINE)
    assert HOME in run.logs() and run.result("here") == os.getcwd()
    script = Path("näme with blanks.py")
    script.write_text("import sys\nprint(sys.argv[1:], __file__)\n")
    run = api.submit(script, params={"lr": 0.1})
    run.wait(DEADLINE)
    assert run.logs().startswith("['--lr', '0.1']") and script.name in run.logs()
    for path in Path(os.environ["AMLTRAIN_HOME"]).rglob("*"):
        if path.is_file():
            assert b"s3cret-value" not in path.read_bytes(), path


@pytest.mark.thorough
def test_large_params_and_code_run(api: Any) -> None:
    code = "\n".join(f"v{i} = {i}" for i in range(20_000)) + "\nn = len(text) + v19999"
    run = api.submit(code, params={"text": "é" * 200_000}, out=["n"])
    assert run.wait(DEADLINE).result("n") == 219_999


# ---- the job's process


def test_failed_run_shows_its_values(api: Any) -> None:
    check_failed_values(api.submit(CELL), DEADLINE)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGABRT", "SIGUSR1"])
def test_externally_killed_script_error_names_signal(api: Any, name: str) -> None:
    run = api.submit("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    pid = int(until(lambda: run.logs()))
    os.kill(pid, getattr(signal, name))
    with pytest.raises(RunFailed, match=f"illed by {name}") as caught:
        run.wait(DEADLINE)
    assert caught.value.exit_code is None and run.status.signal == getattr(signal, name)
