"""The plain functions, and children of the process that uses them: data loaders, pools, forks."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError

from .helpers import api_of, until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("forks")) as module:
        yield module


@pytest.mark.thorough
def test_forked_child_end_keeps_parent_worker(api: Any) -> None:
    run = api.submit("x = 1", name="before", gpus=0).wait(60)
    until(lambda: run.run.tracking == "imported", "the first import")
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    after = api.submit("x = 1", name="after", gpus=0).wait(60)
    until(lambda: after.run.tracking == "imported", "the import after a child has ended")


def _use(handle: str, answer: Any) -> None:
    from jupyter_amltrain import api

    found = api.attach(handle)
    own = api.submit("out = 2", out=["out"], gpus=0).wait(60)
    answer.send((found.state, own.result("out")))


def test_forked_child_may_use_api(api: Any) -> None:
    run = api.submit("x = 1", name="parent", gpus=0).wait(60)
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_use, args=(run.handle, theirs))
    child.start()
    assert ours.poll(60), "the child hangs"
    assert ours.recv() == ("completed", 2)
    child.join(60)
    assert child.exitcode == 0


def test_non_finite_outputs_are_returned_and_recorded(api: Any) -> None:
    import json

    code = "loss = float('nan')\nbest = {'a': [float('inf'), 1.5]}"
    run = api.submit(code, out=["loss", "best"], gpus=0).wait(60)
    assert run.result("loss") != run.result("loss") and run.result("best") == {"a": [float("inf"), 1.5]}
    bundle = run._repr_mimebundle_()
    json.dumps(bundle, allow_nan=False)
    (record,) = [value for key, value in bundle.items() if "amltrain" in key]
    assert record["outputs"] == {"loss": "nan", "best": {"a": ["inf", 1.5]}}


def test_out_as_text_is_refused(api: Any) -> None:
    from jupyter_amltrain.errors import CommandError

    with pytest.raises(CommandError, match=r"out=\['acc'\]"):
        api.submit("acc = 1", out="acc")


def test_plain_code_error_lines_start_at_one(api: Any) -> None:
    from jupyter_amltrain.errors import PreflightError, RunFailed

    with pytest.raises(RunFailed, match="line 2") as caught:
        api.submit("x = 1\n1 / 0", gpus=0).wait(60)
    assert caught.value.cell_line == 2
    with pytest.raises(PreflightError, match="Line 2"):
        api.submit("x = 1\nx = (")


@pytest.mark.thorough
def test_run_with_deleted_folder_is_lost(api: Any) -> None:
    import shutil

    from jupyter_amltrain.errors import RunLost

    run = api.submit("import time; print('here', flush=True); time.sleep(600)", name="gone", gpus=0)
    until(lambda: "here" in run.logs())
    folder = Path(run.run.folder)
    processes = _pids(str(folder))
    until(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())  # the run writes into it meanwhile
    with pytest.raises(RunLost, match="folder .*gone-"):
        run.wait(60)
    for number in processes:
        os.kill(number, 9)


def _pids(folder: str) -> list[int]:
    """The job's own process, by its script's path."""
    import psutil

    found = [p.pid for p in psutil.process_iter() if any(folder in word for word in _words(p))]
    return [pid for pid in found if pid != os.getpid()]


def _words(process: Any) -> list[str]:
    import psutil

    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_param_replaces_assignment_in_code(api: Any) -> None:
    run = api.submit("lr = 0.1\nseen = lr", params={"lr": 0.3}, out=["seen"], gpus=0).wait(60)
    assert run.result("seen") == run.spec.params["lr"] == 0.3 and "line 1" in run.spec.notes[0]
    with pytest.raises(CommandError, match="--param lr: Line 1, "):
        api.submit("lr = float(1)", params={"lr": 0.3})


@pytest.mark.parametrize("name", ["wine.csv", "job.yml", "notes.txt", "run.sh", "model.bin"])
def test_submit_of_non_python_file_is_refused(api: Any, name: str) -> None:
    from jupyter_amltrain.commands.submit import parse_submit

    path = Path(name)
    path.write_text("x = 1\n")
    with pytest.raises(CommandError, match=f"{name} is not a Python file") as caught:
        api.submit(path)
    assert caught.value.hint and "\n" not in str(caught.value)
    if path.suffix not in (".yml", ".bin"):
        with pytest.raises(CommandError, match="is not a Python file"):
            api.submit(name)
        with pytest.raises(CommandError, match="is not a Python file"):
            parse_submit([name])


def test_experiment_defaults_to_notebook_name(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/digits.ipynb")
    assert api.submit("x = 1", gpus=0).spec.experiment == "digits"
    assert api.submit("x = 1", experiment="own", gpus=0).spec.experiment == "own"
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert api.submit("x = 1", gpus=0).spec.experiment == "default"


@pytest.mark.thorough
def test_cancel_of_ended_run_changes_nothing(api: Any) -> None:
    from jupyter_amltrain.commands.runs import cancel

    run = api.submit("x = 1", gpus=0).wait(60)
    run.cancel()
    assert run.state == "completed" and len(cancel([run.handle])) == 1
