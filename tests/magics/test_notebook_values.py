"""``--in``, ``--with`` and values of ``--out`` in a notebook, on the real local target."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from jupyter_amltrain.commands.resubmit import resubmit
from jupyter_amltrain.errors import AmlTrainError, PreflightError, ResultMissing, SubmitError
from jupyter_amltrain.output import result_value

from ..contracts.kept_files import check_example_output, check_kept_files
from ..contracts.notebook_values import check_round_trip
from .conftest import Cell

Fails = Callable[[str], AmlTrainError]


@pytest.fixture
def cell(ip: InteractiveShell) -> Cell:
    """Run a cell that must succeed, as a notebook does: it stays in the history."""

    def run(source: str) -> ExecutionResult:
        result = ip.run_cell(source, store_history=True)
        result.raise_error()
        return result

    return run


@pytest.mark.thorough
def test_every_value_comes_back(api: Any) -> None:
    check_round_trip("local", 120)


def test_outputs_and_logs_are_kept(api: Any, tmp_path: Path) -> None:
    check_kept_files("local", tmp_path, 60)
    check_example_output("local", tmp_path, 60)


def test_outputs_of_a_cell_in_the_notebook_folder_are_noted(cell: Cell, ip: InteractiveShell) -> None:
    cell("%%aml_submit --as run --wait\nimport os\nos.makedirs('outputs')\nopen('outputs/x.txt', 'w').close()")
    (note,) = ip.user_ns["run"].record().notes
    assert "AML_OUTPUT_DIR" in note and "Line 4" in note and Path("outputs/x.txt").exists()


def test_variable_of_the_notebook_is_refused_with_the_flags(cell: Cell, fails: Fails, api: Any) -> None:
    cell("import math\ndf = [1]\ndef clean(x): return x")
    error = fails("%%aml_submit\n\nprint(clean(df), math.pi)")
    assert isinstance(error, PreflightError) and error.code == "preflight.notebook_name"
    assert "--with clean --in df" in error.hint and "import math" in error.hint and not api.runs()
    assert error.details["line"] == 3


def test_function_is_sent_as_it_was_last_run(cell: Cell, ip: InteractiveShell) -> None:
    cell("K = 2\ndef f(x):\n    return x * K")
    cell("def f(x):\n    return x * K + 1")
    cell("%%aml_submit --with f --out n --wait\nn = f(3)")
    assert ip.user_ns["n"] == 7


def test_named_cell_runs_here_and_is_sent(cell: Cell, fails: Fails, ip: InteractiveShell) -> None:
    cell("%%aml_cell setup\nimport math\nRATE = math.pi\nK = 2\ndef area(r): return RATE * r**K")
    assert ip.user_ns["RATE"] > 3  # as without the line
    cell("%%aml_submit --with setup --out n --wait\nn = math.floor(area(2)) + K")
    assert ip.user_ns["n"] == 14
    cell("%%aml_submit --with area --out n --wait\nn = area(1) > 3")  # a function of the cell alone
    assert ip.user_ns["n"] is True


def test_named_cell_that_fails_stops_run_all(fails: Fails) -> None:
    assert fails("%%aml_cell setup\n1 / 0").code == "cell.failed"
    assert fails("%%aml_cell setup\n  \n").code == "cell.empty"


def test_value_is_that_of_the_submit(cell: Cell, ip: InteractiveShell) -> None:
    cell("data = {'x': [1]}")
    cell("%%aml_submit --in data --out n --as run\nimport time; time.sleep(0.2)\nn = data['x']")
    cell("data['x'] = [2]")
    assert ip.user_ns["run"].wait(60).result("n") == [1]


def test_cell_may_change_a_value(cell: Cell, ip: InteractiveShell) -> None:
    cell("total = 1")
    cell("%%aml_submit --in total --param k=2 --out total --wait\ntotal += k")
    assert ip.user_ns["total"] == 3


def test_run_again_has_the_same_values(cell: Cell, ip: InteractiveShell, api: Any, home: Path) -> None:
    cell("import numpy\narr = numpy.arange(4)")
    cell("%%aml_submit --in arr --out n --as run --wait\nn = int(arr.sum())")
    for file in (home / "values").iterdir():
        file.unlink()  # as after 30 days: the run has its own copy
    spec, _ = resubmit(ip.user_ns["run"].run, ip.user_ns["run"].reader)
    assert api.submit_spec(spec).wait(60).result("n") == 6


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--in missing", "values.unknown"),
        ("--in handle", "values.form"),
        ("--in token", "spec.secret"),
        ("--in clean", "values.form"),
        ("--with df", "submit.source"),
        ("--with nothing", "submit.source"),
    ],
)
def test_what_cannot_be_sent_is_one_line(cell: Cell, fails: Fails, line: str, code: str, api: Any) -> None:
    cell("df = [1]\nhandle = open('/dev/null')\ntoken = 'hf_' + 'a1B2' * 9\ndef clean(): ...")
    error = fails(f"%%aml_submit {line}\nprint(1)")
    assert isinstance(error, SubmitError) and error.code == code and "\n" not in str(error) and not api.runs()


def test_too_large_value_is_refused_before_it_is_written(cell: Cell, fails: Fails, home: Path) -> None:
    cell("import numpy\nbig = numpy.broadcast_to(numpy.zeros(1), (1 << 40,))")
    error = fails("%%aml_submit --in big\nprint(big.shape)")
    assert error.code == "values.size" and "--input big=FILE" in error.hint
    assert not (home / "values").exists() or not list((home / "values").iterdir())


def test_pickle_needs_consent_on_both_ways(cell: Cell, fails: Fails, ip: InteractiveShell) -> None:
    cell("import collections\ncounts = collections.deque('aab')")
    assert fails("%%aml_submit --in counts\nprint(counts)").code == "values.form"
    cell("%%aml_submit --in counts --allow-pickle --out back --as run --wait\nback = counts")
    assert ip.user_ns["back"] == ip.user_ns["counts"]
    with pytest.raises(ResultMissing) as caught:
        ip.user_ns["run"].result("back")
    assert caught.value.code == "result.pickle" and "allow_pickle=True" in caught.value.hint


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_malicious_result_is_not_read(cell: Cell, ip: InteractiveShell) -> None:
    """A run can write anything into its outputs."""
    data = pickle.dumps(Evil())
    record = '{"amltrain": 1, "name": "x", "error": "no", "file": "x.npy", "type": "numpy.ndarray"}'
    cell(
        "%%aml_submit --out x --as run\nimport os, atexit\nx = 1\n"
        f"folder = os.environ['AML_OUTPUT_DIR']\nopen(folder + '/x.npy', 'wb').write({data!r})\n"
        f"atexit.register(lambda: open(folder + '/x.json', 'w').write({record!r}))"
    )
    run = ip.user_ns["run"].wait(60)
    with pytest.raises(ResultMissing) as caught:
        run.result("x")
    assert caught.value.code == "result.damaged" and not Path("evil").exists()


def test_masked_result_keeps_its_mask(cell: Cell, ip: InteractiveShell) -> None:
    cell(
        "%%aml_submit --out m --allow-pickle --wait\nimport numpy\nm = numpy.ma.masked_array([1.0, 2.0], [True, False])"
    )
    assert ip.user_ns["m"].mask.tolist() == [True, False]


def test_large_result_is_a_handle(
    cell: Cell, ip: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(result_value, "LAZY_BYTES", 1000)
    cell("%%aml_submit --out arr --wait\nimport numpy\narr = numpy.arange(1000)")
    handle = ip.user_ns["arr"]
    assert handle.size > 8000 and "1000" in repr(handle) and "load()" in capsys.readouterr().out
    assert handle.load().sum() == 499_500
    with pytest.raises(TypeError):
        list(handle)


@pytest.mark.thorough
def test_figure_comes_back_as_picture(cell: Cell, ip: InteractiveShell) -> None:
    cell(
        "%%aml_submit --out fig --wait\nimport matplotlib\nmatplotlib.use('agg')\n"
        "import matplotlib.pyplot as plt\nfig, axes = plt.subplots()\naxes.plot([1, 2])"
    )
    assert io.BytesIO(ip.user_ns["fig"].data).read(4) == b"\x89PNG"
