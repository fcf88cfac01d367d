"""Hook in a job's Python: ``breakpoint()`` and the exception that ends a script wait for a person.

``supervise/job_hooks.py`` puts this file into the Python of a job with ``--debug`` as ``amltrain_debugger.py``. The
debugger is Python's own (``pdb``). Its input and output are files of the run's folder, which ``debugger.py`` writes
and reads on behalf of who debugs:

* ``<pid>.stop``: this process is stopped, and what the debugger shows first;
* ``<pid>.command``: a line for the debugger;
* ``<pid>.taken``: that line, while the debugger runs it;
* ``<pid>.<number>.answer``: what the debugger has shown, and whether the process is stopped again. Where that cannot be
  written, it is the line that was taken, which has no state: a full disk still renames it. The process then goes on.

The folder belongs to the user of the run, so who can debug can also cancel.
"""

import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Callable, Dict, List, Optional

#: Folder of the files below that of the run, and ends of their names.
FOLDER, STOP, COMMAND, TAKEN, ANSWER = "debug", ".stop", ".command", ".taken", ".answer"
#: Variable with the seconds that a stopped process waits for somebody, and its default: it may hold GPUs.
WAIT_VARIABLE, WAIT_S = "AMLTRAIN_DEBUG_WAIT", 3600.0
#: Characters of an answer.
_MAX_TEXT = 100000
_LOOK_S = 0.02

_debugger: "Any" = None
_pdb: "Any" = None
_rank_of: "Any" = None


def start(folder: str, load: "Callable[[str], Dict[str, Any]]") -> None:
    """Make ``breakpoint()``, ``pdb.set_trace()`` and the end by an exception wait for a person.

    Parameters
    ----------
    folder
        Folder of the files.
    load
        Returns the names of a module beside this file.
    """
    import atexit
    import pdb

    global _pdb, _rank_of
    _pdb = pdb.Pdb  # a notebook's kernel puts its own in this place
    _rank_of = load("amltrain_own_rank")["rank_of"]
    os.makedirs(folder, mode=0o700, exist_ok=True)

    def stop(*args: "Any", **more: "Any") -> None:
        _of(folder).stop(sys._getframe(1))

    stop.look_back = lambda traceback: _of(folder).look_back(traceback)  # type: ignore[attr-defined]
    _install(stop)
    pid = os.getpid()
    atexit.register(lambda: _end(folder, pid))


def _install(stop: "Any") -> None:
    import pdb

    pdb.set_trace = stop
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = stop


def imported(interactiveshell: "Any") -> None:
    """Make a notebook that runs as a job wait in its cell: its kernel has debuggers of its own.

    After an exception, too: when the kernel ends, IPython has removed the variables.

    Parameters
    ----------
    interactiveshell
        The module of IPython.
    """
    import pdb

    stop: Any = pdb.set_trace
    if not hasattr(stop, "look_back"):  # a job without a debugger
        return
    shell = interactiveshell.InteractiveShell
    create, show = shell.__init__, shell.showtraceback

    def init(self: "Any", *args: "Any", **more: "Any") -> None:
        create(self, *args, **more)
        _install(stop)

    def showtraceback(self: "Any", *args: "Any", **more: "Any") -> None:
        show(self, *args, **more)
        traceback = getattr(sys, "last_traceback", None)
        if traceback is not None and not _is_quit(getattr(sys, "last_type", None)):
            stop.look_back(traceback)

    shell.__init__, shell.showtraceback = init, showtraceback


def _of(folder: str) -> "Any":
    """Return the one debugger of this process, which knows its breakpoints."""
    global _debugger
    if _debugger is None or _debugger.channel.pid != os.getpid():
        _debugger = _create(folder)
    return _debugger


def _end(folder: str, pid: int) -> None:
    """Debug the exception that ends the script, if any; then say that it has ended."""
    if pid != os.getpid():
        return
    try:
        traceback = getattr(sys, "last_traceback", None)
        if traceback is not None and not _is_quit(getattr(sys, "last_type", None)):
            _of(folder).look_back(traceback)
    except BaseException as error:  # bdb.BdbQuit, which is not imported for this
        if not _is_quit(type(error)):
            raise
    finally:
        if _debugger is not None:
            _debugger.channel.answer("ended")


def _is_quit(kind: "Any") -> bool:
    """Whether an exception of this type is the debugger's own, by which somebody ends the script."""
    return getattr(kind, "__name__", "") == "BdbQuit"


