"""Hook in a job's Python that answers questions: where its threads are, and what an expression is in there.

``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_asked.py``. Nothing of it runs, not even its
import, until the agent sends :data:`SIGNAL`. Then ``listen_hook.py`` calls :meth:`Answerer.answer`, in the
main thread between two bytecodes, as Python does with any handler of a signal: a native function goes on to its end,
a wait of Python (a lock, a socket, ``sleep``) is continued after it.

The folder belongs to the user of the run, so who can ask can also cancel.
"""

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

#: Signal of the agent: processes that do not handle it, such as other programs of the job, ignore it.
SIGNAL = "SIGURG"
#: End of the name of a question; its answers end with ``.<pid>.answer``.
QUESTION = ".question"
#: Threads, and frames of each, that an answer has; characters of a text.
_MAX_THREADS, _MAX_FRAMES, _MAX_TEXT = 200, 200, 20000
#: Bytes at the end of a journal of metrics that are read.
_METRIC_BYTES = 64 << 10


class TooLong(BaseException):
    """Stops what was asked after its time."""


class Answerer:
    """Answers for this process.

    Parameters
    ----------
    folder
        Folder of the questions.
    load
        Returns the names of a module beside this file.
    """

    def __init__(self, folder: str, load: "Callable[[str], Dict[str, Any]]") -> None:
        self._folder, self._load = folder, load
        self._own = os.path.dirname(__file__) + os.sep
        self._seen: Any = set()
        self._is_running = self._is_due = False
        self._frame: Any = None
        self._raised: Optional[BaseException] = None
        self._pretty: Any = None
        self._rank_of: Callable[[Mapping[str, str]], int] = load("amltrain_own_rank")["rank_of"]

    def answer(self, frame: "Optional[FrameType]") -> "Optional[BaseException]":
        """Answer the questions that are new; return what a handler of another signal has raised meanwhile.

        Parameters
        ----------
        frame
            Where the main thread is; this may be in the statement of a question.
        """
        if self._is_running:
            self._look_inside(frame)
            return None
        self._is_running, self._is_due, self._frame = True, True, frame
        try:
            while self._is_due and self._raised is None:
                self._is_due = False
                self._answer_new(("stack", "peek", "poke"))
            return self._raised
        finally:
            self._is_running, self._frame, self._raised = False, None, None

    def _look_inside(self, frame: "Optional[FrameType]") -> None:
        """Say where the threads are while a statement runs; all else waits for its end."""
        self._is_due = True
        outer, trace = self._frame, sys.gettrace()
        sys.settrace(None)
        self._frame = frame
        try:
            self._answer_new(("stack",))
        finally:
            self._frame = outer
            sys.settrace(trace)

    def _answer_new(self, kinds: "Tuple[str, ...]") -> None:
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(QUESTION) and name not in self._seen:
                try:
                    self._answer(name, kinds)
                except Exception as error:  # removed meanwhile, or a full disk: the question has no answer
                    if _is_of_signal(error):
                        self._raised = error
                        return

    def _answer(self, name: str, kinds: "Tuple[str, ...]") -> None:
        import json

        path, number = os.path.join(self._folder, name), name[: -len(QUESTION)]
        if os.stat(path).st_uid != os.geteuid():
            return
        with open(path, encoding="utf-8") as file:
            question = json.load(file)
        if question["kind"] not in kinds:
            return
        self._seen.add(name)
        if time.monotonic() > question["until"]:
            return
        if question["kind"] == "stack":
            self._write(number, {"threads": self._threads()})
        elif self._is_for(question):
            self._in_main_thread(number, question)

    def _is_for(self, question: "Dict[str, Any]") -> bool:
        """Whether this is the main process of the rank that is asked."""
        process = getattr(sys.modules.get("multiprocessing.process"), "_parent_process", None)
        path = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
        is_script = not question["script"] or os.path.basename(path) == question["script"]
        return process is None and is_script and self._rank_of(os.environ) == question["rank"]

    def _write(self, number: str, answer: "Dict[str, Any]") -> None:
        import json

        answer.update(pid=os.getpid(), rank=self._rank_of(os.environ), name=_name())
        path = os.path.join(self._folder, "%s.%d" % (number, os.getpid()))
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(path + ".part", path + ".answer")

    # ---- where the threads are

    def _threads(self) -> "List[Dict[str, Any]]":
        names = {ident: thread.name for ident, thread in getattr(sys.modules.get("threading"), "_active", {}).items()}
        main = _thread.get_ident()
        frames: Dict[int, Any] = {**sys._current_frames(), main: self._frame}
        found = []
        for ident in sorted(frames, key=lambda one: one != main)[:_MAX_THREADS]:
            calls = self._calls(frames[ident])
            if calls:
                found.append({"name": names.get(ident, ""), "main": ident == main, "calls": calls})
        frames.clear()
        return found

    def _calls(self, frame: "Optional[FrameType]") -> "List[Any]":
        """Return file, line and function of each frame, innermost first; without those of the agent."""
        calls: List[Any] = []
        while frame is not None and len(calls) < _MAX_FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith(self._own):
                calls.append((code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name)))
            frame = frame.f_back
        return calls

    # ---- in the main thread

    def _in_main_thread(self, number: str, question: "Dict[str, Any]") -> None:
        mode = "eval" if question["kind"] == "peek" else "exec"
        try:
            code = compile(question["text"], "<%s>" % question["kind"], mode)
            self._pretty = self._pretty or self._load("amltrain_pretty")["pretty"]
        except (ImportError, SyntaxError, ValueError) as error:
            return self._write(number, {"error": "%s: %s" % (type(error).__name__, error)})
        answer = self._run(code, question)
        if question["kind"] == "poke":
            keep(question["record"], question["rank"], question["text"], str(answer.get("error", "")))
        self._write(number, answer)

    def _run(self, code: "Any", question: "Dict[str, Any]") -> "Dict[str, Any]":
        end = time.monotonic() + question["limit"]
        places = self._places(self._frame)
        names = dict(sys.modules["__main__"].__dict__)
        for _, own in places:
            names.update(own)  # one dict: comprehensions and lambdas do not see locals
        before = dict(names)
        trace = sys.gettrace()

        def stop(frame: "FrameType", event: str, arg: "Any") -> "Any":
            if time.monotonic() > end:
                raise TooLong
            return stop

        sys.settrace(stop)
        try:
            if question["kind"] == "peek":
                return {"text": str(self._pretty(eval(code, names)))[:_MAX_TEXT]}
            exec(code, names)
            return {"text": ""}
        except TooLong:
            return {"error": "it took longer than %g s and was stopped" % question["limit"]}
        except BaseException as error:  # the text of a user may raise anything
            if _is_of_signal(error):  # the run's own
                self._raised = error
            return {"error": "%s: %s" % (type(error).__name__, _text(error))}
        finally:
            sys.settrace(trace)
            if question["kind"] == "poke":
                _assign(names, before, places)

    def _places(self, frame: "Optional[FrameType]") -> "List[Tuple[FrameType, Any]]":
        """Return the frames of the user's functions that run, outermost first, with their variables."""
        libraries = (self._own, os.path.dirname(os.__file__) + os.sep, "<")
        found: List[Tuple[FrameType, Any]] = []
        while frame is not None and len(found) < _MAX_FRAMES:
            path = frame.f_code.co_filename
            if not path.startswith(libraries) and "-packages" + os.sep not in path:
                names = frame.f_locals
                if names is not frame.f_globals:
                    found.append((frame, names))
            frame = frame.f_back
        return found[::-1]


