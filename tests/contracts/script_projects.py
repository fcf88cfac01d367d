"""Projects as others write them: a script with what is around it, run by ``python`` and as a job. Same output."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_amltrain.commands import registry
from jupyter_amltrain.commands.submit import parse_submit, send
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.jobs.project_files import MAX_BYTES

#: Marks the output, which may have other lines of a target around it.
BEGIN, END = "<<<", ">>>"


@dataclass(frozen=True)
class Project:
    """A project.

    Attributes
    ----------
    files
        Text by path.
    python
        Words after ``python``.
    line
        Words after ``%aml_submit``; empty for the same.
    folder
        Working folder.
    secret
        Whether the script needs a file that does not travel.
    """

    files: dict[str, str]
    python: str
    line: str = ""
    folder: str = "."
    secret: bool = False
    needs: tuple[str, ...] = field(default=())


def _shown(text: str) -> str:
    return f"def show(*values):\n    print({BEGIN!r}, *values, {END!r})\n{text}"


_ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("data", nargs="?", default="none")
p.add_argument("--learning-rate", type=float, default=0.1)
p.add_argument("--no-cuda", action="store_true")
p.add_argument("--amp", action=argparse.BooleanOptionalAction)
p.add_argument("--sizes", nargs="+", type=int)
p.add_argument("--tag", action="append")
p.add_argument("--slow", dest="fast", action="store_false")
show(p.parse_args())
"""
_SUBCOMMANDS = """
import argparse
p = argparse.ArgumentParser()
sub = p.add_subparsers(dest="verb")
fit = sub.add_parser("fit"); fit.add_argument("--lr", type=float)
sub.add_parser("test")
show(p.parse_args())
"""
_CLICK = """
import click
@click.command()
@click.option("--lr", default=1.0)
@click.option("--shout/--no-shout", default=False)
@click.option("--fast", is_flag=True)
@click.option("--tag", multiple=True)
@click.argument("name")
def main(lr, shout, fast, tag, name): show(lr, shout, fast, tag, name)
main()
"""
_CONFIGURATOR = """
import sys
from ast import literal_eval
for arg in sys.argv[1:]:
    if "=" not in arg:
        exec(open(arg).read())
    else:
        key, value = arg[2:].split("=")
        globals()[key] = literal_eval(value)
"""
_MAKE_DATASET = """
import click
from pathlib import Path
from dotenv import find_dotenv, load_dotenv
@click.command()
@click.argument("input_filepath", type=click.Path(exists=True))
@click.argument("output_filepath", type=click.Path())
def main(input_filepath, output_filepath):
    rows = [path.read_text() for path in sorted(Path(input_filepath).iterdir())]
    out = Path(output_filepath)
    out.mkdir(parents=True, exist_ok=True)
    (out / "all.txt").write_text("".join(rows))
    show(rows, (out / "all.txt").read_text())
if __name__ == "__main__":
    project_dir = Path(__file__).resolve().parents[2]
    load_dotenv(find_dotenv())
    main()
"""
_DATACLASS = """
import argparse, dataclasses, json, sys
@dataclasses.dataclass
class Args:
    lr: float = 1e-3
    epochs: int = 3
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    args = Args(**json.load(open(sys.argv[1])))
else:
    p = argparse.ArgumentParser()
    for f in dataclasses.fields(Args):
        p.add_argument(f"--{f.name}", type=type(f.default), default=f.default)
    args = Args(**vars(p.parse_args()))
show(args)
"""
_TORCH = """
import torch
from torch.utils.data import DataLoader
from model import Net
def main():
    torch.manual_seed(0)
    net = Net(2, 1)
    rows = [torch.tensor([float(i), i + 1.0]) for i in range(8)]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for batch in DataLoader(rows, batch_size=4, num_workers=2):
        loss = net(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(net.state_dict(), "net.pt")
    show(round(loss.item(), 5), sorted(torch.load("net.pt")))
if __name__ == "__main__":
    main()
"""
_COMMAND = """
import argparse
from app.model import fit
def main(argv=None):
    p = argparse.ArgumentParser(prog="app")
    p.add_argument("-n", "--number", type=int, required=True)
    p.add_argument("--kind", choices=["a", "b"], default="a")
    a = p.parse_args(argv)
    show(fit(a.number), a.kind)
if __name__ == "__main__":
    main()
"""
_PACKAGE = {"pkg/__init__.py": "", "pkg/core.py": "def f(): return 'core'\n", "pyproject.toml": ""}

