"""Hook in a job's Python that writes the variables of the lines that raised, when an exception has ended the script.

Python keeps such an exception (``sys.last_exc``, ``sys.last_value``) before it prints it. The first exit handler of the
process, which runs last, passes it to :func:`write` (``supervise/import_hook.py``), so that no handler of exceptions is
replaced. The file has at most 64 KiB and is made in half a second. Nothing that goes wrong here may change how the
script ends. ``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_failure.py``.
"""

from __future__ import annotations

import json
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from ..distributed import own_rank
    from . import failing_names, memory_lines, safe_access, value_facts
else:
    import amltrain_failing_names as failing_names
    import amltrain_memory_lines as memory_lines
    import amltrain_own_rank as own_rank
    import amltrain_safe_access as safe_access
    import amltrain_value_facts as value_facts

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

    Json = Dict[str, Any]

#: Variable with the folder for the file; if unset or 0, nothing is written.
FOLDER = "AMLTRAIN_FAILURE"
#: Bytes of the file, seconds for reading the values, and after which the reading of one is interrupted.
MAX_BYTES, _READ_S, _INTERRUPT_S = 64 << 10, 0.4, 0.5
#: Exceptions of a chain, their frames, the variables of a frame's line, and its others.
_MAX_ERRORS, _MAX_FRAMES, _MAX_NAMED, _MAX_OTHERS = 4, 8, 12, 12
#: Steps of a traceback, and names of a frame that are looked at.
_MAX_STEPS, _MAX_NAMES = 100_000, 2000
#: Characters of the text of an exception.
_MAX_TEXT = 400
#: Names that IPython has in the namespace of a notebook.
_IPYTHON = frozenset(["In", "Out", "exit", "quit", "get_ipython", "open"])
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_PACKAGES = tuple("%s%s%s" % (os.sep, name, os.sep) for name in ("site-packages", "dist-packages"))


def write(error: Any) -> None:
    """Write the file about an exception that has ended the script.

    Parameters
    ----------
    error
        The exception, as Python keeps it.
    """
    try:
        _write(error)
    finally:
        if type(error) is KeyboardInterrupt:
            _interrupt_again()


def _interrupt_again() -> None:
    """Let Python end by the signal, as it does when the last text that it has run was interrupted."""
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        pass


def _write(error: Any) -> None:
    folder = os.environ.get(FOLDER, "")
    if folder in ("", "0") or not safe_access.is_subtype(type(error), BaseException):
        return
    failure = FailureReader()
    try:
        with _Interrupt():
            failure.read(error)
    except (_TooSlow, MemoryError, RecursionError):  # what was read so far is written
        pass
    content = {**failure.content(), "memory": _memory(failure)}
    data = json.dumps(content).encode("ascii")
    if len(data) > MAX_BYTES or not failure.errors:
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, "rank-%d.json" % own_rank.rank_of(os.environ))
    part = "%s.%d.part" % (path, os.getpid())
    with open(part, "wb") as file:
        file.write(data)
    os.replace(part, path)


def _memory(failure: FailureReader) -> List[Json]:
    """Return the lines that fill the GPUs, if the script has ended for want of their memory."""
    if not any(one["type"].endswith("OutOfMemoryError") for one in failure.errors):
        return []
    try:
        rows = memory_lines.read(is_library)
        return [{**row, "code": failure.shown_line(row["file"], row["line"])} for row in rows]
    except Exception:  # another version of PyTorch
        return []


