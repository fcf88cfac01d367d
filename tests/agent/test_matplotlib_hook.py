"""Figures that a job shows, from `plt.show()` to the listed files; no part of it may fail a script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyter_amltrain.agent.pictures import matplotlib_hook
from jupyter_amltrain.agent.pictures.listing import MAX_LISTED, list_pictures
from jupyter_amltrain.agent.supervise import job_hooks
from jupyter_amltrain.kernel.terminal_screen import without_marks

from .conftest import Agent

PNG = b"\x89PNG\r\n\x1a\n"
BEGIN = "import matplotlib.pyplot as plt\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def python(folder: Path, home: Path, code: str, is_cell: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python with the hooks, for the run folder `folder`."""
    folder.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "DISPLAY")} | env
    job_hooks.add(environ, str(folder), str(home), gpus=False, cell="script.py" if is_cell else "")
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=folder)


def names(folder: Path) -> list[str]:
    return [row["path"] for row in list_pictures(str(folder))]


@pytest.mark.thorough
def test_show_saves_open_figures_and_closes_them(tmp_path: Path, home: Path) -> None:
    code = (
        "plt.plot([1, 2]); plt.title('Loss')\nplt.figure('Confusion matrix'); plt.imshow([[1, 2], [3, 4]])\n"
        "plt.savefig('own.png'); plt.show(); print(plt.get_fignums())\nplt.plot([3]); plt.show()"
    )
    done = python(tmp_path, home, BEGIN + code)
    assert (without_marks(done.stdout).strip(), done.stderr, done.returncode) == ("[]", "", 0)
    assert set(names(tmp_path)) == {f"pictures/{name}.png" for name in ("figure-1", "Confusion-matrix", "figure-2")}
    assert (tmp_path / "own.png").read_bytes().startswith(PNG)
    assert b"Title\0Loss" in (tmp_path / "pictures" / "figure-1.png").read_bytes()


@pytest.mark.thorough
def test_show_keeps_resolution_of_user(tmp_path: Path, home: Path) -> None:
    code = "for dpi in (300, 50):\n    plt.rcParams['savefig.dpi'] = dpi; plt.plot([1]); plt.show()"
    python(tmp_path, home, BEGIN + code)
    widths = [int.from_bytes((tmp_path / name).read_bytes()[16:20], "big") for name in names(tmp_path)]
    assert widths[0] > 5 * widths[1]


@pytest.mark.thorough
def test_interactive_figure_is_one_file(tmp_path: Path, home: Path) -> None:
    code = "plt.ion()\nfor i in range(4):\n    plt.plot([i]); plt.pause(0.01)\nplt.title('last'); plt.close()"
    done = python(tmp_path, home, BEGIN + code)
    assert done.returncode == 0 and names(tmp_path) == ["pictures/figure-1.png"]
    assert b"Title\0last" in (tmp_path / "pictures" / "figure-1.png").read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("import matplotlib; matplotlib.use('svg')\n", {}),
        ("", {"MPLBACKEND": "agg"}),
        ("", {"AMLTRAIN_PICTURES": "0"}),
        ("", {"MATPLOTLIBRC": "rc"}),
    ],
    ids=["use", "variable", "disabled", "matplotlibrc"],
)
def test_backend_of_user_stays(tmp_path: Path, home: Path, code: str, env: dict[str, str]) -> None:
    (tmp_path / "rc").mkdir()
    (tmp_path / "rc" / "matplotlibrc").write_text("backend: agg\n")
    done = python(tmp_path, home, code + BEGIN + "plt.plot([1]); plt.show(); print(plt.get_backend())", **env)
    assert done.returncode == 0 and "amltrain" not in done.stdout and not names(tmp_path)


@pytest.mark.thorough
def test_figure_of_cell_is_shown_at_end_unless_saved(tmp_path: Path, home: Path) -> None:
    code = "plt.plot([1])\nf, a = plt.subplots(); a.plot([1]); f.savefig('own.png')\nplt.figure()\nraise SystemExit(3)"
    assert python(tmp_path / "file", home, BEGIN + code).returncode == 3 and not names(tmp_path / "file")
    assert python(tmp_path / "cell", home, BEGIN + code, is_cell=True).returncode == 3
    assert names(tmp_path / "cell") == ["pictures/figure-1.png"]


