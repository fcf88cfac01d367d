"""``display``, ``update_display`` and ``clear_output`` of a job that has no kernel.

A value with rich forms gets a file in the run folder and prints its text, which invisible marks enclose in the log.
So the log alone has the order of text and displays, over any transport, and a reader that does not know the marks
sees the text. ``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_display.py``, where
``supervise/import_hook.py`` runs :func:`imported` when the script itself has imported IPython's functions.
No error of a display may end the script.
"""

from __future__ import annotations

import os
import sys
import threading
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

#: Variable with the folder for the displays; if unset or 0, values are shown as text only.
FOLDER = "AMLTRAIN_DISPLAYS"
#: Module name of this file in the job; see ``import_hook.IMPORTABLE``.
MODULE = "amltrain_display"
#: A mark in the log: a private string of terminals, which they do not show.
MARK = "\x1b_amltrain:%s\x1b\\"
#: Limits of the folder; older displays make room for newer ones.
MAX_FILES, MAX_BYTES = 200, 64 << 20
#: Characters of a text in a file; the log has all of it.
MAX_TEXT_CHARS = 64 << 10
#: Seconds between two updates of one display.
UPDATE_INTERVAL_S = 0.25
#: Maximum lines about displays that were left out, in the job's log.
MAX_REPORTS = 5


def display(
    *values: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: Any = None,
    transient: Any = None,
    display_id: Any = None,
    raw: bool = False,
    clear: bool = False,
    **options: Any,
) -> Any:
    """Do IPython's ``display``."""
    if clear:
        clear_output(wait=True)
    update = bool(options.get("update"))
    if display_id is None and isinstance(transient, dict):
        display_id = transient.get("display_id")
    if display_id is True:
        display_id = _new_id()
    for value in values:
        _outputs.show(value, raw, metadata, None if display_id is None else str(display_id), update)
    return None if display_id is None or update else _handle(str(display_id))


def update_display(value: Any, *, display_id: Any, **options: Any) -> None:
    """Do IPython's ``update_display``."""
    display(value, display_id=display_id, **{**options, "update": True})


def publish_display_data(
    data: Any, metadata: Any = None, *args: Any, transient: Any = None, update: bool = False, **options: Any
) -> None:
    """Do IPython's ``publish_display_data``."""
    display(data, metadata=metadata, transient=transient, raw=True, update=update)


def clear_output(wait: bool = False) -> None:
    """Do IPython's ``clear_output``: what was shown before is not shown below the cell; the log keeps it."""
    _outputs.clear(bool(wait))


def show(value: Any) -> None:
    """Show the value of the last line of a cell."""
    _outputs.show(value, False, None, None, False)


def show_picture(path: str, data: bytes, title: str) -> None:
    """Show a PNG file of the run between the lines of the log, without a text; a file that was shown is updated."""
    _outputs.show_picture(path, data, title)


def imported(module: Any) -> None:
    """Let IPython's functions show values by this module while there is no shell."""
    own = __import__(MODULE)  # this file is loaded here once more
    for name in ("display", "update_display", "clear_output", "publish_display_data"):
        original = module.__dict__.get(name)
        if original is not None and getattr(original, "__module__", "") == module.__name__:
            setattr(module, name, own.wrapped(original, getattr(own, name)))


def wrapped(original: Any, own: Any) -> Any:
    """Return a function that calls IPython's where there is a shell."""
    import functools

    @functools.wraps(original)
    def function(*args: Any, **options: Any) -> Any:
        shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
        if shell is not None and shell.initialized():
            return original(*args, **options)
        return own(*args, **options)

    return function


def _new_id() -> str:
    return "%016x" % int.from_bytes(os.urandom(8), "big")


def _handle(display_id: str) -> Any:
    """Return IPython's handle of a display, or one that works like it."""
    handle = getattr(sys.modules.get("IPython.core.display_functions"), "DisplayHandle", DisplayHandle)
    return handle(display_id)


class DisplayHandle:
    """Handle of a display where IPython is not imported."""

    def __init__(self, display_id: Optional[str] = None) -> None:
        self.display_id = display_id or _new_id()

    def __repr__(self) -> str:
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, value: Any, **options: Any) -> None:
        display(value, display_id=self.display_id, **options)

    def update(self, value: Any, **options: Any) -> None:
        update_display(value, display_id=self.display_id, **options)


class _Display:
    """One display: its file's number and version, and what waits to be written."""

    def __init__(self, number: int, picture: Any) -> None:
        self.number, self.version = number, 0
        self.picture = picture  # path and title of the file that it shows
        self.text = self.printed = ""  # of the newest version, and in the log
        self.due = 0.0
        self.pending: Any = None
        self.timer: Any = None


