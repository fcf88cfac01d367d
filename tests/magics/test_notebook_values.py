"""``--in``, ``--with`` and values of ``--out`` in a notebook, on the real local target."""

from __future__ import annotations

import collections
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from jupyter_amltrain.commands.resubmit import resubmit
from jupyter_amltrain.errors import AmlTrainError, PreflightError, ResultMissing
from jupyter_amltrain.output import result_value

from ..contracts.kept_files import check_example_output, check_kept_files
from ..contracts.notebook_values import check_cell_as_it_stands, check_kept_values, check_round_trip
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
    check_round_trip("local", 120, is_own=True)


def test_cell_is_submitted_as_it_stands(api: Any) -> None:
    check_cell_as_it_stands("local", 60)


@pytest.mark.thorough
def test_values_are_kept_without_being_named(api: Any) -> None:
    check_kept_values("local", 60, is_own=True)


def test_outputs_and_logs_are_kept(api: Any, tmp_path: Path) -> None:
    check_kept_files("local", tmp_path, 60)
    check_example_output("local", tmp_path, 60)


def test_several_names_stand_after_one_flag(cell: Cell, ip: InteractiveShell) -> None:
    cell("a, b = 1, [2]\ndef f(x):\n    return x + 1\ndef g(x):\n    return 2 * f(x)")
    cell("%%aml_submit --in a,b --with f,g --out c,d --wait\nc = g(a)\nd = f(b[0])")
    assert (ip.user_ns["c"], ip.user_ns["d"]) == (4, 3)


def test_outputs_of_a_cell_in_the_notebook_folder_are_noted(cell: Cell, ip: InteractiveShell) -> None:
    cell("%%aml_submit --as run --wait\nimport os\nos.makedirs('outputs')\nopen('outputs/x.txt', 'w').close()")
    (note,) = ip.user_ns["run"].record().notes
    assert "AML_OUTPUT_DIR" in note and "Line 4" in note and Path("outputs/x.txt").exists()


def test_variable_of_the_notebook_is_refused_with_the_flags(cell: Cell, fails: Fails, api: Any) -> None:
    cell("import math\ndf = [1]\ndef clean(x): return x")
    error = fails("%%aml_submit --isolated\n\nprint(clean(df), math.pi)")
    assert isinstance(error, PreflightError) and error.code == "preflight.notebook_name"
    assert "--with clean --in df" in error.hint and "import math" in error.hint and not api.runs()
    assert error.details["line"] == 3


def test_function_is_sent_as_it_was_last_run(cell: Cell, ip: InteractiveShell) -> None:
    cell("K = 2\ndef f(x):\n    return x * K")
    cell("def f(x):\n    return x * K + 1")
    cell("%%aml_submit --with f --out n --wait\nn = f(3)")
    assert ip.user_ns["n"] == 7


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--in missing", "values.unknown"),
        ("--in handle", "closure.value"),
        ("--in token", "spec.secret"),
        ("--isolated --in clean", "values.form"),
        ("--isolated --in handle", "values.form"),
        ("--with df", "submit.source"),
        ("--with nothing", "submit.source"),
    ],
)
def test_what_cannot_be_sent_is_one_line(cell: Cell, fails: Fails, line: str, code: str, api: Any) -> None:
    cell("df = [1]\nhandle = open('/dev/null')\ntoken = 'hf_' + 'a1B2' * 9\ndef clean(): ...")
    error = fails(f"%%aml_submit {line}\nprint(1)")
    assert error.code == code and "\n" not in str(error) and not api.runs()


def test_class_of_the_notebook_is_in_main(cell: Cell, ip: InteractiveShell, tmp_path: Path) -> None:
    """What it saves can be loaded in the notebook, and by a program that defines it."""
    source = "class Net:\n    def __init__(self, n): self.n = n\n    def twice(self): return double(self.n)\n"
    cell(f"def double(n):\n    return 2 * n\n{source}")
    saved = "import os, pickle\nnet = Net(4)\nfile = os.path.join(os.environ['AML_OUTPUT_DIR'], 'net.pickle')\n"
    cell(f"%%aml_submit --with Net --out net --out where --as run --wait\n{saved}"
         "with open(file, 'wb') as to: pickle.dump(net, to)\nwhere = Net.__module__")  # fmt: skip
    assert ip.user_ns["where"] == "__main__" and ip.user_ns["net"].twice() == 8
    file = next(iter((Path(ip.user_ns["run"].run.folder) / "outputs").glob("net.pickle")))
    program = tmp_path / "program.py"
    program.write_text(f"import pickle\ndef double(n): return 2 * n\n{source}"
                       f"print(pickle.load(open({str(file)!r}, 'rb')).twice())\n")  # fmt: skip
    assert subprocess.check_output([sys.executable, str(program)], text=True) == "8\n"