class FailureReader:
    """What is read of an exception, and of those that led to it."""

    def __init__(self) -> None:
        self.errors: List[Json] = []
        self._reader = value_facts.FactReader(_READ_S)
        self._sources = failing_names.ParsedSources()
        self._bytes_left = MAX_BYTES - 12288

    def content(self) -> Json:
        """Return the content of the file."""
        return {"schema": 1, "time": time.time(), "errors": self.errors}

    def read(self, error: Any) -> None:
        """Read the exception that ended the script, and what led to it."""
        try:
            self._read(error)
        except value_facts.OutOfTime:  # what was read so far is kept
            pass

    def _read(self, error: Any) -> None:
        for relation, one in chain(error):
            text = self._text(one)
            kind = safe_access.type_name(type(one))
            found: Json = {"type": kind, "text": text, "relation": relation, "frames": [], "hidden": 0}
            steps, found["hidden"] = frames(one)
            if not steps and self.errors:
                continue
            self.errors.append(found)
            self._bytes_left -= len(json.dumps(found))
            for traceback, line, is_own in sorted(steps, key=lambda step: not step[2]):  # the user's come first
                if self._bytes_left <= 0:
                    return
                self._read_frame(found["frames"], traceback, line, is_own)

    def shown_line(self, file: str, line: int) -> str:
        """Return a line of a source; empty if it looks like a secret."""
        text = failing_names.line_of(file, line)
        return "" if self._reader.is_secret(("",), text) else text

    def _text(self, error: Any) -> str:
        """Return the text of an exception that has one, without a call of its ``__str__``."""
        args = safe_access.linked(error, "args")
        text = safe_access.text_of(args[0], _MAX_TEXT) if type(args) is tuple and args else ""
        return value_facts.HIDDEN if text and self._reader.is_secret(("",), text) else text

    def _read_frame(self, into: List[Json], traceback: Any, line: int, is_own: bool) -> None:
        """Read the variables of a frame: those that its line names, then the others; of a library only numbers."""
        frame = traceback.tb_frame
        code = frame.f_code
        file = safe_access.text_of(code.co_filename, 500)
        values: List[Json] = []
        found: Json = {
            "file": file, "line": line, "function": safe_access.text_of(code.co_name),
            "code": "", "library": not is_own, "values": values, "more": 0,
        }  # fmt: skip
        into.insert(len(into) if is_own else 0, found)
        found["code"] = self.shown_line(file, line)
        self._bytes_left -= len(json.dumps(found))
        names = _FrameNames(frame)
        shown = set()
        for path in self._sources.paths(code, line, failing_names.span_of(traceback)):
            name, value = names.resolve(path)
            if value is safe_access.MISSING or name in shown or value_facts.is_definition(value):
                continue
            shown.add(name)
            facts = self._reader.facts(name, value, (path.root,))
            if is_own or value_facts.is_data(facts):
                self._add(values, {"name": name, "named": True, **facts}, _MAX_NAMED)
        if not is_own:
            return
        others = [(name, value) for name, value in names.others() if name not in shown]
        found["more"] = max(0, len(others) - _MAX_OTHERS)
        for name, value in others[:_MAX_OTHERS]:
            self._add(values, {"name": name, "named": False, **self._reader.facts(name, value)}, 2 * _MAX_OTHERS)

    def _add(self, values: List[Json], value: Json, limit: int) -> None:
        size = len(json.dumps(value)) + 2
        if len(values) < limit and size < self._bytes_left:
            values.append(value)
            self._bytes_left -= size


class _FrameNames:
    """The variables of a frame."""

    def __init__(self, frame: Any) -> None:
        self._code, self._locals, self._globals = frame.f_code, frame.f_locals, frame.f_globals

    def resolve(self, path: failing_names.Path) -> Tuple[str, Any]:
        """Return the longest part of a path that can be read safely, and its value."""
        value, steps = self._value(path.root), 0
        for kind, key in path.steps:
            if value is safe_access.MISSING:
                break
            if kind == ".":
                inner = safe_access.attribute(value, str(key))
            else:
                inner = safe_access.item(value, self._value(str(key)) if kind == "[name]" else key)
            if inner is safe_access.MISSING or value_facts.is_definition(inner):
                break
            value, steps = inner, steps + 1
        return failing_names.text_of(path._replace(steps=path.steps[:steps])), value

    def _value(self, name: str) -> Any:
        found = safe_access.entry(self._locals, name)
        return found if found is not safe_access.MISSING else safe_access.entry(self._globals, name)

    def others(self) -> List[Tuple[str, Any]]:
        """Return the data among its variables: of a function in their order, of a module the newest first."""
        if type(self._locals) is dict and self._locals is self._globals:
            pairs: Iterator[Tuple[Any, Any]] = iter(reversed(list(safe_access.last_entries(self._locals, _MAX_NAMES))))
        else:
            pairs = safe_access.entries(self._locals, _MAX_NAMES)
        return [
            (name, value)
            for name, value in pairs
            if type(name) is str
            and not name.startswith(("_", "."))
            and name not in _IPYTHON
            and not value_facts.is_definition(value)
        ]