@pytest.mark.thorough
def test_figure_that_cannot_be_drawn_does_not_end_script(tmp_path: Path, home: Path) -> None:
    code = "plt.title(r'$\\frac{$'); plt.show()\nplt.plot([1]); plt.show(); print('on')"
    done = python(tmp_path, home, BEGIN + code)
    assert without_marks(done.stdout).strip() == "on" and done.stderr.count("\n") == 1 and len(names(tmp_path)) == 1


@pytest.mark.thorough
def test_pictures_folder_that_cannot_be_written_does_not_end_script(tmp_path: Path, home: Path) -> None:
    (tmp_path / "pictures").write_text("a file")
    done = python(tmp_path, home, BEGIN + "plt.plot([1]); plt.show(); print('on')")
    assert without_marks(done.stdout).strip() == "on" and done.returncode == 0


@pytest.mark.thorough
def test_more_figures_than_limit_are_bounded(tmp_path: Path, home: Path) -> None:
    code = (
        "import amltrain_pictures as ours; ours.MAX_FILES = 3\n"
        "for i in range(6): plt.figure(figsize=(1, 1)); plt.plot([i]); plt.title(str(i)); plt.show()"
    )
    done = python(tmp_path, home, BEGIN + code)
    assert len(names(tmp_path)) == 4 and done.stderr.count("\n") == 1
    assert b"Title\x005" in (tmp_path / "pictures" / "figure-last.png").read_bytes()


def test_hook_imports_nothing_before_matplotlib(tmp_path: Path, home: Path) -> None:
    code = "import sys; print(sorted(sys.modules.keys() - {'sitecustomize'}))"
    assert python(tmp_path, home, code).stdout == python(tmp_path, home, code, AMLTRAIN_PICTURES="0").stdout


def test_hook_of_home_with_path_separator_is_left_out(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    job_hooks.add(env, str(tmp_path), str(tmp_path / "a:b"), gpus=True)
    assert not env


def test_job_of_a_job_has_a_folder_of_its_own(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(matplotlib_hook.FOLDER, "/of/an/outer/job")
    run = agent.submit(f"import os; print(os.environ[{matplotlib_hook.FOLDER!r}])")
    agent.wait(run)
    assert agent.log(run).strip() == str(agent.run_folder(run) / "pictures")


@pytest.mark.thorough
def test_show_in_job_is_listed_by_agent(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPLBACKEND", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    run = agent.submit("", argv=[sys.executable, "-c", BEGIN + "plt.plot([1]); plt.show()"])
    assert agent.wait(run)["state"] == "completed"
    (row,) = agent.good("pictures", run=run)["pictures"]
    assert row["path"] == "pictures/figure-1.png" and row["size"] > 1000


def test_listing_of_hostile_folder_is_bounded(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.png").write_bytes(PNG)
    run = tmp_path / "run"
    artifacts = run / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "link.png").symlink_to(outside / "secret.png")
    (artifacts / "folder").symlink_to(outside)
    (run / "pictures").symlink_to(outside)
    os.mkfifo(artifacts / "fifo.png")
    (artifacts / "dir.png").mkdir()
    (artifacts / "empty.png").touch()
    (artifacts / os.fsdecode(b"\xff.png")).write_bytes(PNG)
    (artifacts / ".hidden.png").write_bytes(PNG)
    (artifacts / "x+step+1+timestamp+2+u+compressed.webp").write_bytes(PNG)
    deep = artifacts / "/".join("d" * 30)
    deep.mkdir(parents=True)
    (deep / "deep.png").write_bytes(PNG)
    assert not list_pictures(str(run))
    for number in range(MAX_LISTED + 5):
        (artifacts / f"{number}.PNG").write_bytes(PNG)
    begin = time.monotonic()
    assert len(list_pictures(str(run))) == MAX_LISTED and time.monotonic() - begin < 5
