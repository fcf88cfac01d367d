"""Hook in a job's Python that answers questions: where its threads are, and what an expression is in there.

``supervise/job_hooks.py`` puts this file into a job's Python as ``amltrain_asked.py``. The thread that samples lines
(``lines/lines_hook.py``) looks at the folder of questions and calls :meth:`Asked.look`. It answers itself where the
threads are. An expression or a statement runs in the main thread between two bytecodes, by ``Py_AddPendingCall``, which
interrupts neither a system call nor a native function; when its time is over before that, it does not run at all.

The folder belongs to the user of the run, so who can ask can also cancel.
"""

import os
import sys
import time

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Dict, List, Optional

#: End of the name of a question; its answers end with ``.<pid>.answer``.
QUESTION = ".question"
#: Threads, and frames of each, that an answer has; characters of a text.
_MAX_THREADS, _MAX_FRAMES, _MAX_TEXT = 200, 200, 20000
#: Calls that wait for the main thread: the interpreter has only their addresses.
_waiting: "List[Any]" = []


class TooLong(BaseException):
    """Stops what was asked after its time."""


class Asked:
    """Answers for this process.

    Parameters
    ----------
    folder
        Folder of the questions.
    main
        Ident of the main thread.
    load
        Returns the names of a module beside this file.
    """

    def __init__(self, folder: str, main: int, load: "Callable[[str], Dict[str, Any]]") -> None:
        self._folder, self._main, self._load = folder, main, load
        self._own = os.path.dirname(__file__) + os.sep
        self._seen: Any = set()

    def look(self) -> None:
        """Answer the questions that are new."""
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(QUESTION) and name not in self._seen:
                self._seen.add(name)
                self._answer(name[: -len(QUESTION)])

    def _answer(self, number: str) -> None:
        import json

        path = os.path.join(self._folder, number + QUESTION)
        if os.stat(path).st_uid != os.geteuid():
            return
        with open(path, encoding="utf-8") as file:
            question = json.load(file)
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
        return process is None and is_script and _rank() == question["rank"]

    def _write(self, number: str, answer: "Dict[str, Any]") -> None:
        import json

        answer.update(pid=os.getpid(), rank=_rank(), name=_name())
        path = os.path.join(self._folder, "%s.%d" % (number, os.getpid()))
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(path + ".part", path + ".answer")

    # ---- where the threads are

    def _threads(self) -> "List[Dict[str, Any]]":
        names = {ident: thread.name for ident, thread in getattr(sys.modules.get("threading"), "_active", {}).items()}
        found = []
        frames = sys._current_frames()
        for ident in sorted(frames, key=lambda one: one != self._main)[:_MAX_THREADS]:
            calls = self._calls(frames[ident])
            if calls:
                found.append({"name": names.get(ident, ""), "main": ident == self._main, "calls": calls})
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
        try:
            import ctypes
        except ImportError:
            return self._write(number, {"error": "its Python has no module ctypes"})
        mode = "eval" if question["kind"] == "peek" else "exec"
        try:
            code = compile(question["text"], "<%s>" % question["kind"], mode)
        except (SyntaxError, ValueError) as error:
            return self._write(number, {"error": "%s: %s" % (type(error).__name__, error)})

        def call(_: "Any") -> int:
            """Run it, once; called by the interpreter in its main thread."""
            try:
                if time.monotonic() <= question["until"]:
                    self._write(number, self._run(code, question))
            except Exception:  # a full disk: the question has no answer
                pass
            finally:
                _waiting[:] = [one for one in _waiting if one is not pending]
            return 0

        pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
        _waiting.append(pending)
        if ctypes.pythonapi.Py_AddPendingCall(pending, None):
            self._write(number, {"error": "its interpreter has too many calls that wait"})

    def _run(self, code: "Any", question: "Dict[str, Any]") -> "Dict[str, Any]":
        end = time.monotonic() + question["limit"]
        place = self._place(sys._getframe(1))
        own = place.f_locals if place is not None else {}
        main = sys.modules["__main__"].__dict__
        names = {**main, **own}  # one dict: comprehensions and lambdas do not see locals
        before = dict(names)
        trace = sys.gettrace()

        def stop(frame: "FrameType", event: str, arg: "Any") -> "Any":
            if time.monotonic() > end:
                raise TooLong
            return stop

        sys.settrace(stop)
        try:
            if question["kind"] == "peek":
                return {"text": str(self._load("amltrain_pretty")["pretty"](eval(code, names)))[:_MAX_TEXT]}
            exec(code, names)
            return {"text": ""}
        except TooLong:
            return {"error": "it took longer than %g s and was stopped" % question["limit"]}
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):  # somebody cancels the run: not an error of what was asked
                import _thread

                _thread.interrupt_main()
            return {"error": "%s: %s" % (type(error).__name__, _text(error))}
        finally:
            sys.settrace(trace)
            if question["kind"] == "poke":
                _assign(names, before, place, own, main)

    def _place(self, frame: "Optional[FrameType]") -> "Optional[FrameType]":
        """Return the innermost frame of the user's own code, whose names are known, too; ``None`` for a module's."""
        libraries = (self._own, os.path.dirname(os.__file__) + os.sep, "<")
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith(libraries) and "-packages" + os.sep not in path and path != __file__:
                return None if frame.f_locals is frame.f_globals else frame
            frame = frame.f_back
        return None


def _assign(names: "Dict[str, Any]", before: "Dict[str, Any]", place: "Any", own: "Any", main: "Any") -> None:
    """Give the names that a statement has set to the function that runs, if it has them, else to the main module."""
    changed = {name: value for name, value in names.items() if before.get(name, _MISSING) is not value}
    changed.pop("__builtins__", None)
    local = {name: value for name, value in changed.items() if place is not None and name in own}
    main.update((name, value) for name, value in changed.items() if name not in local)
    if local:
        own.update(local)
        if sys.version_info < (3, 13):  # from then on, the names of a frame are those of its function
            import ctypes

            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(place), ctypes.c_int(0))


_MISSING = object()


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except Exception:
        return "(without text)"


def _rank() -> int:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "AMLTRAIN_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _name() -> str:
    """Return the name of this process among those of the job; empty for the first one."""
    worker = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
    if worker is not None:
        return "DataLoader worker %s" % worker.id
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    name = str(getattr(process, "_name", ""))
    return "" if name == "MainProcess" else name[:80]