def test_functions_of_the_notebook_work_in_processes_that_are_spawned(cell: Cell, ip: InteractiveShell) -> None:
    cell("def square(x):\n    return x * x\nclass Point:\n    def __init__(self, x): self.x = square(x)\n")
    cell("%%aml_submit --with square --with Point --out found --wait\nimport multiprocessing\n"
         "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
         "        found = [*pool.map(square, [3]), *(p.x for p in pool.map(Point, [2]))]")  # fmt: skip
    assert ip.user_ns["found"] == [9, 4]


def test_error_in_a_function_of_the_notebook_has_its_line(cell: Cell, fails: Fails, capfd: Any) -> None:
    cell("def fail():\n    x = 1\n    raise KeyError('here')")
    fails("%%aml_submit --with fail --wait\nfail()")
    assert "line 3, in fail" in (shown := capfd.readouterr().out) and "raise KeyError('here')" in shown


def test_value_is_the_same_object_for_cell_and_function(cell: Cell, ip: InteractiveShell) -> None:
    cell("seen = []\ndef note(x):\n    seen.append(x)")
    cell("%%aml_submit --in seen --with note --out seen --wait\nnote(1)\nseen.append(2)")
    assert ip.user_ns["seen"] == [1, 2]


@pytest.mark.thorough
def test_optimizer_trains_the_module_that_is_sent_with_it(cell: Cell, ip: InteractiveShell) -> None:
    pytest.importorskip("torch")
    cell("import torch\ntorch.manual_seed(0)\nX = torch.linspace(-1, 1, 20).reshape(-1, 1)\ny = 2 * X + 1\n"
         "model = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.3)\n"
         "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5)")  # fmt: skip
    train = (
        "for _ in range(60):\n    loss = torch.nn.functional.mse_loss(model(X), y)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n    scheduler.step()\nloss = float(loss)\n"
        "rate = optimizer.param_groups[0]['lr']\n"
    )
    names = "--in X --in y --in model --in optimizer --in scheduler"
    cell(f"%%aml_submit {names} --out loss --out rate --out model --wait\nimport torch\n{train}")
    got = {name: ip.user_ns[name] for name in ("loss", "rate")}
    assert got["loss"] < 0.01 and ip.user_ns["model"].weight.item() == pytest.approx(2, abs=0.1)
    cell("torch.manual_seed(0)\nmodel = torch.nn.Linear(1, 1)\n"
         "optimizer = torch.optim.SGD(model.parameters(), lr=0.3)\n"
         f"scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5)\n{train}")  # fmt: skip
    assert ip.user_ns["loss"] == pytest.approx(got["loss"], rel=1e-3) and ip.user_ns["rate"] == got["rate"]


def test_names_of_one_object_are_one_object_in_the_job(cell: Cell, ip: InteractiveShell) -> None:
    cell("class Var:\n    def __init__(self, value): self.value = value\n"
         "class Sum:\n    def __init__(self, *parts): self.parts = parts\n"
         "    def total(self): return sum(part.value for part in self.parts)\n"
         "x, y = Var(1), Var(2)\nf = Sum(x, y)\na = b = [1]")  # fmt: skip
    cell("%%aml_submit --in x --in y --in f --in a --in b --out total --out same --wait\n"
         "x.value = 40\ntotal = f.total()\na.append(2)\nsame = [b, a is b]")  # fmt: skip
    assert ip.user_ns["total"] == 42 and ip.user_ns["same"] == [[1, 2], True]


def test_results_that_share_objects_come_back_together(cell: Cell, ip: InteractiveShell) -> None:
    cell("%%aml_submit --out a --out b --out inner --out alone --wait\n"
         "import collections\na = b = [1]\ninner = {'of': a, 'more': collections.deque('x')}\nalone = [1]")  # fmt: skip
    names = ip.user_ns
    assert names["a"] is names["b"] is names["inner"]["of"] and names["alone"] is not names["a"]
    assert names["a"] == [1] and names["inner"]["more"] == collections.deque("x")


