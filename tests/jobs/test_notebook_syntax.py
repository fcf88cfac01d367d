"""Notebook syntax as Python: each cell prints in a script what it prints in IPython."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.lib.pretty import pretty

from jupyter_amltrain.agent import notebook_runtime as runtime
from jupyter_amltrain.agent import pretty_text
from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import script
from jupyter_amltrain.jobs.notebook_syntax import files, translated

CELLS = """
!echo one
---
!echo ${BASH_VERSION:+bash}
lines = !echo ${BASH_VERSION:+bash}
lines
---
name = "here"
!echo $name '$name' {name[1:3]} {name!r}
---
name = "here"
!echo {name} $HOME | sed "s#$HOME#home#"
---
!echo a b | awk '{print $2}'
---
"a text"
---
!echo one two; echo three
---
!printf 'a\\nb\\n'
---
!false
print(_exit_code)
---
!exit 3
_exit_code
---
name = "x y"
!echo $name {name} {name.upper()} {len(name)}
---
n = 3
!echo $$HOME | wc -w
---
!echo {1 + 2:03d} ${NOT_SET}-
---
def f(word):
    !echo inside $word
f("here")
---
for i in range(2):
    !echo $i
---
lines = !printf 'a\\nb\\n'
print(lines, lines.n, lines.s, len(lines))
---
lines = !printf 'a b\\nc d\\n'
print(lines.fields(1), lines.grep("c"))
---
lines = !echo gone >&2
lines
---
!echo one \\
  two
print("next")
---
!!echo quiet
---
%time x = 3
print(x)
---
%time 1 + 1
---
y = %time 2 + 3
print(y)
---
%time for i in range(2): print(i)
---
%time a = 1; b = 2
print(a + b)
---
%time !echo timed
---
%timeit -n 1 -r 1 sum(range(3))
---
t = %timeit -o -q -n 2 -r 2 1 + 1
print(t.loops, t.repeat)
---
%%time
x = 1
x + 1
---
%%time
print("only printed")
---
%%timeit -n 1 -r 1
x = 1
x + 1
---
%%bash
echo one
for i in 1 2; do echo $i; done
---
%%sh
echo "$((1 + 1))"
---
%env AML_TEST_A=1
!echo $AML_TEST_A
---
%set_env AML_TEST_B 2
import os; print(os.environ["AML_TEST_B"])
---
%env AML_TEST_C=x y
%env AML_TEST_C
---
%mkdir folder
%cd -q folder
%pwd
---
import os
%cd -q /
print(os.getcwd())
---
%%writefile note.py
VALUE = 5
print("imported", VALUE)
---
%%writefile -a note.py
OTHER = 6
---
%run note.py
VALUE + 1
---
%run note
print(OTHER)
---
!cat note.py | head -1
---
%ls note.py
---
%matplotlib inline
print("plots")
---
%config InlineBackend.figure_format = 'retina'
%load_ext autoreload
%autoreload 2
print("quiet")
---
import asyncio
await asyncio.sleep(0, "value")
---
import asyncio
async def double(x):
    await asyncio.sleep(0)
    return 2 * x
print(await double(2) + await double(await double(1)))
---
import asyncio
async def numbers():
    for i in range(3):
        yield i
async for i in numbers():
    print(i)
---
async def letters():
    yield "a"
    yield "b"
print([x async for x in letters()], {x: 1 async for x in letters()})
---
class Room:
    async def __aenter__(self): print("in"); return self
    async def __aexit__(self, *error): print("out", error[0])
async with Room() as room, Room():
    print("between")
---
import asyncio
async def say(x):
    await asyncio.sleep(0)
    print(x)
task = asyncio.create_task(say("task"))
print("first")
await task
---
import asyncio
results = await asyncio.gather(*(asyncio.sleep(0.001 * i, i) for i in range(3)))
results
---
import asyncio
try:
    await asyncio.wait_for(asyncio.sleep(9), 0.01)