PROJECTS: dict[str, Project] = {
    "data beside __file__": Project(
        {"a/train.py": _shown("import os\nshow(open(os.path.join(os.path.dirname(__file__), 'd.csv')).read())"),
         "a/d.csv": "1,2"}, "a/train.py"),
    "data beside __file__ by pathlib": Project(
        {"a/train.py": _shown("from pathlib import Path\nROOT = Path(__file__).resolve().parents[1]\n"
                              "data = ROOT / 'data'\nshow((data / 'd.csv').read_text(), len([*data.iterdir()]))"),
         "data/d.csv": "1,2", "data/e.csv": "3"}, "a/train.py"),
    "data in the working folder": Project(
        {"a/train.py": _shown("show(open('d.csv').read())"), "d.csv": "5"}, "a/train.py"),
    "working folder without files": Project(
        {"a/train.py": _shown("import os\nshow(os.path.basename(os.getcwd()))"), "setup.py": "", "nb/.gitkeep": ""},
        "../a/train.py", folder="nb"),
    "data of another folder of the project": Project(
        {"a/train.py": _shown("show(open('../data/d.txt').read())"), "setup.py": "", "data/d.txt": "8"},
        "train.py", folder="a"),
    "configuration by name": Project(
        {"train.py": _shown("import json, sys\nshow(json.load(open(sys.argv[1])), json.load(open('base.json')))"),
         "base.json": "[1]", "conf.json": "[2]"}, "train.py base.json"),
    "neighbor module": Project(
        {"s/train.py": _shown("import helper, sys, os\nshow(helper.A, os.path.basename(sys.path[0]))"),
         "s/helper.py": "A = 1\n"}, "s/train.py"),
    "path to a parent folder": Project(
        {**_PACKAGE, "scripts/train.py": _shown(
            "import sys\nsys.path.insert(0, '..')\nfrom pkg.core import f\nshow(f())")},
        "train.py", folder="scripts"),
    "path from __file__": Project(
        {**_PACKAGE, "scripts/train.py": _shown(
            "import os, sys\nsys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))\n"
            "from pkg import core\nshow(core.f())")}, "scripts/train.py"),
    "src layout": Project(
        {"src/lib/__init__.py": "from .deep import g\n", "src/lib/deep.py": "def g(): return 'deep'\n",
         "train.py": _shown("import sys, pathlib\nsys.path.append(str(pathlib.Path(__file__).parent / 'src'))\n"
                            "import lib\nshow(lib.g())"), "setup.cfg": ""}, "train.py"),
    "module with the name of a library": Project(
        {"train.py": _shown("import sys\nsys.path.append('src')\nimport lib, statistics\n"
                            "show(lib.A, statistics.mean([1, 3]))"),
         "src/lib.py": "A = 1\n", "src/statistics.py": "mean = len\n"}, "train.py"),
    "python -m": Project(
        {**_PACKAGE, "pkg/train.py": _shown(
            "from .core import f\nimport sys\nshow(f(), __name__, __package__, sys.argv[1:])")},
        "-m pkg.train --a 1", "-m pkg.train -- --a 1"),
    "python -m with a working folder above": Project(
        {"src/pkg/__init__.py": "", "src/pkg/core.py": "X = 3\n",
         "src/pkg/train.py": _shown("from pkg import core\nfrom . import core as own\nshow(core.X, own is core)")},
        "-m pkg.train", folder="src"),
    "python -m of a package": Project(
        {**_PACKAGE, "pkg/__main__.py": _shown("from .core import f\nshow(f(), __package__)")}, "-m pkg"),
    "folder with a main": Project(
        {"app/__main__.py": _shown("import tool\nshow(tool.A)"), "app/tool.py": "A = 4\n"}, "app"),
    "namespace package": Project(
        {"train.py": _shown("from ns.part import one\nshow(one.A)"), "ns/part/one.py": "A = 5\n"}, "train.py"),
    "relative data of a module": Project(
        {"train.py": _shown("from pkg2 import table\nshow(table.ROWS)"), "pkg2/__init__.py": "",
         "pkg2/table.py": "from pathlib import Path\nROWS = (Path(__file__).parent / 'rows.txt').read_text()\n",
         "pkg2/rows.txt": "r"}, "train.py"),
    "argparse": Project(
        {"train.py": _shown(_ARGPARSE)},
        "train.py x --learning-rate 0.5 --no-cuda --no-amp --sizes 1 2 --tag a --tag b --slow",
        "train.py --param data=x --param learning_rate=0.5 --param no_cuda=true --param amp=false"
        " --param sizes=[1,2] --param 'tag=[\"a\",\"b\"]' --param fast=false"),
    "argparse behind the file": Project(
        {"train.py": _shown(_ARGPARSE)}, "train.py conf.yaml --learning-rate=2 --amp"),
    "argparse with subcommands": Project({"train.py": _shown(_SUBCOMMANDS)}, "train.py fit --lr 0.5"),
    "click": Project(
        {"train.py": _shown(_CLICK)}, "train.py n --lr 2.0 --shout --fast --tag a --tag b",
        "train.py --param name=n --param lr=2.0 --param shout=true --param fast=true --param 'tag=[\"a\",\"b\"]'",
        needs=("click",)),
    "name=value": Project(
        {"train.py": _shown("import sys\nshow(sys.argv[1:])")}, "train.py lr=0.5 sizes=[1,2] amp=true",
        "train.py --style hydra --param lr=0.5 --param sizes=[1,2] --param amp=true"),
    "dotenv": Project(
        {"a/train.py": _shown(
            "import os\nfrom dotenv import load_dotenv\nload_dotenv()\nshow(os.environ.get('AML_T'))"),
         ".env": "AML_T=7\n"}, "a/train.py", secret=True, needs=("dotenv",)),
    "spawned children": Project(
        {"train.py": _shown("import multiprocessing as mp\nimport helper\n"
                            "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool:\n"
                            "        show(pool.map(helper.double, [1, 2]))"),
         "helper.py": "def double(x): return 2 * x\n"}, "train.py"),
    "child process by __file__": Project(
        {"a/train.py": _shown("import subprocess, sys, os\nhere = os.path.dirname(__file__)\n"
                              "child = os.path.join(here, 'child.py')\n"
                              "show(subprocess.run([sys.executable, child], capture_output=True, text=True).stdout)"),
         "a/child.py": "print('child')\n"}, "a/train.py"),
    "pickled class of the script": Project(
        {"train.py": _shown("import pickle\nclass A: pass\nshow(type(pickle.loads(pickle.dumps(A()))).__module__)")},
        "train.py"),
    "docstring and encoding": Project(
        {"train.py": "# -*- coding: utf-8 -*-\n'''Doc é'''\n" + _shown("show(__doc__, __name__)")}, "train.py"),
    "configurator by exec": Project(
        {"train.py": _shown("lr = 0.1\nname = 'gpt'\nexec(open('configurator.py').read())\nshow(lr, name)"),
         "configurator.py": _CONFIGURATOR, "config/finetune.py": "name = 'fine'\n"},
        "train.py config/finetune.py --lr=0.5"),
    "module by a computed name": Project(
        {"train.py": _shown("import importlib, sys\nshow(importlib.import_module(f'models.{sys.argv[1]}').SIZE)"),
         "models/__init__.py": "", "models/small.py": "SIZE = 1\n", "models/large.py": "SIZE = 9\n"},
        "train.py large"),
    "cookiecutter data science": Project(
        {"src/__init__.py": "", "src/data/__init__.py": "", "src/data/make_dataset.py": _shown(_MAKE_DATASET),
         "data/raw/a.csv": "1,2\n", "data/raw/b.csv": "3\n", "setup.py": ""},
        "src/data/make_dataset.py data/raw data/processed", needs=("click", "dotenv")),
    "dataclass arguments or a file": Project(
        {"run.py": _shown(_DATACLASS), "args.json": '{"lr": 0.5}'}, "run.py args.json"),
    "dataclass arguments": Project(
        {"run.py": _shown(_DATACLASS)}, "run.py --lr 0.25 --epochs 7", "run.py --param lr=0.25 --param epochs=7"),
    "nbdev": Project(
        {"settings.ini": "[DEFAULT]\nlib_name = lib\n", "setup.py": "", "lib/__init__.py": "__version__ = '0.1'\n",
         "lib/core.py": "__all__ = ['hello']\ndef hello(): return 'hi'\n", "lib/_modidx.py": "d = {}\n",
         "lib/all.py": "from .core import *\nfrom . import __version__\n",
         "train.py": _shown("from lib.all import *\nshow(hello())")}, "train.py"),
    "data of a package": Project(
        {"pyproject.toml": "", "pkg/__init__.py": "", "pkg/data/table.csv": "7,8",
         "train.py": _shown("from importlib import resources\nimport pkg\n"
                            "show(resources.files('pkg').joinpath('data/table.csv').read_text())")}, "train.py"),
    "glob": Project(
        {"train.py": _shown("import glob\nfrom pathlib import Path\n"
                            "texts = [open(path).read() for path in sorted(glob.glob('data/*.csv'))]\n"
                            "show(texts, len([*Path().rglob('*.csv')]))"),
         "data/a.csv": "1", "data/b.csv": "2"}, "train.py"),
    "path inside a configuration": Project(
        {"train.py": _shown("import argparse, json\np = argparse.ArgumentParser()\n"
                            "p.add_argument('--config', default='configs/base.json')\n"
                            "conf = json.load(open(p.parse_args().config))\nshow(conf, open(conf['data']).read())"),
         "configs/base.json": '{"data": "data/train.csv"}', "data/train.csv": "5,6"}, "train.py"),
    "stages by runpy": Project(
        {"run.py": _shown("import runpy\nshow(runpy.run_path('stages/one.py', init_globals={'n': 3})['result'])"),
         "stages/one.py": "result = n * 2\n"}, "run.py"),
    "stages as commands": Project(
        {"run.py": _shown("import subprocess, sys\nfor stage in ('prepare', 'fit'):\n"
                          "    subprocess.run([sys.executable, f'{stage}.py'], check=True)\n"
                          "show(open('work.txt').read())"),
         "prepare.py": "open('work.txt', 'w').write('p')\n", "fit.py": "open('work.txt', 'a').write('f')\n"},
        "run.py"),
    "MLproject": Project(
        {"MLproject": "entry_points:\n  main:\n    command: 'python train.py {alpha}'\n", "wine.csv": "1,2\n",
         "train.py": _shown("import sys, csv, os\nhere = os.path.dirname(os.path.abspath(__file__))\n"
                            "show(sys.argv[1:], [*csv.reader(open(os.path.join(here, 'wine.csv')))])")},
        "train.py 0.25"),
    "names that are not ASCII": Project(
        {"entraîner.py": _shown("import modèle\nshow(modèle.A, open('données/é.csv', encoding='utf-8').read())"),
         "modèle.py": "A = 'ü'\n", "données/é.csv": "ß"}, "entraîner.py"),
    "PyTorch with workers": Project(
        {"model.py": "import torch\nclass Net(torch.nn.Linear): pass\n", "train.py": _shown(_TORCH)},
        "train.py", needs=("torch",)),
    "command of a package": Project(
        {"pyproject.toml": "", "src/app/__init__.py": "", "src/app/cli.py": _shown(_COMMAND),
         "src/app/model.py": "def fit(n): return n + 1\n"},
        "-m app.cli -n 4 --kind b", "-m app.cli --param number=4 --param kind=b", folder="src"),
}  # fmt: skip