@pytest.mark.thorough
def test_training_goes_on_with_module_and_optimizer_that_came_back(cell: Cell, ip: InteractiveShell) -> None:
    pytest.importorskip("torch")
    cell("import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
         "        self.line = torch.nn.Linear(1, 1)\n    def forward(self, x): return self.line(x)")  # fmt: skip
    cell("torch.manual_seed(0)\nX = torch.linspace(-1, 1, 20).reshape(-1, 1)\ny = 2 * X + 1\nforward = Net.forward\n"
         "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.3)")  # fmt: skip
    train = (
        "for _ in range(30):\n    loss = torch.nn.functional.mse_loss(model(X), y)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\nloss = float(loss)\n"
    )
    names = "--in X --in y --in model --in optimizer --out model --out optimizer --out loss --out same"
    cell(f"%%aml_submit {names} --with Net --wait\nimport torch\n{train}same = type(model) is Net")
    first = ip.user_ns["loss"]
    assert ip.user_ns["same"] and ip.user_ns["Net"].forward is ip.user_ns["forward"]
    assert type(ip.user_ns["model"]) is ip.user_ns["Net"]
    cell(train)
    assert ip.user_ns["loss"] < first / 10


def test_class_of_the_cell_comes_back_and_class_of_the_notebook_stays(cell: Cell, ip: InteractiveShell) -> None:
    cell("class Kept:\n    x = 1\n    def get(self): return self.x\nkept = Kept()\nget = Kept.get")
    own = "class Made:\n    def get(self): return doubled(21)\ndef doubled(x): return 2 * x\nmade = Made()\nkept.x = 3"
    cell(f"%%aml_submit --in kept --out kept --out made --wait\n{own}")
    assert ip.user_ns["made"].get() == 42 and ip.user_ns["kept"].get() == 3
    assert type(ip.user_ns["kept"]) is ip.user_ns["Kept"] and ip.user_ns["Kept"].get is ip.user_ns["get"]


@pytest.mark.thorough
def test_module_of_a_class_of_the_cell_comes_back(cell: Cell, ip: InteractiveShell) -> None:
    pytest.importorskip("torch")
    cell("%%aml_submit --out net --wait\nimport torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
         "        super().__init__()\n        self.line = torch.nn.Linear(2, 1)\n"
         "    def forward(self, x): return self.line(x)\nnet = Net()")  # fmt: skip
    assert ip.user_ns["net"](__import__("torch").ones(1, 2)).shape == (1, 1)