except asyncio.TimeoutError:
    print("late")
---
if True:
    import asyncio
    x = [await asyncio.sleep(0, i) for i in range(2)]
    print(x)
---
class Plain: pass
str(display(3))
---
# only a comment
---
text = '''
!echo not a command
%time not a magic
'''
print(text)
---
x = 7
print(f"{x!r} 100%", x % 4, 'a?', x != 3)
---
>>> x = 1
>>> print(x)
---
try:
    get_ipython
    print("known")
except NameError:
    print("known")
---
[list(range(30)), {"key": "value" * 20}]
---
(int, len, {3, 1, 2}, set(), {}, ())
---
{i: str(i) * 10 for i in range(12)}
---
import numpy as np
[np.arange(3), np.float64(2)]
---
None
---
lambda x, y=3: x
---
%time
print("nothing to time")
"""
_TIMES = re.compile(r"^Out\[\d+\]: ?\n?|(?:CPU times|Wall time): .*\n|^.* per loop \(mean .*\n", re.MULTILINE)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def cells() -> list[str]:
    return [cell.strip("\n") for cell in CELLS.split("\n---\n")]


def plain(text: str) -> str:
    """A text without times, and with the newlines of a file."""
    return _ADDRESS.sub("0x", _TIMES.sub("", text.replace("\r\n", "\n"))).strip()


#: Prints what each cell prints in one shell. In a process of its own: an event loop may run in that of the tests.
_IN_IPYTHON = """
import contextlib, io, json, os, sys
from IPython.core.interactiveshell import InteractiveShell
shell, texts = InteractiveShell(), []
shell.enable_gui = lambda *_: None
folder = os.getcwd()
for cell in json.load(sys.stdin):
    os.chdir(folder)
    shell.reset(new_session=False)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        shell.run_cell(cell, store_history=False).raise_error()
    texts.append(out.getvalue())
json.dump(texts, sys.__stdout__)
"""


def in_ipython(cells: list[str], folder: Path) -> list[str]:
    """What IPython prints for each cell."""
    command = [sys.executable, "-c", _IN_IPYTHON]
    done = subprocess.run(command, input=json.dumps(cells), cwd=folder, capture_output=True, text=True, check=True)
    return [str(text) for text in json.loads(done.stdout)]


def as_script(cell: str, folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a cell as a job does: its script beside the files that travel with it."""
    made = script.from_cell(cell)
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "script.py").write_text(made.text)
    (source / "amltrain_pretty.py").write_text(Path(pretty_text.__file__).read_text())
    for name, content in files(made.text, ()).items():
        assert isinstance(content, bytes)
        (source / name).write_bytes(content)
    command = [sys.executable, "-I", "-c", _START, str(source)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=check)


#: With -I, so that no package of the tests is there.
_START = (
    "import sys, runpy; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[1] + '/script.py', None, '__main__')"
)


@pytest.mark.thorough
def test_cells_print_what_they_print_in_ipython(tmp_path: Path) -> None:
    """One test for all of them: files and folders of a cell are there for the next."""
    here, there = tmp_path / "ipython", tmp_path / "script"
    here.mkdir(), there.mkdir()
    different = []
    for cell, expected in zip(cells(), in_ipython(cells(), here), strict=True):
        got = as_script(cell, there, check=False)
        if plain(got.stdout).replace(str(there), str(here)) != plain(expected) or got.returncode:
            different.append((cell, expected, got.stdout, got.stderr[-400:]))
    assert different == [] and len(cells()) >= 60


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("!echo one \\\n  two\n1 / 0", 4),
        ("\n\n%time x = 1\n1 / 0", 5),
        ("%%time\nx = 1\n1 / 0", 4),
        ("import asyncio\nawait asyncio.sleep(\n  0)\n1 / 0", 5),
        ("x = !echo {3}\nfor i in range(2):\n    !echo $i\n    1 / 0", 5),
        ("async def f(): 1 / 0\n\nawait f()", 4),
    ],
)
def test_error_has_the_line_of_the_cell(cell: str, line: int, tmp_path: Path) -> None:
    done = as_script(cell, tmp_path, check=False)
    assert done.returncode == 1 and f'script.py", line {line}' in done.stderr and "ZeroDivisionError" in done.stderr