def write(project: Project, folder: Path) -> Path:
    """Write the files of a project; return its working folder."""
    for name, text in project.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / project.folder


def output_of_python(project: Project, working: Path) -> list[str]:
    """Return what the script shows under plain ``python``."""
    done = subprocess.run(
        [sys.executable, *shlex.split(project.python)], cwd=working, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return shown(done.stdout)


def shown(text: str) -> list[str]:
    """Return what ``show`` printed."""
    return re.findall(f"{BEGIN}(.*?){END}", text, re.DOTALL)


def check_project(project: Project, folder: Path, target: str, deadline: float, flags: str = "") -> None:
    """Run a project by ``python`` and on a target; the output must be the same."""
    working = write(project, folder)
    expected = output_of_python(project, working)
    before = os.getcwd()
    os.chdir(working)
    try:
        line = f"--target {target} --gpus 0 {flags} {project.line or project.python}"
        run = send(parse_submit(shlex.split(line)))
    finally:
        os.chdir(before)
    run.wait(deadline)
    assert shown(run.logs()) == expected and expected


#: Projects that show most of what another machine needs.
FEW = ("data beside __file__ by pathlib", "path from __file__", "python -m with a working folder above", "argparse")


def check_projects(names: Iterable[str], folder: Path, target: str, deadline: float, flags: str = "") -> None:
    """Run projects on a target; what travels is the same for all, so one target serves them."""
    differences: dict[str, str] = {}
    for at, name in enumerate(names):
        place = folder / str(at)
        place.mkdir()
        try:
            check_project(PROJECTS[name], place, target, deadline, flags)
        except (AssertionError, AmlTrainError) as error:
            differences[name] = str(error)
    assert not differences, differences


def travelling() -> list[str]:
    """Return the names of the projects whose files all travel, and whose packages are installed here."""
    return [
        name
        for name, project in PROJECTS.items()
        if not project.secret and all(importlib.util.find_spec(module) for module in project.needs)
    ]


def check_missed_data(folder: Path, target: str, seconds: float) -> None:
    """Check that a run without a file that did not travel says that this computer has it."""
    script = "print(len(open(f'data/a{len([0])}.csv').read()))"  # no note before the run: the name is computed
    project = write(Project({"data/a1.csv": "17" * MAX_BYTES, "train.py": script}, ""), folder / "project")
    os.chdir(project)
    run = send(parse_submit(["train.py", "--target", target, "--gpus", "0"]))
    try:
        run.wait(seconds)
    except AmlTrainError as error:
        assert f"--input data={project}/data/a1.csv,upload" in str(error), error
    else:
        raise AssertionError(run.logs())


_REPORT = "def report(value):\n    import mlflow\n    mlflow.log_metric('loss', value)\n"
_SQUARED = "report((float(lr) - 2) ** 2 + 10 * float(weight))"

#: Projects whose scripts report ``(lr - 2) ** 2 + 10 * weight``, and what their line of a sweep has for the weight 1.
SWEEPS: dict[str, Project] = {
    "argparse and data beside the script": Project(
        {"s/train.py": f"{_REPORT}import argparse, os\np = argparse.ArgumentParser()\n"
                       "p.add_argument('--lr', type=float)\np.add_argument('--light', action='store_true')\n"
                       "a = p.parse_args()\nhere = os.path.dirname(os.path.abspath(__file__))\nlr = a.lr\n"
                       f"weight = 0 if a.light else open(os.path.join(here, 'weight.txt')).read()\n{_SQUARED}\n",
         "s/weight.txt": "1"}, "", "s/train.py --param light=false"),
    "click": Project(
        {"train.py": f"{_REPORT}import click\n@click.command()\n@click.option('--lr', default=1.0)\n"
                     "@click.option('--heavy/--light', default=False)\n"
                     f"def main(lr, heavy):\n    weight = int(heavy)\n    {_SQUARED}\nmain()\n"},
        "", "train.py --param heavy=true", needs=("click",)),
    "name=value": Project(
        {"train.py": f"{_REPORT}import sys\nfrom conf.reader import read\n"
                     f"lr, weight = read(sys.argv[1:])\n{_SQUARED}\n",
         "conf/reader.py": "def read(words):\n    given = dict(word.split('=') for word in words)\n"
                           "    return given['lr'], given['weight']\n"},
        "", "train.py --style hydra --param weight=1"),
    "command of a package": Project(
        {"src/app/__init__.py": "", "src/app/cli.py": f"{_REPORT}import argparse\n"
         "from app.model import WEIGHT as weight\n"
         f"p = argparse.ArgumentParser()\np.add_argument('--lr')\nlr = p.parse_args().lr\n{_SQUARED}\n",
         "src/app/model.py": "WEIGHT = 1\n"}, "", "-m app.cli", folder="src"),
    "configuration by a computed name": Project(
        {"train.py": f"{_REPORT}import argparse, json\np = argparse.ArgumentParser()\n"
                     "p.add_argument('--lr', type=float)\n"
                     "p.add_argument('--conf', default='base')\na = p.parse_args()\nlr = a.lr\n"
                     f"weight = json.load(open(f'conf/{{a.conf}}.json'))['weight']\n{_SQUARED}\n",
         "conf/base.json": '{"weight": 0}', "conf/heavy.json": '{"weight": 1}'}, "", "train.py --param conf=heavy"),
}  # fmt: skip


def check_sweeps(folder: Path, target: str, deadline: float) -> None:
    """Run a grid of each project of :data:`SWEEPS` on a target; its trials have the values of ``python``."""
    for name, project in SWEEPS.items():
        if any(importlib.util.find_spec(module) is None for module in project.needs):
            continue
        line = f"{project.line} --param lr=choice(1.0,2.0,4.0) --target {target}"
        trials = _trials_of_grid(write(project, folder / name), line, deadline)
        assert [(trial.params["lr"], trial.value) for trial in trials] == [(1.0, 11.0), (2.0, 10.0), (4.0, 14.0)], name


def _trials_of_grid(working: Path, line: str, deadline: float) -> Sequence[Any]:
    """Return the trials of a sweep over all points, submitted from a folder."""
    before = os.getcwd()
    os.chdir(working)
    try:
        words = shlex.split(f"{line} --sampler grid --goal 'minimize loss' --gpus 0")
        sweep = registry.run("sweep", words, registry.Context(prog="%aml_sweep")).value
    finally:
        os.chdir(before)
    found: Sequence[Any] = sweep.wait(deadline).children()
    return found


def check_searched_switch(folder: Path, target: str, deadline: float) -> None:
    """Search a switch, and a pair of switches; the trials have the words that the parser takes."""
    text = (
        f"{_REPORT}import argparse, sys\np = argparse.ArgumentParser()\np.add_argument('--fast', action='store_true')\n"
        "p.add_argument('--amp', action=argparse.BooleanOptionalAction)\na = p.parse_args()\n"
        "assert a.amp is not None, sys.argv\nreport(2 * a.fast + a.amp)\n"
    )
    working = write(Project({"train.py": text}, ""), folder / "switch")
    line = f"train.py --param fast=choice(true,false) --param amp=choice(true,false) --target {target}"
    trials = _trials_of_grid(working, line, deadline)
    values = {(trial.params["fast"], trial.params["amp"]): trial.value for trial in trials}
    assert values == {(fast, amp): 2.0 * fast + amp for fast in (True, False) for amp in (True, False)}
