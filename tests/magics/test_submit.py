from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import (
    AmlTrainError,
    CommandError,
    MissingDependency,
    PreflightError,
    ResultMissing,
    RunError,
    RunFailed,
    UnknownTarget,
)
from jupyter_amltrain.output.text_view import record_text

from ..helpers import until
from .conftest import Cell

Fails = Callable[[str], AmlTrainError]


def test_submit_wait_returns_out_values(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    ip.user_ns["rate"] = 0.25
    result = cell("%%aml_submit --param lr=$rate --out double --wait --name digits\ndouble = {'x': lr * 2}")
    assert ip.user_ns["double"] == {"x": 0.5}
    assert result.result.handle.startswith("local/digits-")
    assert f"double = {{'x': 0.5}}  (from {result.result.handle})" in capsys.readouterr().out


@pytest.mark.thorough
def test_results_and_echo_of_values_agree(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    source = (
        "import pandas\nframe = pandas.DataFrame({'a': range(50)})\npair, few = (1, 'a'), {1, 2}\nbare = float('nan')"
    )
    run = cell(f"%%aml_submit --out frame,pair,few,bare --wait\n{source}").result
    echo, record = capsys.readouterr().out, repr(run.record().outputs)
    for text in ("pair = (1, 'a')", "few = {1, 2}", "bare = nan"):
        assert f"{text}  (from {run.handle})" in echo and text in record_text(run.record())
    assert ip.user_ns["few"] == {1, 2} and "<DataFrame 50 x 1>" in record
    lines = echo.partition(f"frame  (from {run.handle}):\n")[2].splitlines()
    assert lines[0].split() == ["a"] and lines[1].split() == ["0", "0"] and lines[11].split() == ["49", "49"]


def test_submit_without_wait_sets_out_values_in_next_cell(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    gate = Path("gate")
    source = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.02)\nn = 3"
    cell(f"%%aml_submit --as run --out n --out m\n{source}\nif n < 3: m = 1")
    run = ip.user_ns["run"]
    cell("x = 1")
    assert "n" not in ip.user_ns
    gate.touch()
    run.wait(60)
    cell("seen = n")
    assert ip.user_ns["seen"] == 3
    out = capsys.readouterr().out
    assert f"n = 3  (from {run.handle})" in out and "ResultMissing: " in out and "m" not in ip.user_ns
    cell("n = 5")
    cell("pass")
    assert ip.user_ns["n"] == 5  # assigned once only


def test_submit_out_of_failed_run_is_reported_unset(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    cell("%%aml_submit --as run --out n\nn = 1 / 0")
    with pytest.raises(RunFailed):
        ip.user_ns["run"].wait(60)
    cell("pass")
    assert f"{ip.user_ns['run'].handle} failed: n not set." in capsys.readouterr().out


@pytest.mark.thorough
def test_failed_run_deletes_value_of_earlier_run(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    def failed() -> None:
        cell("%%aml_submit --out n --as run\nraise SystemExit(1)\nn = 4")
        with pytest.raises(RunFailed):
            ip.user_ns["run"].wait(60)
        cell("pass")

    cell("%%aml_submit --wait --out n\nn = 3")
    failed()
    assert "n" not in ip.user_ns and "deleted: n of" in capsys.readouterr().out
    cell("%%aml_submit --wait --out n\nn = 3")
    ip.user_ns["n"] = "the user's own"
    failed()
    assert ip.user_ns["n"] == "the user's own"


def test_submit_wait_missing_out_fails_cell(ip: InteractiveShell, fails: Fails) -> None:
    error = fails("%%aml_submit --wait --out a --out b\nimport threading\nb = 1; a = threading.Lock()")
    assert isinstance(error, ResultMissing) and ip.user_ns["b"] == 1


@pytest.mark.thorough
def test_submit_missing_out_error_names_each_value(ip: InteractiveShell, fails: Fails) -> None:
    source = "import numpy, threading\ncoefs = numpy.arange(3)\nmodel = threading.Lock()\nn = 1\nif n > 1: never = 1"
    error = fails(f"%%aml_submit --wait --as run --out coefs,model,n,never\n{source}")
    run = ip.user_ns["run"]
    banner = run.record().error
    assert ip.user_ns["n"] == 1 and banner is not None
    assert ip.user_ns["coefs"].tolist() == [0, 1, 2]
    assert all(word in str(error) for word in ("model", "pickled", "never")) and "\n" not in str(error)
    assert "never" in banner and "\n" not in banner
    assert {"coefs.npy", "model.txt"} <= {path.name for path in Path(run.run.folder, "outputs").iterdir()}


def test_submit_out_typo_is_refused_without_run(fails: Fails, api: Any) -> None:
    error = fails("%%aml_submit --wait --out acuracy\naccuracy = 1")
    assert isinstance(error, PreflightError) and "accuracy?" in str(error) and not api.runs()


def test_submit_wait_failed_run_fails_cell(fails: Fails) -> None:
    error = fails("%%aml_submit --wait --param x=1\n\nraise ValueError('no')")
    assert isinstance(error, RunFailed) and error.cell_line == 3
    assert "ValueError: no" in str(error) and "line 3 of the cell" in str(error)


def test_submit_wait_interrupted_keeps_run(ip: InteractiveShell, fails: Fails, cell: Cell) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until(lambda: "run" in ip.user_ns and ip.user_ns["run"].run.status.state.value == "running")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    source = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.02)\nn = 3"
    error = fails(f"%%aml_submit --wait --as run --out n\n{source}")
    thread.join()
    run = ip.user_ns["run"]
    assert isinstance(error, RunError) and f"%aml_runs cancel {run.handle}" in str(error)
    Path("gate").touch()
    run.wait(60)
    cell("pass")
    assert ip.user_ns["n"] == 3


def test_submit_script_gets_arguments(ip: InteractiveShell, cell: Cell) -> None:
    Path("train.py").write_text(
        "import json, os, sys\n"
        "with open(os.environ['AML_OUTPUT_DIR'] + '/argv.json', 'w') as file:\n"
        "    json.dump({'name': 'argv', 'value': sys.argv[1:]}, file)\n"
    )
    cell("%aml_submit train.py --param lr=0.1 --out argv --wait -- --verbose 'a b'")
    assert sorted(ip.user_ns["argv"]) == sorted(["--lr", "0.1", "--verbose", "a b"])


DATA_LINE = "--input data=data --output model --param data_dir='${{inputs.data}}' --param 'model=${{outputs.model}}/m'"


@pytest.mark.thorough
def test_submit_input_as_param_is_path(ip: InteractiveShell, cell: Cell) -> None:
    Path("data").mkdir()
    Path("data/a.txt").write_text("seven")
    source = "data_dir = 'elsewhere'\nimport pathlib\ntext = pathlib.Path(data_dir, 'a.txt').read_text()\nplace = model"
    cell(f"%%aml_submit {DATA_LINE} --out text,place,data_dir --wait\n{source}")
    assert ip.user_ns["text"] == "seven" and ip.user_ns["data_dir"] == str(Path("data").resolve())
    assert ip.user_ns["place"].endswith("/outputs/model/m")


def test_submit_input_as_argument_is_path(ip: InteractiveShell, cell: Cell) -> None:
    Path("data").mkdir()
    Path("train.py").write_text(
        "import json, os, sys\n"
        "with open(os.environ['AML_OUTPUT_DIR'] + '/argv.json', 'w') as file:\n"
        "    json.dump({'name': 'argv', 'value': sys.argv[1:]}, file)\n"
    )
    line = f"{DATA_LINE} --input rate=0.5,literal --param lr='${{{{inputs.rate}}}}'"
    cell(f"%aml_submit train.py {line} --out argv --wait -- --also '${{{{inputs.data}}}}/x'")
    place = str(Path("data").resolve())
    first, model = ip.user_ns["argv"][:4], ip.user_ns["argv"][4:]
    assert first == ["--also", f"{place}/x", "--data_dir", place]
    assert model[0] == "--model" and model[1].endswith("/outputs/model/m") and model[2:] == ["--lr", "0.5"]


def test_submit_unknown_input_is_refused_without_run(fails: Fails, api: Any) -> None:
    error = fails("%%aml_submit --param data_dir='${{inputs.data}}'\nprint(data_dir)")
    assert "--input data=" in str(error) and not api.runs()


@pytest.mark.thorough
def test_submit_includes_source_folder_and_local_modules(ip: InteractiveShell, cell: Cell) -> None:
    Path("lib.py").write_text("x = 'beside'")
    Path("src").mkdir()
    Path("src/lib.py").write_text("x = 'source'")
    Path("src/script.py").write_text("raise SystemExit('not this one')")
    cell("%%aml_submit --wait --out a\nfrom lib import x as a")
    assert ip.user_ns["a"] == "beside"
    cell("%%aml_submit --wait --out a --source src\nfrom lib import x as a")
    assert ip.user_ns["a"] == "source"


def test_submit_env_var_and_secret_reach_job(
    ip: InteractiveShell, cell: Cell, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "s3cr3t-value")
    source = "import os\nok = os.environ['HUB_TOKEN'] == 's3cr3t' + '-value' and os.environ['A'] == 'b c'"
    cell(f"%%aml_submit --wait --out ok --secret HUB_TOKEN --env-var 'A=b c'\n{source}")
    assert ip.user_ns["ok"] is True
    cell(f"%%aml_submit --dry-run --secret HUB_TOKEN\n{source}")
    assert "s3cr3t-value" not in capsys.readouterr().out
    for path in home.rglob("*"):
        if path.is_file():
            assert b"s3cr3t-value" not in path.read_bytes(), path


def test_submit_secret_without_value_is_refused(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUB_TOKEN", raising=False)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    error = fails("%%aml_submit --secret HUB_TOKEN\nx = 1")
    assert isinstance(error, CommandError | MissingDependency)
    assert "keyring set amltrain HUB_TOKEN" in str(error) or "getpass" in str(error)


def test_submit_dry_run_prints_request_without_run(cell: Cell, capsys: Any, api: Any) -> None:
    cell("%%aml_submit --dry-run --param lr=0.1 --tag team=risk --timeout 15m\nx = lr")
    request = json.loads(capsys.readouterr().out)
    assert request["spec"]["params"] == {"lr": 0.1} and request["timeout"] == 900
    assert api.runs() == []


BAD_LINES: list[tuple[str, type[AmlTrainError], str]] = [
    ("%%aml_submit\n  \n", CommandError, "the cell is empty"),
    ("%%aml_submit\nx = 1\n%debug", PreflightError, "Cell line 3"),
    ("%%aml_submit\nx?", PreflightError, "Cell line 2"),
    ("%%aml_submit\nx = = 1", PreflightError, "Cell line 2"),
    ("%%aml_submit\nx = input()", PreflightError, "Cell line 2"),
    ("%%aml_submit --targt local\nx = 1", CommandError, "--target"),
    ("%%aml_submit --target locl\nx = 1", UnknownTarget, "Did you mean local?"),
    ("%%aml_submit train.py\nx = 1", CommandError, "unexpected argument"),
    ("%%aml_submit -- --x\nx = 1", CommandError, "no arguments after"),
    ("%%aml_submit --param lr=$missing\nx = 1", CommandError, "no variable missing"),
    ("%%aml_submit --out a-b\nx = 1", CommandError, "--out"),
    ("%%aml_submit --timeout 0\nx = 1", CommandError, "--timeout"),
    ("%%aml_submit --name 'a/b'\nx = 1", CommandError, "--name"),
    ("%%aml_submit --name " + "x" * 65 + "\nx = 1", CommandError, "1 to 64"),
    ("%%aml_submit --secret A --env-var A=1\nx = 1", CommandError, "Give it once"),
    ("%aml_submit", CommandError, "no script"),
    ("%aml_submit nofile.py", CommandError, "Cannot read"),
]


def test_submit_line_invalid_is_refused(ip: InteractiveShell, fails: Fails, api: Any) -> None:
    for source, kind, text in BAD_LINES:
        error = fails(source)
        assert isinstance(error, kind) and text in str(error), source
        assert "\n" not in str(error)
    assert api.runs() == []


def test_submit_empty_cell_fails(ip: InteractiveShell) -> None:
    assert not ip.run_cell("%%aml_submit\n").success


def test_submit_defaults_come_from_config(ip: InteractiveShell, cell: Cell, capsys: Any) -> None:
    cell("%config AMLTrain.timeout = '15m'")
    cell("%config AMLTrain.experiment = 'digits'")
    cell("%%aml_submit --dry-run\nx = 1")
    request = json.loads(capsys.readouterr().out)
    assert (request["timeout"], request["experiment"]) == (900, "digits")
    cell("%%aml_submit --dry-run --timeout 1h --experiment mine\nx = 1")
    request = json.loads(capsys.readouterr().out)
    assert (request["timeout"], request["experiment"]) == (3600, "mine")
    cell("%config AMLTrain.target = 'gone'")
    with pytest.raises(UnknownTarget):
        ip.run_cell("%%aml_submit --dry-run\nx = 1").raise_error()


def test_submit_experiment_and_name_default_to_notebook(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/a/b/01_digits.ipynb")
    cell("%%aml_submit --dry-run\nx = 1")
    request = json.loads(capsys.readouterr().out)
    assert (request["name"], request["experiment"]) == ("01_digits", "01_digits")


@pytest.mark.thorough
def test_submit_param_replaces_assignment_and_is_recorded(ip: InteractiveShell, cell: Cell) -> None:
    cell("%%aml_submit --as run --wait --param lr=0.3 --param epochs=2 --out seen\nlr = 0.1\nn_epochs = seen = lr")
    run = ip.user_ns["run"]
    assert ip.user_ns["seen"] == 0.3 and run.spec.params == {"lr": 0.3, "epochs": 2}
    job = json.loads(Path(run.run.folder, "job.json").read_bytes())
    assert job["spec"]["params"]["lr"] == 0.3
    assert "lr = 0.3  # --param, was 0.1" in Path(run.run.folder, "source", "script.py").read_text()
    notes = run.record().notes
    assert len(notes) == 2 and "line 2" in notes[0] and "n_epochs" in notes[1]
    assert f"note: {notes[0]}" in run._repr_mimebundle_()["text/plain"]


def test_submit_param_overridden_by_cell_is_refused(fails: Fails, capsys: Any) -> None:
    assert isinstance(fails("%%aml_submit --param lr=0.3\n\nlr = float('0.1')"), PreflightError)
    error = fails("%%aml_submit --param lr=0.3\n\nlr = float('0.1')")
    assert "Cell line 3" in str(error) and "--param lr" in str(error)


@pytest.mark.thorough
def test_places_of_metric_pattern_are_no_variables_of_the_notebook(ip: InteractiveShell, cell: Cell) -> None:
    ip.user_ns.update(value=3, step="x", label="b7")
    flag = "--metric 'loss=loss {value} of {} at {step}'"
    cell(f"%%aml_submit --as run --wait --tag a=$label {flag}\nfor i in range(3): print('loss', i / 2, 'of y at', i)")
    record = ip.user_ns["run"].record()
    assert ip.user_ns["run"].spec.tags == {"a": "b7"}
    assert list(record.metrics["loss"].step) == [0, 1, 2]


def test_metric_pattern_without_a_place_is_refused(fails: Fails) -> None:
    error = fails("%%aml_submit --metric 'loss=Loss'\nprint(1)")
    assert isinstance(error, CommandError) and error.code == "flag.value"
    assert "--metric" in str(fails("%%aml_submit --metrics 'loss=Loss {value}'\nprint(1)"))


@pytest.mark.thorough
def test_line_in_a_function_has_its_variables(ip: InteractiveShell, cell: Cell) -> None:
    code = "get_ipython().run_cell_magic('aml_submit', '--wait --as run --name $label', 'print(1)')"
    cell(f"def submit(label):\n    {code}\nsubmit('b8')")
    assert ip.user_ns["run"].spec.name == "b8"


def test_autolog_setting_is_that_of_each_run(ip: InteractiveShell, cell: Cell) -> None:
    cell("%config AMLTrain.autolog = True")
    cell("%%aml_submit --as run --wait\nprint(1)")
    cell("%config AMLTrain.autolog = False")
    assert ip.user_ns["run"].spec.autolog


@pytest.mark.thorough
def test_warm_setting_is_variable_of_kernel_and_not_of_job(
    ip: InteractiveShell, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMLTRAIN_WARM", "")
    code = "import os\nprint('value', os.environ['AMLTRAIN_WARM'])"
    cell("%config AMLTrain.warm = False")
    cell(f"%%aml_submit --as run --wait\n{code}")
    assert "value 0" in ip.user_ns["run"].logs() and not ip.user_ns["run"].spec.env
    cell("%config AMLTrain.warm = True")
    assert "AMLTRAIN_WARM" not in os.environ