def keep(record: "Mapping[str, str]", rank: int, text: str, error: str) -> None:
    """Keep a statement that was run: when, who, after which step, what, and its error; see ``pokes.py``."""
    import json

    row = {"time": time.time(), "who": record["who"], "rank": rank, "step": last_step(record["metrics"])}
    row.update(text=text, error=error)
    handle = os.open(record["pokes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, (json.dumps(row) + "\n").encode())  # at once: several processes may write
    finally:
        os.close(handle)


def last_step(path: str) -> "Optional[int]":
    """Return the step of the newest metric in a journal; ``None`` without one."""
    import json

    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _METRIC_BYTES))
            lines = file.read(_METRIC_BYTES).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"step"' not in line:
            continue
        try:
            body = json.loads(line.decode())["b"]
            return int(body.get("metrics", [body])[-1]["step"])
        except (ValueError, KeyError, TypeError, IndexError):  # torn, or of a job that writes there itself
            continue
    return None


def _assign(names: "Dict[str, Any]", before: "Dict[str, Any]", places: "List[Tuple[Any, Any]]") -> None:
    """Give the names that a statement has set to the innermost function that has them, else to the main module."""
    for name, value in names.items():
        if name == "__builtins__" or before.get(name, _MISSING) is value:
            continue
        frame, own = next((one for one in reversed(places) if name in one[1]), (None, sys.modules["__main__"].__dict__))
        own[name] = value
        if frame is not None and sys.version_info < (3, 13):  # from then on, this has set it
            import ctypes

            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


_MISSING = object()


def _is_of_signal(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it, such as that of a cancel."""
    if isinstance(error, KeyboardInterrupt):
        return True
    import signal

    handlers = [signal.getsignal(number) for number in range(1, signal.NSIG)]
    codes = {getattr(getattr(one, "__func__", one), "__code__", None) for one in handlers} - {None}
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in codes:
            return True
        step = step.tb_next
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except Exception:  # a `__str__` of the user
        return "(without text)"


def _name() -> str:
    """Return the name of this process among those of the job; empty for the first one."""
    worker = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
    if worker is not None:
        return "DataLoader worker %s" % worker.id
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    name = str(getattr(process, "_name", ""))
    return "" if name == "MainProcess" else name[:80]