def chain(error: Any) -> List[Tuple[str, Any]]:
    """Return an exception and those that led to it, with how: its first part, its cause, or what was being handled."""
    found: List[Tuple[str, Any]] = []
    seen = set()
    relation = ""
    while error is not None and id(error) not in seen and len(found) < _MAX_ERRORS:
        seen.add(id(error))
        found.append((relation, error))
        parts = safe_access.sub_errors(error)
        cause = safe_access.linked(error, "__cause__")
        context = (
            None if safe_access.linked(error, "__suppress_context__") else safe_access.linked(error, "__context__")
        )
        if parts:
            error, relation = parts[0], "first"
        elif cause is not None:
            error, relation = cause, "cause"
        else:
            error, relation = context, "context"
    return found


def frames(error: Any) -> Tuple[List[Tuple[Any, int, bool]], int]:
    """Return the frames of an exception, the innermost first, and how many of the user's are left out.

    A frame is its entry in the traceback, its line, and whether it is of the user's code. Of a library it is the
    innermost one only. A frame that a recursion repeats stands once.
    """
    own: List[Tuple[Any, int, bool]] = []
    last = None
    traceback = safe_access.linked(error, "__traceback__")
    for _ in range(_MAX_STEPS):
        if traceback is None:
            break
        last = traceback
        if is_own(traceback.tb_frame):
            own.append((traceback, traceback.tb_lineno, True))
        traceback = traceback.tb_next
    own.reverse()
    shown: List[Tuple[Any, int, bool]] = []
    places = set()
    for one in own:
        place = one[0].tb_frame.f_code, one[1]
        if place not in places:
            places.add(place)
            shown.append(one)
    if last is not None and own and last is not own[0][0]:
        shown.insert(0, (last, last.tb_lineno, False))
    if len(shown) > _MAX_FRAMES:
        shown = [*shown[: _MAX_FRAMES - 1], shown[-1]]
    return shown, len(own) - sum(one[2] for one in shown)


def is_own(frame: Any) -> bool:
    """Whether a frame is of the user's code: the script, a notebook's cell, or a file that is no package's."""
    file = frame.f_code.co_filename
    if type(file) is not str:
        return False
    if safe_access.entry(frame.f_globals, "__name__") == "__main__" and not file.startswith("<frozen"):
        return True
    if file.startswith("<"):
        return file.startswith("<ipython-input")
    return not is_library(file)


def is_library(file: str) -> bool:
    """Whether a file is of a package, of Python or of the agent."""
    is_agent = "amltrain_" in os.path.basename(file)
    return is_agent or file.startswith((_LIBRARY, "<")) or any(part in file for part in _PACKAGES)


class _TooSlow(BaseException):
    """A library takes too long."""


class _Interrupt:
    """Ends the block when it takes too long, where Python can be interrupted."""

    def __enter__(self) -> None:
        self._is_set = False
        try:
            self._old: Any = signal.signal(signal.SIGALRM, self._end)
            self._is_set = True
            signal.setitimer(signal.ITIMER_REAL, _INTERRUPT_S)
        except (ValueError, AttributeError):  # not in the main thread; Windows
            pass

    def _end(self, number: int, frame: Any) -> None:
        raise _TooSlow

    def __exit__(self, *error: Any) -> None:
        if self._is_set:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN if self._old is None else self._old)
