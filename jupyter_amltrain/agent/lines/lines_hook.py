"""Hook in a job's Python: a thread that samples how long each line takes, through the life of the process.

``supervise/job_hooks.py`` puts the files of this folder into a job's Python, and ``supervise/import_hook.py`` calls
:func:`start` at the end of the start of each Python of the job. Nothing that goes wrong here may reach the script: then
the lines are missing. The thread loads the other files after some milliseconds, so that the script starts no later.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

#: Seconds until the thread begins: a script that ends before has nothing to tell.
_FIRST_S = 0.05

_lines: "Any" = None


def start(folder: str, load: "Callable[[str], Dict[str, Any]]") -> None:
    """Begin to sample, if this is the main interpreter of a process.

    Parameters
    ----------
    folder
        Folder for the file of this process.
    load
        Returns the names of a module beside this file.
    """
    global _lines
    if not _is_main_interpreter():  # whose start runs this too, and which must have no thread at its end
        return
    import atexit

    _lines = lines = _Lines(folder, load)
    atexit.register(lines.close)
    os.register_at_fork(before=lines.before_fork, after_in_parent=lines.after_fork, after_in_child=lines.in_child)
    lines.begin()


def _is_main_interpreter() -> bool:
    if tuple(sys.version_info) >= (3, 12):
        return bool(_thread._is_main_interpreter())  # type: ignore[attr-defined]
    import _signal  # type: ignore[import-not-found]

    try:
        _signal.signal(_signal.SIGUSR2, _signal.getsignal(_signal.SIGUSR2))
    except ValueError:  # only the main interpreter may set handlers
        return False
    return True


class _Lines:
    """The thread that samples this process: it starts, ends before a fork, and goes on after it."""

    def __init__(self, folder: str, load: "Callable[[str], Dict[str, Any]]") -> None:
        self._folder, self._load = folder, load
        self._is_off = False
        self._reset()

    def _reset(self) -> None:
        self._pid, self._main = os.getpid(), _thread.get_ident()
        self._stop: Any = None
        self._done: Any = None
        self._sampler: Any = None

    def begin(self) -> None:
        """Start the thread, unless it runs."""
        if self._stop is not None or self._is_off:
            return
        stop, done = _thread.allocate_lock(), _thread.allocate_lock()
        stop.acquire()
        done.acquire()
        self._stop, self._done = stop, done
        try:
            _thread.start_new_thread(self._run, (stop, done))
        except Exception:  # no further thread
            self._stop = None
            self._is_off = True

    def _end(self, timeout: float) -> bool:
        """End the thread; return whether it has ended."""
        stop, done, self._stop = self._stop, self._done, None
        if stop is None:
            return True
        stop.release()
        return bool(done.acquire(True, timeout))

    def _run(self, stop: "Any", done: "Any") -> None:
        try:
            if self._sampler is None:
                if stop.acquire(True, _FIRST_S):
                    return
                self._sampler = self._load("amltrain_line_sampler")["LineSampler"](self._folder, self._load, self._main)
            self._is_off = not self._sampler.run(stop)
        except Exception:
            self._is_off = True
        finally:
            done.release()

    def close(self) -> None:
        """Write the last window, at the end of Python."""
        try:
            if self._pid == os.getpid() and self._end(0.5) and not self._is_off:
                self._is_off = True
                if self._sampler is not None:
                    self._sampler.flush()
        except Exception:
            pass

    def before_fork(self) -> None:
        """End the thread where Python warns of a fork of several threads."""
        try:
            if tuple(sys.version_info) < (3, 12) or self._stop is None:
                return
            count = _thread_count()
            self._end(0.1)
            limit = time.monotonic() + 0.02
            while _thread_count() >= count and time.monotonic() < limit:
                time.sleep(0)
        except Exception:
            pass

    def after_fork(self) -> None:
        """Start the thread again. Python 3.13 and newer warn after this: there once the fork has returned."""
        try:
            if tuple(sys.version_info) < (3, 13):
                self.begin()
            elif self._stop is None and not self._is_off and sys.getprofile() is None:
                sys.setprofile(self._begin_later)
        except Exception:
            pass

    def _begin_later(self, frame: "Any", event: str, arg: "Any") -> None:
        """Profile function that sees the first call or return outside of this file."""
        if frame.f_code.co_filename != __file__:
            sys.setprofile(None)
            self.begin()

    def in_child(self) -> None:
        """Sample a forked process, too, into a file of its own."""
        try:
            self._is_off = self._is_off or not os.path.isdir(os.path.dirname(self._folder))
            self._reset()
            self.begin()
        except Exception:
            pass


def _thread_count() -> int:
    try:
        return os.stat("/proc/self/task").st_nlink
    except OSError:
        return 0