class _Outputs:
    """What the script has displayed: files in the folder, marks in the log."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._files: Dict[int, int] = {}  # bytes by number, of the files of this process, oldest first
        self._by_id: Dict[str, List[_Display]] = {}
        self._last = 0
        self._clears_next = False
        self._reported: Set[str] = set()
        self._closes = False

    def show(self, value: Any, raw: bool, metadata: Any, display_id: Optional[str], update: bool) -> None:
        """Show a value, or let it replace what its display shows."""
        if update and display_id not in self._by_id:
            if not _folder():
                self._print(_text_of(value, raw))
            return
        if not raw and self._shows_itself(value):
            return
        try:
            data, sizes = self._forms(value, raw, metadata)
        except Exception as error:  # an error of a display must not end a training
            self.report("a %s is shown as text (%s: %s)" % (type(value).__name__, type(error).__name__, error))
            data, sizes = {}, {}
        text = _text_of(value, raw)
        if not (_folder() and _is_log(sys.stdout)) or not (data or display_id):
            return self._print(text)
        with self._lock:
            if update:
                for one in self._by_id.get(display_id or "", ()):
                    self._update(one, data, sizes, text)
            else:
                self._add(data, sizes, text, display_id)

    def show_picture(self, path: str, data: bytes, title: str) -> None:
        """Show a PNG file of the run."""
        import base64

        if not (_folder() and _is_log(sys.stdout)):
            return
        form = {"image/png": base64.b64encode(data).decode("ascii")}
        with self._lock:
            known = self._by_id.get(path)
            if known:
                known[0].picture = path, title
                self._update(known[0], form, {}, "")
            else:
                self._add(form, {}, "", path, (path, title))

    def clear(self, wait: bool) -> None:
        """Forget what was shown so far, or do it when something else is shown."""
        if not (_folder() and _is_log(sys.stdout)):
            return
        with self._lock:
            self._clears_next = wait
            if not wait:
                self._forget()
            sys.stdout.write(MARK % ("clear-next" if wait else "clear"))
            sys.stdout.flush()

    def report(self, text: str) -> None:
        """Write one line about a display that is incomplete, once."""
        text = " ".join(text.split())[:300]
        if text not in self._reported and len(self._reported) < MAX_REPORTS:
            self._reported.add(text)
            sys.stderr.write("amltrain: %s.\n" % text)

    def _shows_itself(self, value: Any) -> bool:
        """Whether the value has a method that shows it, and has called it."""
        forms = _forms()
        method = forms.method_of(value, "_ipython_display_") if forms else None
        if method is None or (type(value).__module__ or "").partition(".")[0] == "plotly":  # opens a browser
            return False
        try:
            method()
        except Exception as error:  # code of the value's class
            self.report("_ipython_display_ of a %s has failed (%s: %s)" % (
                type(value).__name__, type(error).__name__, error))  # fmt: skip
            return False
        return True

    def _forms(self, value: Any, raw: bool, metadata: Any) -> Tuple[Any, Any]:
        forms = _forms()
        if forms is None or (not raw and type(value).__module__ == "builtins"):
            return {}, {}
        data, sizes = forms.checked(value, metadata, self.report) if raw else forms.bundle_of(value, self.report)
        if not raw and isinstance(metadata, dict):
            sizes = {**forms.checked(data, metadata, self.report)[1], **sizes}
        return data, sizes

    # ---- files

    def _add(self, data: Any, sizes: Any, text: str, display_id: Optional[str], picture: Any = ()) -> None:
        if self._clears_next:
            self._clears_next = False
            self._forget()
        content = _content(0, data, sizes, text, picture)
        try:
            one = _Display(self._new_number(len(content)), picture)
            self._write(one.number, content)
        except OSError as error:  # a full disk: the text is shown
            self.report("a display was not saved (%s)" % (error.strerror or error))
            return None if picture else self._print(text)
        one.text = one.printed = text
        one.due = time.monotonic() + UPDATE_INTERVAL_S
        if display_id is not None:
            self._by_id.setdefault(display_id, []).append(one)
        self._print(text, "display;%d;0" % one.number)

    def _update(self, one: _Display, data: Any, sizes: Any, text: str) -> None:
        one.pending = data, sizes, text
        left = one.due - time.monotonic()
        if left <= 0:
            return self._flush(one)
        if not self._closes:
            import atexit

            self._closes = True
            atexit.register(self._close, os.getpid())
        if one.timer is None:  # the last update is shown, although the script may now compute for hours
            one.timer = threading.Timer(left, self._flush, (one, False))
            one.timer.daemon = True
            one.timer.start()

    def _flush(self, one: _Display, with_text: bool = True) -> None:
        """Write the newest version of a display; without its text while another thread may be within a line."""
        with self._lock:
            if one.timer is not None:
                one.timer.cancel()
            pending, one.pending, one.timer = one.pending, None, None
            if pending is None or one.number not in self._files:
                return
            data, sizes, text = pending
            one.version += 1
            one.due = time.monotonic() + UPDATE_INTERVAL_S
            try:
                self._write(one.number, _content(one.version, data, sizes, text, one.picture))
            except OSError as error:
                return self.report("a display was not updated (%s)" % (error.strerror or error))
            one.text = text
            self._print_version(one, with_text)

    def _print_version(self, one: _Display, with_text: bool) -> None:
        is_new = with_text and one.text != one.printed
        self._print(one.text if is_new else "", "update;%d;%d" % (one.number, one.version))
        if is_new:
            one.printed = one.text

    def _close(self, pid: int) -> None:
        if os.getpid() == pid:  # not of a process that was forked from this one
            for one in [one for some in self._by_id.values() for one in some]:
                self._flush(one)
                if one.text != one.printed:
                    self._print_version(one, True)

    def _new_number(self, size: int) -> int:
        """Return the number of a new file, after making room for it."""
        folder = _folder()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        while self._files and (len(self._files) >= MAX_FILES or sum(self._files.values()) + size > MAX_BYTES):
            self._remove(next(iter(self._files)))
        if not self._last:  # of an earlier attempt, or of another process
            numbers = [int(name[:-5]) for name in os.listdir(folder) if name[:-5].isdigit() and name.endswith(".json")]
            self._last = max(numbers, default=0)
        while True:
            self._last += 1
            try:
                os.close(os.open(_path(self._last), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                return self._last
            except FileExistsError:
                continue

    def _write(self, number: int, content: bytes) -> None:
        path = _path(number)
        part = "%s.%d.part" % (path, os.getpid())
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, path)
        self._files[number] = len(content)

    def _remove(self, number: int) -> None:
        self._files.pop(number, None)
        _remove_file(_path(number))

    def _forget(self) -> None:
        for number in list(self._files):
            self._remove(number)
        for one in [one for some in self._by_id.values() for one in some if one.picture]:
            _remove_file(one.picture[0])
        self._by_id.clear()

    # ---- log

    def _print(self, text: str, mark: str = "") -> None:
        """Print a text, between marks in one write: other lines of the log must not get between them."""
        stream = sys.stdout
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        if not mark:
            print(text)
            return
        try:
            # The last mark is before the end of the line: readers look for words at the begin of the next one.
            stream.write("%s%s%s%s" % (MARK % mark, text, MARK % "end", "\n" if text else ""))
            stream.flush()
        except (OSError, ValueError):  # closed
            pass


def _content(version: int, data: Any, sizes: Any, text: str, picture: Any) -> bytes:
    import json

    forms = {**data, "text/plain": text[:MAX_TEXT_CHARS]}
    whole: Dict[str, Any] = {"version": version, "data": forms, "metadata": sizes}
    if picture:
        whole.update(picture=os.path.basename(picture[0]), title=picture[1])
    return json.dumps(whole).encode("utf-8", "replace")


def _folder() -> str:
    folder = os.environ.get(FOLDER) or ""
    return "" if folder == "0" else folder


def _remove_file(path: str) -> None:
    try:
        os.remove(path)
    except OSError:  # the job itself may have removed it
        pass


def _path(number: int) -> str:
    return os.path.join(_folder(), "%d.json" % number)


def _is_log(stream: Any) -> bool:
    """Whether a stream writes into the log; the script may have redirected it into a text."""
    try:
        return bool(stream.fileno() == 1)
    except Exception:  # not a file
        return False


def _forms() -> Any:
    try:
        return __import__("amltrain_forms")
    except ImportError:
        return None


def _text_of(value: Any, raw: bool) -> str:
    """Return the text of a value."""
    try:
        if raw:
            text = value.get("text/plain") if isinstance(value, dict) else None
            return text if isinstance(text, str) else "<%s>" % ", ".join(map(str, value))
        return str(__import__("amltrain_pretty").pretty(value))
    except Exception as error:  # a `repr` of the user's that raises
        try:
            return repr(value)
        except Exception:  # it raises, too
            return "<%s without text: %s>" % (type(value).__name__, type(error).__name__)


_outputs = _Outputs()