def test_results_of_another_machine_that_share_objects_are_noted(
    cell: Cell, ip: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = result_value.ResultValue._folder
    monkeypatch.setattr(result_value.ResultValue, "_folder", lambda self: (own(self)[0], False))
    cell("%%aml_submit --out a --out b --wait\na = [1]\nb = [a]")
    assert ip.user_ns["a"] == [1] and ip.user_ns["b"] == [[1]]
    assert "a and b" in capsys.readouterr().out
    cell("%%aml_submit --out a --out b --allow-pickle --wait\na = [1]\nb = [a]")
    assert ip.user_ns["b"][0] is ip.user_ns["a"]


def test_too_large_value_is_refused_before_it_is_written(cell: Cell, fails: Fails, home: Path) -> None:
    cell("import numpy\nbig = numpy.broadcast_to(numpy.zeros(1), (1 << 40,))")
    error = fails("%%aml_submit --in big\nprint(big.shape)")
    assert error.code == "values.size" and "--input big=FILE" in error.hint
    assert not (home / "values").exists() or not list((home / "values").iterdir())


def test_pickle_of_own_machine_comes_back_by_itself(cell: Cell, fails: Fails, ip: InteractiveShell) -> None:
    cell("import collections\ncounts = collections.deque('aab')")
    cell("%%aml_submit --in counts --allow-pickle --out back --as run --wait\nback = counts")
    assert ip.user_ns["back"] == ip.user_ns["run"].result("back") == ip.user_ns["counts"]


def test_value_of_another_machine_becomes_handle_that_says_why(
    cell: Cell, ip: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = result_value.ResultValue._folder
    monkeypatch.setattr(result_value.ResultValue, "_folder", lambda self: (own(self)[0], False))
    cell("import collections\ncounts = 1")
    cell("%%aml_submit --out counts --wait\nimport collections\ncounts = collections.deque('ab')")
    handle = ip.user_ns["counts"]
    assert "pickle" in repr(handle) and handle.load(allow_pickle=True) == collections.deque("ab")
    with pytest.raises(ResultMissing) as caught:
        handle.load()
    assert caught.value.code == "result.pickle"


ESTIMATORS = {
    "forest": "from sklearn.ensemble import RandomForestClassifier as M\nmodel = M(5)",
    "boosting": "from sklearn.ensemble import GradientBoostingClassifier as M\nmodel = M(n_estimators=3)",
    "histogram": "from sklearn.ensemble import HistGradientBoostingClassifier as M\nmodel = M(max_iter=3)",
    "bagging": "from sklearn.ensemble import BaggingClassifier as M\nmodel = M(n_estimators=3)",
    "search": "from sklearn.linear_model import LogisticRegression as M\n"
    "from sklearn.model_selection import GridSearchCV\nmodel = GridSearchCV(M(), {'C': [0.1, 1.0]}, cv=2)",
    "pipeline": "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler as S\n"
    "from sklearn.tree import DecisionTreeClassifier\nmodel = make_pipeline(S(), DecisionTreeClassifier())",
    "neighbors": "from sklearn.neighbors import KNeighborsClassifier as M\nmodel = M(2)",
    "process": "from sklearn.gaussian_process import GaussianProcessClassifier as M\nmodel = M()",
    "lightgbm": "from lightgbm import LGBMClassifier as M\nmodel = M(n_jobs=1, verbose=-1, min_child_samples=1)",
    "xgboost": "from xgboost import XGBClassifier as M\nmodel = M(n_estimators=3, n_jobs=1)",
}
FIT = "import numpy\nX = numpy.arange(40.0).reshape(-1, 1)\ny = (X[:, 0] > 19).astype(int)\nmodel.fit(X, y)\n"


@pytest.mark.thorough
def test_fitted_estimators_come_back(cell: Cell, ip: InteractiveShell) -> None:
    """Each is also sent unfitted by the same name, which must not stay as it was."""
    names = [name for name in ESTIMATORS if name not in ("lightgbm", "xgboost") or find_spec(name)]
    for name in names:
        cell(f"{ESTIMATORS[name]}\n{name} = model")
    sent = " ".join(f"--in {name} --out {name}" for name in names)
    lines = "".join(f"model = {name}\n{FIT}" for name in names)
    cell(f"%%aml_submit {sent} --as run --wait\n{lines}")
    for name in names:
        assert list(ip.user_ns[name].predict([[1.0], [39.0]])) == [0, 1], name


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


@pytest.mark.thorough
def test_masked_result_keeps_its_mask(cell: Cell, ip: InteractiveShell) -> None:
    cell(
        "%%aml_submit --out m --allow-pickle --wait\nimport numpy\nm = numpy.ma.masked_array([1.0, 2.0], [True, False])"
    )
    assert ip.user_ns["m"].mask.tolist() == [True, False]


@pytest.mark.thorough
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


@pytest.fixture
def old_python(tmp_path: Path) -> str:
    """An interpreter that says it is another version, with an older numpy."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\necho \'{"missing": [], "versions": {"python": "3.8.1", "numpy": "1.17.3"}}\'\n')
    path.chmod(0o755)
    return str(path)


def test_other_versions_are_named_before_pickles_travel(
    cell: Cell, ip: InteractiveShell, old_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell("import numpy as np\nclass Net: pass\nnet = Net()\nnet.w = np.zeros(3)\nplain = np.ones(3)")
    cell(f"%%aml_submit --dry-run --python {old_python}\nprint(net.w)")
    text = capsys.readouterr().out
    assert "3.8 there" in text and "numpy" in text and "1.17 there" in text
    cell(f"%%aml_submit --dry-run --python {old_python}\nprint(plain)")
    assert "there" not in capsys.readouterr().out  # an array is no pickle


def test_function_without_source_needs_the_same_python(cell: Cell, fails: Fails, old_python: str) -> None:
    cell("functions = [lambda: 1]")
    error = fails(f"%%aml_submit --dry-run --python {old_python}\nprint(functions[0]())")
    assert error.code == "closure.version" and "functions" in str(error)


def test_job_has_what_the_kernel_has_when_names_are_used_twice(cell: Cell, ip: InteractiveShell) -> None:
    cell("class A:\n    x = 1\na = A()\ndef f(): return 'first'\nn = [1]")
    cell("class A:\n    x = 2\ndef f(): return 'second'")
    cell("%%aml_submit --as run --out found\nfound = [a.x, isinstance(a, A), A().x, f(), n]")
    cell("n = [2]\na = f = A = None")  # after the submit
    assert ip.user_ns["run"].wait(60).result("found") == [1, False, 2, "second", [1]]


def test_value_of_a_class_of_the_project_travels_with_its_module(
    cell: Cell, ip: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("notebooks", "src"):
        (tmp_path / name).mkdir()
    (tmp_path / "notebooks" / "own_beside.py").write_text("class Near:\n    x = 1\n")
    (tmp_path / "src" / "own_far.py").write_text("class Far:\n    x = 2\n")
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "notebooks"), *sys.path])
    cell("import sys; sys.path.append('../src')")
    cell("import own_beside, own_far\nnear, far = own_beside.Near(), own_far.Far()")
    cell("%%aml_submit --as run --wait --out total\ntotal = near.x + far.x")
    assert ip.user_ns["total"] == 3
