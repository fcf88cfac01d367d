"""The ``.venv`` of the checkout: made, filled, filled again only when pyproject.toml changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PYTHON = BIN / "python"
STAMP = VENV / "amltrain-installed.json"
OLDEST = (3, 10)


class TaskError(Exception):
    """One sentence for the person at the terminal: what, where, what to type next."""


def say(text: str) -> None:
    """Print one line of progress at once, before a child process writes."""
    print(f"-- {text}", flush=True)


def digest(paths: Iterable[Path]) -> str:
    """sha256 over names and contents of the given files; what is missing counts as empty."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0")
        total.update(path.read_bytes() if path.exists() else b"")
        total.update(b"\0")
    return total.hexdigest()


def search_path() -> str:
    """PATH with the virtual environment first, so that its `node` and `jlpm` are found."""
    return os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])


def surroundings(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for child processes, as an activated virtual environment would give it."""
    found = {**os.environ, "PATH": search_path(), "VIRTUAL_ENV": str(VENV), **(extra or {})}
    found.pop("PYTHONHOME", None)
    # The tests start thousands of processes: each would compile the same modules again.
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def run(argv: list[str | Path], *, extra: Mapping[str, str] | None = None, cwd: Path = ROOT) -> int:
    """Run a command with the terminal as its output and return its exit code."""
    return subprocess.run([str(part) for part in argv], cwd=cwd, env=surroundings(extra)).returncode


def run_quietly(argv: list[str | Path]) -> int:
    """Run a command and show its output only when it fails."""
    done = subprocess.run(
        [str(part) for part in argv],
        cwd=ROOT,
        env=surroundings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode


def must(argv: list[str | Path], why: str, *, extra: Mapping[str, str] | None = None, quiet: bool = False) -> None:
    """Run a command that has to succeed; with `quiet` its output is shown only when it does not.

    Raises
    ------
    TaskError
        It did not; its own output stands above.
    """
    code = run_quietly(argv) if quiet else run(argv, extra=extra)
    if code:
        shown = " ".join(str(part) for part in argv)
        raise TaskError(f"{why}: exit code {code} from '{shown}'. Its output is above.")


def ensure(extras: Iterable[str] = ()) -> None:
    """Make ``.venv`` hold this checkout (editable, without the labextension) and these extras.

    Raises
    ------
    TaskError
        No Python 3.10+, no way to make a virtual environment, or the installation failed.
    """
    wanted = set(extras)
    uv = shutil.which("uv")
    if not PYTHON.exists():
        _create(uv)
    now = {"pyproject": digest([ROOT / "pyproject.toml"]), "python": _version()}
    before = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    have = set(before.get("extras", ())) if {**before, **now} == before else set()
    if STAMP.exists() and wanted <= have and before.get("pyproject") == now["pyproject"]:
        return
    what = f".[{','.join(sorted(wanted | have))}]" if wanted | have else "."
    say(f"installing {what} into .venv ({'uv' if uv else 'pip'})")
    installer: list[str | Path]
    if uv:
        installer = [uv, "pip", "install", "--python", PYTHON, "--quiet", "--editable", what]
    else:
        installer = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        installer += ["--editable", what]
    must(installer, "Cannot install into .venv", extra={"AMLTRAIN_SKIP_LABEXTENSION": "1"})
    STAMP.write_text(json.dumps({**now, "extras": sorted(wanted | have)}))


def _version() -> str:
    return subprocess.run(
        [PYTHON, "-c", "import sys; print(sys.version)"], capture_output=True, text=True
    ).stdout.strip()


def _create(uv: str | None) -> None:
    if sys.version_info < OLDEST:
        raise TaskError(
            f"Python {sys.version.split()[0]} is too old, 3.10 or newer is needed. "
            "Type: make PYTHON=python3.12 <target>"
        )
    say(f"making .venv with Python {sys.version.split()[0]}")
    if uv:
        must([uv, "venv", "--quiet", "--python", sys.executable, VENV], "Cannot make .venv")
        return
    done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        if "ensurepip" in done.stdout + done.stderr:
            raise TaskError(
                "Cannot make .venv: this Python has no ensurepip. "
                "Type: apt install python3-venv (or install uv), then again."
            )
        raise TaskError(f"Cannot make .venv: {(done.stderr or done.stdout).strip()}")