def test_display_prints_the_text_that_a_notebook_shows(tmp_path: Path) -> None:
    done = as_script('display(1, "a")\ndisplay({"a": list(range(40))})', tmp_path)
    assert done.stdout == f"1\n'a'\n{pretty({'a': list(range(40))})}\n"


@pytest.mark.thorough
def test_text_of_values_is_that_of_ipython() -> None:
    random_ = random.Random(5)

    def value(depth: int) -> Any:
        if not depth or random_.random() < 0.4:
            return random_.choice([1, 2.5, "abc" * random_.randint(0, 9), None, True, b"x", int, len, value, object])
        items = [value(depth - 1) for _ in range(random_.randint(0, 9))]
        kinds = (items, tuple(items), {f"k{i}": one for i, one in enumerate(items)}, set(range(len(items) * 4)))
        return random_.choice(kinds)

    for _ in range(500):
        one = value(4)
        assert pretty_text.pretty(one) == pretty(one)


def test_failed_cell_of_bash_fails_the_script(tmp_path: Path) -> None:
    done = as_script("%%bash\nexit 3", tmp_path, check=False)
    assert done.returncode == 1 and "CalledProcessError" in done.stderr


@pytest.mark.parametrize(
    ("cell", "packages"),
    [
        ("!pip install plotly", ("plotly",)),
        ("%pip install -q 'plotly>=5' kaleido", ("plotly>=5", "kaleido")),
        ("!{sys.executable} -m pip install --upgrade plotly > /dev/null", ("plotly",)),
        ("!python -m pip install plotly==5.1", ("plotly==5.1",)),
        ("%conda install -y plotly", ("plotly",)),
        ("!uv pip install plotly && echo done", ("plotly",)),
        ("!pip list\n!pip --version", ()),
        ("!apt-get install -y graphviz", ()),
    ],
)
def test_packages_are_those_of_the_run(cell: str, packages: tuple[str, ...]) -> None:
    source = translated(cell)
    assert source.packages == packages and bool(source.notes) == bool(packages)
    assert ("system(" in source.text) == (not packages)


@pytest.mark.parametrize("cell", ["%debug", "%who", "%%prun\nf()", "%%capture\nf()", "%%html\n<b>", "x?", "%lprun f()"])
def test_magic_of_the_notebook_only_is_refused(cell: str) -> None:
    with pytest.raises(PreflightError) as caught:
        translated(cell, first_line=2)
    assert caught.value.details["line"] == 2 and caught.value.hint


@pytest.mark.parametrize("text", ["x = 5 % 3", "a != b", "f'{x!r}'", "x = 'what?'", "# !ls", "async def f(): await g"])
def test_plain_python_stays_as_it_is(text: str) -> None:
    assert translated(text).text == text and not files(script.from_cell(text).text, ())


def test_seconds_are_written_as_ipython_writes_them() -> None:
    from IPython.core.magics.execution import _format_time

    for seconds in (0, 1e-9, 2.5e-7, 3.21e-5, 0.0123, 0.5, 1.0, 59.9, 61, 3725, 90061):
        # IPython 8 has the micro sign, IPython 9 the Greek letter.
        assert runtime._seconds(seconds).replace("µ", "μ") == _format_time(seconds).replace("µ", "μ")


def test_shell_expands_names_of_the_function_that_calls(tmp_path: Path) -> None:
    done = as_script("def f(a):\n    !echo $a {a * 2}\n    !echo $a $missing\n    return 1\nf('x')", tmp_path)
    assert done.stdout.split() == ["x", "xx", "1"]  # IPython expands all names of a line or none
