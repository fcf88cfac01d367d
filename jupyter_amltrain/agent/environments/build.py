"""Build of an environment: ``uv`` for Python packages, micromamba, mamba or conda for conda packages."""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence
from urllib.parse import quote

from .. import protocol, testing
from ..protocol import AgentError
from .environment_store import EnvironmentStore, find_base, folder_bytes, installed
from .pip_settings import uv_variables, without_password

Json = Dict[str, Any]
Write = Callable[[str], None]

#: Programs that install conda packages, best first.
CONDA_TOOLS = ("micromamba", "mamba", "conda")
#: Folders of uv that a PATH may lack, below the user's home.
_UV_FOLDERS = (".local/bin", ".cargo/bin")
#: Variables that lead an interpreter or uv to other packages.
INTERPRETER_VARIABLES = (
    *("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"),
    *("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "UV_PROJECT_ENVIRONMENT", "UV_SYSTEM_PYTHON", "UV_PYTHON"),
)
#: Characters of a reason; a conflict of many packages is longer, and the log has the whole.
_MAX_REASON_CHARS = 700
#: Lines of uv that tell a user what is going on; `_PACKAGE` lines are collected.
_PROGRESS = re.compile(
    r"(?:Using CPython|Resolved|Prepared|Installed|Downloading|Downloaded|Building|Built|Updating|Updated)\b"
)
_PACKAGE = re.compile(r"\s*\+ (?P<package>\S+(?: \(from [^)]*\))?)\s*$")
#: Packages in one line of the run's log.
_PACKAGES_PER_LINE = 8
#: Characters of a value that can be a secret: a shorter one is a part of many words.
_MIN_SECRET_CHARS = 4
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded|os error 28\b|errno 28\b", re.IGNORECASE)
_NO_PYTHON = re.compile(r"no interpreter found|failed to inspect python|querying python at", re.IGNORECASE)


class BuildFailed(Exception):
    """The environment could not be built; the message is one line for the user."""


class BuildLog(NamedTuple):
    """Where a build reports: every line, the lines that the run's own log shows, and how far it is."""

    whole: Write
    shown: Write
    progress: Write
    secrets: Sequence[str] = ()  #: values that no line may contain

    def hidden(self, text: str) -> str:
        """Return a text without the secrets, as they are or as a part of an address, and without passwords."""
        for value in sorted(self.secrets, key=len, reverse=True):
            if len(value) >= _MIN_SECRET_CHARS:
                text = text.replace(value, "***").replace(quote(value, safe=""), "***")
        return without_password(text)


def find_tool(spec: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the program that builds a specification; empty if it is not installed here."""
    path = environ.get("PATH", os.defpath)
    if spec["conda"]:
        return next(filter(None, (shutil.which(name, path=path) for name in CONDA_TOOLS)), "")
    return uv_of_build(spec, environ)


def uv_of_build(spec: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the ``uv`` that builds with the interpreter of a specification; empty if it is not installed here."""
    base = shutil.which(spec["base"], path=environ.get("PATH", os.defpath)) or ""
    return find_uv(environ, spec["tool"], base, find_base(base))


def find_uv(environ: Mapping[str, str], known: str = "", *interpreters: str) -> str:
    """Return ``uv`` of the PATH, `known`, that of the Python package beside an interpreter, or of the user's folders.

    Parameters
    ----------
    known
        Path that another process has found; empty for none.
    interpreters
        Paths of interpreters, beside that of this process.
    """
    home = environ.get("HOME", "")
    beside = [os.path.dirname(name) for name in (sys.executable, *interpreters) if name]
    folders = [os.path.join(home, folder) for folder in _UV_FOLDERS] if home else []
    found = shutil.which("uv", path=environ.get("PATH", os.defpath))
    if not found and os.access(known, os.X_OK):
        found = known
    return found or shutil.which("uv", path=os.pathsep.join([*beside, *folders])) or ""


def missing_tool_text(spec: Mapping[str, Any]) -> str:
    """Return why a specification cannot be built on a machine without the program for it, and what to install."""
    if spec["conda"]:
        return (
            "the file names conda packages, and none of micromamba, mamba and conda is installed there. Install"
            " micromamba, or name the packages of pip below 'pip:' only"
        )
    return "uv is not installed there. Install it: python3 -m pip install uv"


def build(store: EnvironmentStore, key: str, spec: Json, environ: Mapping[str, str], log: BuildLog) -> Json:
    """Build an environment, or wait for another process that builds it; return its marker.

    Raises
    ------
    BuildFailed
        One line for the user.
    AgentError
        The state root cannot be written.
    """
    handle = store.lock(key, exclusive=True)
    if handle is None:
        log.shown("another run builds this environment; waiting for it")
        handle = store.lock(key, exclusive=True, wait=True)
    try:
        marker = store.usable(key)
        if marker is not None:
            return marker
        return _build_locked(store, key, spec, environ, log)
    except OSError as error:
        store.discard(key)
        raise BuildFailed(_os_error_text(error, store.folder)) from error
    except BuildFailed:
        store.discard(key)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _build_locked(store: EnvironmentStore, key: str, spec: Json, environ: Mapping[str, str], log: BuildLog) -> Json:
    began = protocol.mono()
    store.clear_partial(key)
    if os.path.lexists(store.path(key)):  # of a killed conda build (no temporary name), or its Python is gone
        shutil.rmtree(store.path(key))
    tool = find_tool(spec, environ)
    if not tool:
        raise BuildFailed(missing_tool_text(spec))
    folder = _with_conda(store, key, spec, tool, environ, log) if spec["conda"] else None
    folder = folder or _with_uv(store, key, spec, tool, environ, log)
    packages = [log.hidden(line) for line in spec["packages"]]
    marker: Json = {
        "schema": protocol.SCHEMA,
        "spec": dict(spec, tool="", conda=log.hidden(spec["conda"]), packages=packages),
        "packages": [log.hidden(line) for line in installed(folder)],
        "seconds": round(protocol.mono() - began, 3),
        "built": protocol.wall(),
        "tool": os.path.basename(tool),
        "bytes": None,
    }
    testing.hit("environment_before_marker")
    store.write_marker(folder, marker)
    if folder != store.path(key):
        os.rename(folder, store.path(key))
    store.record_seconds(spec["label"], marker["seconds"])
    return marker


def record_size(store: EnvironmentStore, key: str) -> None:
    """Add the size of a new environment to its marker: the job need not wait for it."""
    marker = store.marker(key)
    if marker is not None and marker.get("bytes") is None:
        store.write_marker(store.path(key), dict(marker, bytes=folder_bytes(store.path(key))))


def _with_uv(store: EnvironmentStore, key: str, spec: Json, uv: str, environ: Mapping[str, str], log: BuildLog) -> str:
    """Build with uv under a temporary name; return the folder."""
    folder = store.partial(key)
    env = _tool_environment(environ)
    env.update(uv_variables(environ))
    env.update(UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", UV_NO_MODIFY_PATH="1")
    base = find_base(spec["base"], environ.get("PATH", ""))
    # The interpreter of jobs without an environment is the first one that fits.
    env["PATH"] = os.pathsep.join([os.path.dirname(base), *search_path(env)])
    python = spec["python"] or base
    run = _Program(uv, env, store.folder, log)
    run(["venv", "--no-project", "--relocatable", "--python", python, folder], spec["python"])
    testing.hit("environment_before_install")
    lines = [line for line in spec["packages"] if not line.startswith("-c ")]
    constraints = [line[len("-c ") :] for line in spec["packages"] if line.startswith("-c ")]
    argv = ["pip", "install", "--python", os.path.join(folder, "bin", "python")]
    argv += ["-r", _write_lines(folder, "requirements.txt", lines)]
    if constraints:
        argv += ["-c", _write_lines(folder, "constraints.txt", constraints)]
    if lines:
        run(argv)
    return folder


def _with_conda(
    store: EnvironmentStore, key: str, spec: Json, tool: str, environ: Mapping[str, str], log: BuildLog
) -> str:
    """Build with micromamba, mamba or conda; packages contain the path of the folder, so it has its final name."""
    folder = store.path(key)
    os.makedirs(store.partial(key), mode=0o700)
    try:
        file = _write_lines(store.partial(key), "environment.yml", spec["conda"].splitlines())
        argv = ["create"] if os.path.basename(tool) == "micromamba" else ["env", "create"]
        _Program(tool, _tool_environment(environ), store.folder, log)([*argv, "--yes", "-p", folder, "-f", file])
    finally:
        shutil.rmtree(store.partial(key), ignore_errors=True)
    if not os.access(os.path.join(folder, "bin", "python"), os.X_OK):
        raise BuildFailed("the conda file has no python. Add it: python=3.11")
    return folder


def search_path(environ: Mapping[str, str]) -> List[str]:
    """Return the folders of programs, with the versions of pyenv in place of its shims.

    A shim of a version that is installed but not chosen fails, and uv would stop at it.
    """
    root = environ.get("PYENV_ROOT") or os.path.join(environ.get("HOME", "~"), ".pyenv")
    versions = glob.glob(os.path.join(glob.escape(root), "versions", "*", "bin"))

    def newest_first(folder: str) -> List[int]:
        return [-int(number) for number in re.findall(r"\d+", os.path.basename(os.path.dirname(folder)))]

    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    rest = [folder for folder in folders if os.path.normpath(folder) != os.path.join(root, "shims")]
    return [*rest, *sorted(versions, key=newest_first)] if len(rest) < len(folders) else folders


def _tool_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    env = {name: value for name, value in environ.items() if name not in INTERPRETER_VARIABLES}
    env["NO_COLOR"] = "1"
    return env


def _write_lines(folder: str, name: str, lines: List[str]) -> str:
    path = os.path.join(folder, name)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    return path


class _Program:
    """A program whose output goes to the log of the build."""

    def __init__(self, program: str, env: Mapping[str, str], cwd: str, log: BuildLog) -> None:
        self._program, self._env, self._cwd, self._log = program, env, cwd, log

    def __call__(self, args: List[str], python: str = "") -> None:
        """Run the program with `args` until its end; `python` is the version that it looks for."""
        argv = [self._program, *args]
        self._log.whole("$ " + " ".join(argv))
        try:
            process = subprocess.Popen(
                argv,
                cwd=self._cwd,
                env=dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise BuildFailed("%s could not be started: %s" % (self._program, error.strerror or error)) from error
        assert process.stdout is not None
        lines: List[str] = []
        packages: List[str] = []
        progress = UvProgress()
        for data in process.stdout:
            line = self._log.hidden(data.decode("utf-8", "replace").rstrip())
            self._log.whole(line)
            lines = [*lines[-400:], line]
            package = _PACKAGE.match(line)
            if package:
                packages.append(package["package"])
            elif _PROGRESS.match(line) or (line and not self._is_uv):
                self._log.shown(line.partition(" interpreter at: ")[0])
            if self._is_uv and progress.read(line):
                self._log.progress(progress.text)
        for at in range(0, len(packages), _PACKAGES_PER_LINE):
            self._log.shown("installed " + ", ".join(packages[at : at + _PACKAGES_PER_LINE]))
        code = process.wait()
        if code:
            raise BuildFailed(self._reason(lines, code, python))

    @property
    def _is_uv(self) -> bool:
        return os.path.basename(self._program) not in CONDA_TOOLS

    def _reason(self, lines: List[str], code: int, python: str) -> str:
        name = os.path.basename(self._program)
        text = "\n".join(lines)
        if _NO_SPACE.search(text):
            return "no space is left on the disk. Free some, for example: %aml_env list, and %aml_env delete ENV"
        if python and _NO_PYTHON.search(text):
            return "Python %s is not installed there (%s). Install it, or name another version" % (
                python,
                self._installed_versions() or "no Python was found",
            )
        if code < 0:
            return "%s was ended by %s" % (name, _signal_text(-code))
        return reason_in(lines) or "%s ended with exit code %d" % (name, code)

    def _installed_versions(self) -> str:
        """Return the versions of Python on this machine, newest first."""
        argv = [self._program, "python", "list", "--only-installed"]
        try:
            done = subprocess.run(
                argv, env=dict(self._env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=30,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return ""
        found = re.findall(r"^(?:cpython-)?(\d+\.\d+\.\d+)", done.stdout.decode("utf-8", "replace"), re.MULTILINE)
        return "there: " + ", ".join(dict.fromkeys(found)) if found else ""


class UvProgress:
    """Progress of an installation, from the lines that ``uv`` prints without a terminal.

    It names the packages of the installation, and of each large one its size and the end of its download.

    Attributes
    ----------
    text
        How far it is, for example ``12 packages, 16.1 of 49.8 MiB downloaded``; empty until that is known.
    """

    _STEP = re.compile(r"(?P<step>Resolved|Prepared) (?P<count>\d+) packages?\b")
    _PACKAGE = re.compile(r"(?P<step>Downloading|Downloaded|Building|Built) (?P<name>\S+)(?: \((?P<size>[^()]+)\))?")
    _SIZE = re.compile(r"(?P<number>[\d.]+)(?P<unit>[KMG]iB)\Z")
    _MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}

    def __init__(self) -> None:
        self._count = 0
        self._is_prepared = False
        self._sizes: Dict[str, float] = {}
        self._downloaded: Dict[str, float] = {}
        self._from_source: List[str] = []
        self.text = ""

    def read(self, line: str) -> bool:
        """Read a line; return whether it changes the text."""
        before = self.text
        step, package = self._STEP.match(line.strip()), self._PACKAGE.match(line.strip())
        if step:
            self._count, self._is_prepared = int(step["count"]), step["step"] == "Prepared"
        elif package:
            self._of_package(package["step"], package["name"], package["size"] or "")
        self.text = self._text()
        return self.text != before

    def _of_package(self, step: str, name: str, size: str) -> None:
        match = self._SIZE.match(size)
        if step == "Downloading" and match:
            self._sizes[name] = float(match["number"]) * self._MIB[match["unit"]]
        elif step == "Downloaded" and name in self._sizes:
            self._downloaded[name] = self._sizes[name]
        elif step == "Building":
            self._from_source.append(name)
        elif step == "Built" and name in self._from_source:
            self._from_source.remove(name)

    def _text(self) -> str:
        count = "%d package%s" % (self._count, "s" * (self._count != 1))
        if self._is_prepared:
            return "installing " + count
        parts = [count] if self._count else []
        if self._sizes:
            sizes = sum(self._downloaded.values()), sum(self._sizes.values())
            parts.append("%.1f of %.1f MiB downloaded" % sizes)
        if self._from_source:
            parts.append("compiling %s" % ", ".join(self._from_source[:3]))
        return ", ".join(parts)


def reason_in(lines: List[str]) -> str:
    """Return the error in the output of a program as one line; empty without one.

    uv writes ``error: TEXT`` with lines ``cause: TEXT`` below, older versions a cross and an arrow; both wrap lines.
    """
    start = next(
        (at for at, line in enumerate(lines) if re.match(r"(?:error|critical|.*Error):?\s|\s*×\s", line, re.I)), None
    )
    if start is None:
        rest = [line.strip() for line in lines if line.strip()]
        return _cut(rest[-1]) if rest else ""
    parts: List[str] = []
    for line in lines[start:]:
        text = re.sub(r"^[\s│├╰─▶×]+", "", line).strip()
        if not text or text.startswith(("hint:", "[std")):
            break
        caused = re.match(r"(?:error|cause|caused by|critical[^:]*)\s*:\s*(.*)", text, re.IGNORECASE)
        if parts and (caused or re.match(r"[\s│]*[├╰]─▶", line)):
            parts.append("\0" + (caused[1] if caused else text))
        else:
            parts.append(caused[1] if caused else text)
    text = " ".join(parts)
    causes = [part.strip() for part in text.split("\0") if part.strip()]
    conflict = next((part for part in causes if part.startswith("Because ")), "")  # says all that the line above says
    return _cut(conflict or ": ".join(part.rstrip(".:") for part in causes))


def _cut(text: str) -> str:
    text = re.sub(r"\s+", " ", text).rstrip(".")
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS].rstrip() + " …"


def _os_error_text(error: OSError, folder: str) -> str:
    import errno

    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", -1)):
        return "no space is left on the disk of %s. Free some, for example: %%aml_env delete ENV" % folder
    return "%s: %s" % (error.filename or folder, error.strerror or error)


def _signal_text(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "signal %d" % number
    return name + (" (often for lack of memory)" if name == "SIGKILL" else "")


def result_of(action: Callable[[], str]) -> Json:
    """Return ``{"text": ...}`` of an action, or ``{"error": text}``."""
    try:
        return {"text": action()}
    except BuildFailed as error:
        return {"error": str(error)}
    except AgentError as error:
        return {"error": error.message}
    except Exception as error:  # the run must end with a reason, whatever it is
        return {"error": "%s: %s" % (type(error).__name__, error)}
