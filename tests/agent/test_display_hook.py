"""Values that a job displays: their text in the log between marks, their rich forms in files; never an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.displays import display_hook
from jupyter_amltrain.agent.supervise import job_hooks

CLASSES = """
class Table:
    def __init__(self, text='x'): self.text = text
    def __repr__(self): return 'Table ' + self.text
    def _repr_html_(self): return '<table><tr><td>%s</td></tr></table>' % self.text
class Broken(Table):
    def _repr_html_(self): raise ValueError('no')
class Silent:
    def __repr__(self): raise RuntimeError('no text')
    def _repr_html_(self): return '<b>there</b>'
class Anything:
    def __getattr__(self, name): return lambda *args, **options: 'anything'
    def __repr__(self): return 'Anything'
import amltrain_display
from amltrain_display import display, clear_output, update_display
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def run(folder: Path, home: Path, code: str, before: str = CLASSES, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python with the hooks, for the run folder `folder`."""
    environ = dict(os.environ) | env
    job_hooks.add(environ, str(folder), str(home), gpus=False, cell="script.py")
    command = [sys.executable, "-c", before + code]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=folder)


def files(folder: Path) -> dict[int, Any]:
    """The files of displays by number."""
    found = (folder / "displays").glob("*.json")
    return {int(path.stem): json.loads(path.read_text()) for path in sorted(found)}


def mark(text: str) -> str:
    return display_hook.MARK % text


def test_display_prints_text_between_marks_and_writes_forms(tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, "print('a'); display(Table(), 3); print('b')")
    assert done.stdout == f"a\n{mark('display;1;0')}Table x{mark('end')}\n3\nb\n" and not done.stderr
    data = {"text/html": "<table><tr><td>x</td></tr></table>", "text/plain": "Table x"}
    assert files(tmp_path) == {1: {"version": 0, "data": data, "metadata": {}}}


def test_last_value_of_cell_is_displayed(tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, "import amltrain_pretty as p; p.show(Table()); p.show([1]); p.show(None)")
    assert done.stdout.endswith(f"{mark('end')}\n[1]\n") and set(files(tmp_path)) == {1}


def test_redirected_text_has_no_marks(tmp_path: Path, home: Path) -> None:
    code = (
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as text: display(Table())\n"
        "print(repr(text.getvalue()))"
    )
    assert run(tmp_path, home, code).stdout == "'Table x\\n'\n" and not files(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "text"), [
    ("display(Broken())", "Table x"), ("display(Anything())", "Anything"), ("display(Table)", "__main__.Table"),
    ("display(Table(100 * 1024 * 1024 * 'x'))", "Table x"), ("display(lambda: 0)", "lambda"),
])  # fmt: skip
def test_value_whose_forms_cannot_be_shown_is_text(code: str, text: str, tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, code + "\nprint('on')")
    assert text in done.stdout and done.stdout.endswith("on\n") and mark("end") not in done.stdout
    assert done.returncode == 0 and done.stderr.count("\n") <= 1 and not files(tmp_path)


def test_player_is_text_and_names_its_kind(tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, "from IPython.display import Audio; display(Audio(b'RIFF', rate=8000))")
    assert "audio" in done.stderr and "Audio object" in done.stdout and not files(tmp_path)


def test_code_with_the_type_of_json_is_no_form(tmp_path: Path, home: Path) -> None:
    code = "display({'application/vnd.bokehjs_load.v0+json': '(function(root) {', 'text/plain': 'plot'}, raw=True)"
    assert run(tmp_path, home, code).stdout == "plot\n"


def test_text_of_own_method_is_that_of_ipython(tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, "from IPython.display import Pretty; display(Pretty('one\\n  two'), [Pretty('three')])")
    assert done.stdout == "one\n  two\n[three]\n"


def test_value_without_text_is_displayed(tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, "display(Silent()); print('on')")
    assert done.stdout.endswith("on\n") and files(tmp_path)[1]["data"]["text/html"] == "<b>there</b>"


def test_folder_that_cannot_be_written_leaves_text(tmp_path: Path, home: Path) -> None:
    (tmp_path / "displays").write_text("a file")
    done = run(tmp_path, home, "display(Table()); print('on')")
    assert done.stdout == "Table x\non\n" and done.returncode == 0 and done.stderr.count("\n") == 1


def test_displays_are_off_where_variable_is_zero(tmp_path: Path, home: Path) -> None:
    assert run(tmp_path, home, "display(Table())", AMLTRAIN_DISPLAYS="0").stdout == "Table x\n"


def test_update_replaces_file_and_keeps_number(tmp_path: Path, home: Path) -> None:
    code = "h = display(Table('0'), display_id=True)\nfor i in range(1000): h.update(Table(str(i)))"
    done = run(tmp_path, home, code)
    (one,) = files(tmp_path).values()
    assert "999" in one["data"]["text/html"] and one["version"] >= 1
    assert done.stdout.count(mark("end")) < 30  # a log of a million updates stays small
    last = mark(f"update;1;{one['version']}")
    assert done.stdout.endswith(f"{last}Table 999{mark('end')}\n")


def test_text_with_id_can_be_updated(tmp_path: Path, home: Path) -> None:
    run(tmp_path, home, "display('step 0', display_id='a'); update_display('step 1', display_id='a')")
    assert files(tmp_path)[1]["data"] == {"text/plain": "'step 1'"}


def test_update_of_unknown_display_shows_nothing(tmp_path: Path, home: Path) -> None:
    assert run(tmp_path, home, "update_display(Table(), display_id='never')").stdout == ""


def test_clear_output_forgets_displays(tmp_path: Path, home: Path) -> None:
    done = run(tmp_path, home, "display(Table()); clear_output(); print('b')")
    assert done.stdout.endswith(f"{mark('clear')}b\n") and not files(tmp_path)


def test_clear_output_that_waits_keeps_display_until_next(tmp_path: Path, home: Path) -> None:
    code = "display(Table('1')); clear_output(wait=True); print(sorted(__import__('os').listdir('displays')))"
    assert "['1.json']" in run(tmp_path, home, code + "; display(Table('2'))").stdout
    assert set(files(tmp_path)) == {2}


def test_newer_displays_replace_oldest_beyond_limit(tmp_path: Path, home: Path) -> None:
    code = "amltrain_display.MAX_FILES = 3\nfor i in range(5): display(Table(str(i)))"
    run(tmp_path, home, code)
    assert list(files(tmp_path)) == [3, 4, 5]


def test_processes_of_a_run_do_not_share_numbers(tmp_path: Path, home: Path) -> None:
    code = (
        "import os\ndisplay(Table('a'))\nif os.fork(): os.wait()\nelse: display(Table('b')); os._exit(0)\n"
        "display(Table('c'))"
    )
    run(tmp_path, home, code)
    assert [one["data"]["text/plain"] for one in files(tmp_path).values()] == ["Table a", "Table b", "Table c"]


IPYTHON = "from IPython.display import *\n"


def test_functions_of_ipython_do_the_same(tmp_path: Path, home: Path) -> None:
    code = (
        "display(Markdown('# a'), HTML('<b>b</b>'), Latex('$c$'), JSON({'d': 1}), SVG('<svg></svg>'))\n"
        "handle = display(Markdown('1'), display_id=True); handle.update(Markdown('2'))\n"
        "publish_display_data({'text/html': '<i>', 'text/plain': 'raw'}); display(Javascript('alert(1)'))"
    )
    done = run(tmp_path, home, code, before=IPYTHON)
    kinds = [set(one["data"]) - {"text/plain"} for one in files(tmp_path).values()]
    assert kinds == [{"text/markdown"}, {"text/html"}, {"text/latex"}, {"application/json"}, {"image/svg+xml"},
                     {"text/markdown"}, {"text/html"}]  # fmt: skip
    assert files(tmp_path)[6]["data"]["text/markdown"] == "2" and "Javascript object" in done.stdout


def test_text_for_an_image_and_its_size_are_kept(tmp_path: Path, home: Path) -> None:
    code = "open('a.png', 'wb').write(b'\\x89PNG'); display(Image('a.png', width=50, alt='a box'))"
    run(tmp_path, home, code, before=IPYTHON)
    assert files(tmp_path)[1]["metadata"] == {"image/png": {"width": 50, "alt": "a box"}}


def test_functions_of_ipython_stay_where_there_is_a_shell(tmp_path: Path, home: Path) -> None:
    code = "from IPython.core.interactiveshell import InteractiveShell as S; S.instance(); display(Markdown('# a'))"
    done = run(tmp_path, home, code, before=IPYTHON, HOME=str(tmp_path))
    assert "Markdown object" in done.stdout and mark("end") not in done.stdout


@pytest.mark.thorough
def test_matplotlib_figure_is_displayed_and_not_shown_again(tmp_path: Path, home: Path) -> None:
    code = "import matplotlib.pyplot as plt\nf, a = plt.subplots(); a.set_title('Loss'); display(f)"
    run(tmp_path, home, code, MPLBACKEND="", DISPLAY="")
    (shown,) = files(tmp_path).values()
    assert shown["data"]["image/png"].startswith("iVBOR") and not (tmp_path / "pictures").exists()
    assert shown["metadata"] == {"image/png": {"alt": "Loss"}}


def test_pillow_image_is_displayed(tmp_path: Path, home: Path) -> None:
    run(tmp_path, home, "from PIL import Image; display(Image.new('RGB', (4, 3)))")
    assert files(tmp_path)[1]["data"]["image/png"].startswith("iVBOR")


@pytest.mark.thorough
def test_tables_of_pandas_and_polars_are_displayed(tmp_path: Path, home: Path) -> None:
    code = (
        "import pandas as pd, polars as pl\ndisplay(pd.DataFrame({'a': range(10**6)}))\n"
        "display(pl.DataFrame({'a': range(10**6)}))\n"
        "with pd.option_context('display.max_rows', None): display(pd.DataFrame({'a': range(50_000)}))"
    )
    done = run(tmp_path, home, code)
    assert ["text/html" in one["data"] for one in files(tmp_path).values()] == [True, True]
    assert done.returncode == 0 and "left out" in done.stderr


LIBRARIES = """
class Chart:
    __module__ = '{0}.objects'
    def __repr__(self): return 'Chart'
    def to_plotly_json(self): return {{}}
    def to_json(self): return '{{"data": []}}'
    def to_dict(self): return {{'$schema': 'https://vega.github.io/schema/vega-lite/v5.2.json', 'mark': 'bar'}}
    def _repr_mimebundle_(self, **options): return {{'text/html': '<script>alert(1)</script>'}}
    def _ipython_display_(self): raise SystemExit('opens a browser')
"""


@pytest.mark.parametrize(("library", "mime"), [
    ("plotly", "application/vnd.plotly.v1+json"), ("altair", "application/vnd.vegalite.v5+json"),
])  # fmt: skip
def test_chart_of_library_is_its_specification(library: str, mime: str, tmp_path: Path, home: Path) -> None:
    code = LIBRARIES.format(library).replace(
        "    def _ipython", "    def _" if library == "altair" else "    def _ipython"
    )
    run(tmp_path, home, code + "display(Chart())")
    assert set(files(tmp_path)[1]["data"]) == {mime, "text/plain"}


def test_hook_imports_nothing_before_a_display(tmp_path: Path, home: Path) -> None:
    code = "import sys; print(sorted(sys.modules.keys() - {'sitecustomize'}))"
    assert "amltrain" not in run(tmp_path, home, code, before="").stdout


@pytest.mark.thorough
def test_notebook_as_job_displays_what_its_cells_show(tmp_path: Path, home: Path) -> None:
    sources = [
        "from IPython.display import HTML\nprint('a'); display(HTML('<b>1</b>'))",
        "h = display(HTML('0'), display_id=True)",
        "h.update(HTML('1'))\n'text'",
    ]
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**cell, "source": source} for source in sources]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "job.ipynb").write_text(json.dumps(notebook))
    environ = dict(os.environ) | {"AML_OUTPUT_DIR": str(tmp_path)}
    hook = job_hooks.add(environ, str(tmp_path), str(home), gpus=False, is_needed=True)
    command = [sys.executable, os.path.join(hook, "amltrain_notebook.py"), "job.ipynb", "{}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(f"a\n{mark('display;1;0')}<IPython")
    assert "'text'\n" in done.stdout and files(tmp_path)[2]["data"]["text/html"] == "1"
