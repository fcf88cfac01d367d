"""Submit of a script with its project, and its first output line, against the standard library.

The peer of a submit finds the modules (`modulefinder`) and copies the folder (`shutil.copytree`), which any tool must
do that keeps what ran. The peers of a first line are plain ``python`` and a cell.

Runs inside one real ipykernel, rounds interleaved, wall time. The projects have 1,000 and 20,000 files. In one manner
the script imports them all, through packages; in the other it imports three, and the rest lies beside it, as data do.
First: no digest of a file is known. After an edit: all were hashed before, and one module has changed since.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.kernels import running_kernel
from benchmarks.timing import line, verdict

#: Files of the projects; the second is near the limit of a snapshot.
SIZES = (1_000, 19_900)

_SETUP = """
import json, modulefinder, os, shutil, subprocess, sys, tempfile, threading, time
from pathlib import Path
from IPython import get_ipython
ip = get_ipython()
ip.run_line_magic("load_ext", "jupyter_amltrain")
import jupyter_amltrain
from jupyter_amltrain.jobs import file_hash

def forget():
    file_hash._known.clear()

def edit(folder, number):
    path = Path(folder) / "package0" / "module0.py"
    path.write_text(path.read_text() + f"# edit {number}\\n")

def accepted(folder):
    begin = time.perf_counter()
    ip.run_line_magic("aml_submit", f"{folder}/train.py --gpus 0 --name bench --as bench_run")
    run = ip.user_ns["bench_run"]
    run.accepted()
    end = time.perf_counter()
    run.wait(120)
    return (end - begin) * 1000

def found(folder):
    begin = time.perf_counter()
    modulefinder.ModuleFinder(path=[folder]).run_script(f"{folder}/train.py")
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, f"{copy}/source")
        end = time.perf_counter()
    os.sync()  # removing the copy would slow what is measured next
    return (end - begin) * 1000

def popen(folder):
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-u", f"{folder}/train.py"], stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        return (time.perf_counter() - begin) * 1000

def cell(folder):
    return first_line("", "print('first line')")

def script(folder):
    return first_line(f"{folder}/train.py ", None)

def first_line(file, text):
    seen, end = threading.Event(), []
    def paint(record, picture):
        if not end and "first line" in record.log.tail:
            end.append(time.perf_counter()); seen.set()
    begin = time.perf_counter()
    words = f"{file}--gpus 0 --name bench --as bench_run"
    ip.run_line_magic("aml_submit", words) if text is None else ip.run_cell_magic("aml_submit", words, text)
    bench_run = ip.user_ns["bench_run"]
    watching = bench_run.watch(paint)
    assert seen.wait(60)
    bench_run.wait(60)
    return (end[0] - begin) * 1000
"""

_ROUNDS = """
figures = {"first": [], "edited": [], "peer": []}
for n in range(%(rounds)d):
    figures["peer"].append(found(%(folder)r))
    forget()
    figures["first"].append(accepted(%(folder)r))
    edit(%(folder)r, n)
    figures["edited"].append(accepted(%(folder)r))
print("FIGURES" + json.dumps(figures))
"""

_LINES = """
contenders = {"popen": popen, "cell": cell, "script": script}
figures = {name: [] for name in contenders}
for n in range(%(rounds)d + 1):
    for name in (contenders if n %% 2 else reversed(contenders)):
        figures[name].append(contenders[name](%(folder)r))
print("FIGURES" + json.dumps({name: values[1:] for name, values in figures.items()}))
"""


def make_project(root: Path, size: int, *, imported: bool) -> str:
    """Write a project of `size` files, 100 in a package; return its folder."""
    packages = max(1, size // 101)
    for number in range(packages):
        folder = root / f"package{number}"
        folder.mkdir(parents=True)
        names = [f"module{n}" for n in range(100)]
        text = "from . import " + ", ".join(names) + "\n" if imported else ""
        (folder / "__init__.py").write_text(text)
        for name in names:
            (folder / f"{name}.py").write_text("import os\n\n\ndef step(x):\n    return x + 1\n")
    all_of_them = "import " + ", ".join(f"package{number}" for number in range(packages))
    text = all_of_them if imported else "from package0 import module0, module1, module2"
    # The imports are read from the text; running them is the price of python and not ours.
    (root / "train.py").write_text(f"print('first line')\nif not __name__:\n    {text}\n")
    return str(root)


def main(rounds: int = 5) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "AMLTRAIN_HOME": f"{folder}/home",
            "AMLTRAIN_QUEUE": f"{folder}/queue",
            "AMLTRAIN_DISPATCHER_IDLE": "60",
            "IPYTHONDIR": f"{folder}/ipython",
        }
        with running_kernel(environ, folder) as kernel:
            kernel.run(_SETUP)
            warm = make_project(Path(folder) / "warm", 100, imported=False)
            kernel.run(f"accepted({warm!r})")

            def measured(code: str, **names: Any) -> dict[str, list[float]]:
                text = kernel.run(code % names, timeout=900)
                figures: dict[str, list[float]] = json.loads(text.partition("FIGURES")[2])
                return figures

            middle = statistics.median
            figures = measured(_LINES, folder=warm, rounds=4 * rounds)
            print("First output line of a script in a project of 100 modules (wall)")
            for name, label in (("popen", "python"), ("cell", "%%aml_submit of a cell"), ("script", "%aml_submit")):
                print(line(label, figures[name], "ms"))
            print(verdict("%aml_submit / cell", middle(figures["script"]) / middle(figures["cell"]), 1.3, 1.5))
            print(verdict("%aml_submit / python", middle(figures["script"]) / middle(figures["popen"]), 1.5, 3))

            for imported in (True, False):
                for size in SIZES:
                    where = Path(folder) / f"project{size}{imported}"
                    names = {"folder": make_project(where, size, imported=imported), "rounds": rounds}
                    figures = measured(_ROUNDS, **names)
                    what = "imports all" if imported else "imports three"
                    print(f"Submit of a script that {what} of {size:,} files, until accepted (wall)")
                    print(line("modulefinder and copytree", figures["peer"], "ms"))
                    print(line("%aml_submit, first", figures["first"], "ms"))
                    print(line("%aml_submit, one module edited", figures["edited"], "ms"))
                    if imported:
                        peer = middle(figures["peer"])
                        print(verdict("first / modulefinder and copytree", middle(figures["first"]) / peer, 1.5))
                        print(
                            verdict("after an edit / modulefinder and copytree", middle(figures["edited"]) / peer, 1.5)
                        )


if __name__ == "__main__":
    main()
