"""Projects as others write them: a script with what is around it, run by ``python`` and as a job. Same output."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_amltrain.commands.submit import parse_submit, send
from jupyter_amltrain.errors import AmlTrainError

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


def check_missed_data(tmp_path: Path, target: str, seconds: float) -> None:
    """Check that a run without a file whose name its code computes says that this computer has it, and takes it."""
    write(Project({"data/a1.csv": "17", "train.py": "print(open(f'data/a{len([0])}.csv').read())"}, ""), tmp_path)
    os.chdir(tmp_path)
    run = send(parse_submit(["train.py", "--target", target, "--gpus", "0"]))
    try:
        run.wait(seconds)
    except AmlTrainError as error:
        assert f"--input data={tmp_path}/data/a1.csv,upload" in str(error), error
    else:
        raise AssertionError(run.logs())
