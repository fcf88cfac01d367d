"""What the end of a log says about how the script ended: a traceback, a group of exceptions, a crash, a complaint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from jupyter_amltrain.agent.protocol import RESTART_PREFIX
from jupyter_amltrain.schema.run import Run

_FRAME = re.compile(r'^[\s|]*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
#: Python 3.13 can color its tracebacks; PyTorch writes the rank before each line.
_AROUND = re.compile(r"\x1b\[[0-9;]*m|^\[rank\d+\]: ?", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
#: Edge at the left of a group's lines, and the line above the first of its exceptions or another one.
_EDGE = re.compile(r"^ +(?:\| ?|\+ (?=Exception Group|$))")
_PART = re.compile(r"^ *\+[-+]*-+ (?P<number>\d+|\.\.\.) -+$")
_GROUP_END = re.compile(r"^ *\+-+$")
#: How Python's handler of fatal errors begins, and the stack of the thread that crashed: innermost frame first.
_FATAL = re.compile(r"^Fatal Python error: (?P<text>.*)$", re.MULTILINE)
_CRASHED_THREAD = re.compile(r"^Current thread \w+(?: \[.*?\])? \(most recent call first\):\n", re.MULTILINE)
#: How parsers of arguments begin what they complain about.
_COMPLAINT = re.compile(
    r"^[\w./-]+: (?:error: |No module named |Error while finding module )|^(?:Usage )?[Ee]rror: |^ERROR: "
    r"|^Could not override |^Error merging override "
)
#: Lines at the end of a log in which such a complaint stands.
_COMPLAINT_LINES = 12


class LoggedError(NamedTuple):
    """The last error of a log.

    Attributes
    ----------
    text
        ``ValueError: no``; of a group also its first exception.
    frames
        File and line of each frame, the innermost last.
    """

    text: str
    frames: tuple[tuple[str, int], ...]


def logged_error(log: str) -> LoggedError:
    """Return the last error of a log; without text or frames where there is none."""
    log = _AROUND.sub("", log)
    start = log.rfind(_TRACEBACK)
    if start < 0:
        at = log.rfind("  File ")  # a syntax error has no traceback
        return LoggedError("", _frames(log[at:].splitlines()) if at >= 0 else ())
    begun = log.rfind("\n", 0, start) + 1
    if _EDGE.match(log[begun:start]):
        return _group(log[_group_start(log, begun) :])
    lines = log[start:].splitlines()[1:]
    return LoggedError(_error_in(lines), _frames(lines))


def _group_start(log: str, at: int) -> int:
    """Return where the lines of the group begin that the line at `at` is part of."""
    while at > 0:
        before = log.rfind("\n", 0, at - 1) + 1
        line = log[before:at].rstrip("\n")
        if not (_EDGE.match(line) or _PART.match(line)):
            return at
        at = before
    return at


def _group(text: str) -> LoggedError:
    """Return the error of a group, with its first exception, and of a group in it with that one's."""
    texts: list[str] = []
    frames: list[tuple[str, int]] = []
    lines: list[str] = []
    for line in text.splitlines():
        part = _PART.match(line)
        if part or _GROUP_END.match(line) or not _EDGE.match(line):
            texts.append(_error_in(lines))
            frames += _frames(lines)
            lines = []
            if not part or part["number"] != "1":
                break
        else:
            lines.append(_EDGE.sub("", line))
    return LoggedError(", first ".join(filter(None, texts)), tuple(frames))


def _error_in(lines: Iterable[str]) -> str:
    found = (line for line in lines if line and not line[0].isspace() and _ERROR.match(line))
    return next((line.strip() for line in found if not line.startswith("Exception Group Traceback")), "")


def _frames(lines: Iterable[str]) -> tuple[tuple[str, int], ...]:
    found = (_FRAME.match(line) for line in lines)
    return tuple((match["file"], int(match["line"])) for match in found if match)


def last_error(log: str) -> str:
    """Return the last line of the last traceback in `log`, e.g. ``ValueError: no``."""
    return logged_error(log).text


def cell_line(run: Run, log: str) -> int | None:
    """Return the cell's line of the last traceback or crash in `log`; ``None`` without one.

    The innermost frame in the submitted script counts, because the user can change that line.
    """
    log = _AROUND.sub("", log)
    fatal = [match.end() for match in _FATAL.finditer(log)]
    thread = _CRASHED_THREAD.search(log, fatal[-1]) if fatal and log.rfind(_TRACEBACK) < fatal[-1] else None
    if thread is None:
        return _line_in_script(run, reversed(logged_error(log).frames))
    return _line_in_script(run, _frames(log[thread.end() :].partition("\n\n")[0].splitlines()))


def _line_in_script(run: Run, frames: Iterable[tuple[str, int]]) -> int | None:
    """Return the line of the first frame in the submitted script, as a line of the cell."""
    lines = (line for file, line in frames if is_script(file, run.spec.script_name))
    line = next(lines, None)
    return None if line is None else line - run.spec.line_offset


def is_script(file: str, name: str) -> bool:
    """Whether a frame's file is the submitted script: in ``source/``, or where a service put the code."""
    file = file.replace("\\", "/")
    if file.endswith(f"source/{name}") or file == name:
        return True
    return file.endswith(f"/{name}") and "/site-packages/" not in file and "/lib/python" not in file


def log_of_last_attempt(log: str) -> str:
    """Return the part of a log after the last line between two attempts."""
    return log[max(0, log.rfind(f"\n{RESTART_PREFIX}")) :]


def last_text(log: str) -> str:
    """Return the last line of a log's last attempt, without its colors; empty for an empty log."""
    lines = _AROUND.sub("", log_of_last_attempt(log)).splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def last_line(log: str) -> str:
    """Return the last error of a log's last attempt, else its last line; empty for an empty log."""
    return last_error(log_of_last_attempt(log)) or last_text(log)


def last_complaint(log: str) -> str:
    """Return the last line of a log if a parser of arguments complains there, e.g. ``train.py: error: no --x``.

    Typer draws a box around its complaint, and Hydra has more lines behind its own.
    """
    lines = [line.strip(" \t│╭╰─╯╮") for line in log.splitlines()[-_COMPLAINT_LINES:]]
    lines = [line for line in lines if line]
    found = [line for line in lines if _COMPLAINT.search(line)]
    if found and (found[-1] == lines[-1] or found[-1] == lines[0] or "override" in found[-1]):
        return found[-1]
    return lines[-1] if lines and any(line.startswith("Usage:") for line in lines) else ""