class Channel:
    """Input and output of the debugger: files that somebody else writes and reads.

    Parameters
    ----------
    folder
        Folder of the files.
    """

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self._folder, self._path = folder, os.path.join(folder, str(self.pid))
        self._texts: List[str] = []
        self._number: Optional[int] = None
        self.stopped: Dict[str, Any] = {}
        self.is_over = False

    # ---- as the output of the debugger

    def write(self, text: str) -> int:
        """Keep a text for the next answer."""
        self._texts.append(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: an answer is written as a whole."""

    # ---- as its input

    def readline(self) -> str:
        """Answer the last line with what was shown since, and wait for the next one."""
        is_alone = self._number is None
        if not self.is_over:
            self._write(STOP, {**self.stopped, "text": self._taken() if is_alone else ""})
        self.answer("going" if self.is_over else "stopped")
        if is_alone and not self.is_over:
            self._say("stopped at %s:%s" % (self.stopped["file"], self.stopped["line"]))
        try:
            limit = float(os.environ[WAIT_VARIABLE])
        except (KeyError, ValueError):
            limit = WAIT_S
        end = time.monotonic() + limit
        while not self.is_over:
            command = self._command()
            if command is not None:
                self._number = int(command["number"])
                return str(command["text"]) + "\n"
            if time.monotonic() > end:
                self._give_up("nobody has debugged it")
            elif not os.path.isdir(self._folder):
                self._give_up("the folder of its debugger is gone")
            else:
                time.sleep(_LOOK_S)
        return "continue\n"

    def _command(self) -> "Optional[Dict[str, Any]]":
        import json

        path = self._path + COMMAND
        try:
            if os.stat(path).st_uid != os.geteuid():
                return None
            with open(path, encoding="utf-8") as file:
                command = json.load(file)
            os.replace(path, self._path + TAKEN)
        except (OSError, ValueError):
            return None
        return dict(command)

    def answer(self, state: str) -> None:
        """Answer the line that was taken last, unless it was answered: ``stopped``, ``going`` or ``ended``."""
        number, self._number = self._number, None
        if number is None:
            return
        end, taken = ".%d%s" % (number, ANSWER), self._path + TAKEN
        try:
            if self._write(end, {"state": state, "text": self._taken()}):
                os.remove(taken)
            else:
                os.replace(taken, self._path + end)
        except OSError:  # a removed run
            pass

    def leave(self) -> None:
        """The process goes on."""
        try:
            os.remove(self._path + STOP)
        except OSError:
            pass

    def _taken(self) -> str:
        text = "".join(self._texts)
        del self._texts[:]
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "\n... shortened\n"

    def _write(self, end: str, content: "Dict[str, Any]") -> bool:
        import json

        part = self._path + ".part"
        try:
            with open(part, "w", encoding="utf-8", errors="replace") as file:
                json.dump(content, file)
            os.replace(part, self._path + end)
        except OSError as error:  # a full disk, or a removed run
            self._give_up("its debugger cannot write (%s)" % (error.strerror or error))
            return False
        return True

    def _give_up(self, reason: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._say("%s: it goes on" % reason)

    def _say(self, text: str) -> None:
        """Write one line into the log of the job."""
        run = os.path.basename(os.path.dirname(os.path.dirname(self._path)))
        try:
            os.write(2, ("amltrain: %s; to debug it: %%aml_runs debug %s\n" % (text, run)).encode("utf-8", "replace"))
        except OSError:
            pass


def _create(folder: str) -> "Any":
    class Debugger(_pdb):  # type: ignore[misc]
        """Python's debugger at a channel."""

        def __init__(self) -> None:
            self.channel: Any = Channel(folder)
            self.looked_at: Any = None
            ends: Dict[str, Any] = {"stdin": self.channel, "stdout": self.channel}  # only what pdb uses of files
            super().__init__(**ends, nosigint=True, readrc=False)
            self.use_rawinput = False
            self.prompt = ""

        def stop(self, frame: "FrameType") -> None:
            """Stop at the next line of a frame."""
            if not self.channel.is_over:
                self.set_trace(frame)

        def look_back(self, traceback: "TracebackType") -> None:
            """Look at the frames of an exception that has ended the script, once."""
            if not self.channel.is_over and traceback is not self.looked_at:
                self.looked_at = traceback
                self.reset()
                self.interaction(None, traceback)

        def interaction(self, frame: "Optional[FrameType]", *args: "Any") -> "Any":
            """See :meth:`pdb.Pdb.interaction`; says that the process is stopped, and that it goes on."""
            channel, traceback = self.channel, args[0] if args else None
            channel.stopped = _place(frame, traceback)
            try:
                return super().interaction(frame, *args)
            finally:
                channel.leave()
                # `continue` sets this. After another command the process soon stops again, and answers then.
                if frame is None or self.quitting:
                    channel.answer("ended")
                elif getattr(self, "stoplineno", 0) == -1:
                    channel.answer("going")

    return Debugger()


def _place(frame: "Optional[FrameType]", traceback: "Any") -> "Dict[str, Any]":
    """Return where a process is stopped, for a person."""
    raised = ""
    if isinstance(traceback, BaseException):
        traceback = traceback.__traceback__
    if frame is None:
        last = getattr(sys, "last_value", None)
        raised = type(last).__name__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        frame = traceback.tb_frame
    code = frame.f_code
    line = traceback.tb_lineno if traceback is not None else frame.f_lineno
    rank = _rank_of(os.environ)
    return {"pid": os.getpid(), "rank": rank, "file": code.co_filename, "line": line, "function": code.co_name,
            "raised": raised}  # fmt: skip
