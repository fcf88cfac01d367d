"""Hook in a job's Python that runs code of the agent right after the script has imported a library.

This file is also written as ``sitecustomize.py`` into a folder of hooks, beside the files of :data:`AFTER`, and runs at
the start of every Python of a job. It imports nothing until the script itself has imported one of these
libraries. No error of the hook may reach the script.
"""

import sys

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Trackers, whose files are followed, and libraries for which MLflow can log.
_TRACKERS = ("tensorboard", "tensorboardX", "tensorflow", "lightning", "pytorch_lightning", "transformers", "wandb",
             "sklearn", "xgboost", "lightgbm", "keras", "statsmodels", "pyspark", "paddle")  # fmt: skip
#: Library -> module beside this file whose function ``imported`` gets the library.
AFTER = {
    "torch": "amltrain_torch",
    "matplotlib": "amltrain_pictures",
    "tqdm.notebook": "amltrain_tqdm",
    "pandas": "amltrain_pandas",
    "rich.console": "amltrain_rich",
    "rich.live": "amltrain_rich",
    "multiprocessing.spawn": "amltrain_spawn",
    "mlflow.utils.model_utils": "amltrain_code_paths",
    "mlflow.tracking.client": "amltrain_nan",
    "IPython.core.display_functions": "amltrain_display",
    **dict.fromkeys(_TRACKERS, "amltrain_trackers"),
}
#: Modules beside this file that a script can import: the backend of Matplotlib, the files of values, what they share,
#: the text of the last line's value, what is secret, the values that are kept, the program that runs a notebook,
#: MLflow's plug-in, values that are displayed with their rich forms, and the values of lines that raise.
IMPORTABLE = ("amltrain_pictures", "amltrain_values", "amltrain_shared", "amltrain_pretty", "amltrain_secrets",
              "amltrain_kept", "amltrain_notebook", "amltrain_mlflow", "amltrain_display",
              "amltrain_forms", "amltrain_failure", "amltrain_failing_names", "amltrain_memory_lines",
              "amltrain_value_facts", "amltrain_array_facts", "amltrain_safe_access")  # fmt: skip

#: What loads this file: another sitecustomize may take its place among the modules.
_LOADER: "Any" = globals().get("__loader__")

#: Distribution of MLflow's plug-in; the name in its metadata.
DISTRIBUTION = "amltrain-follow"


class _Finder:
    """Sees which module is imported."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._waiting = dict(AFTER)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self._waiting and name not in IMPORTABLE:
            return None
        return self._spec(name) if name in IMPORTABLE else self._wrapped(name, path, target)

    def find_distributions(self, context: "Any" = None) -> "Any":
        """Offer MLflow's plug-in to ``importlib.metadata``, once the script imports MLflow."""
        found = ()
        # A library may list all distributions and then ask for each by its name, as sktime does.
        if "mlflow" in sys.modules and (getattr(context, "name", None) or DISTRIBUTION) == DISTRIBUTION:
            try:
                from importlib import import_module

                found = import_module(IMPORTABLE[7]).plugins()
            except Exception:  # the scan of the user's packages goes on
                pass
        return iter(found)  # Python 3.8 wants an iterator

    def _spec(self, name: str) -> "Any":
        import os
        from importlib.util import spec_from_file_location

        file = os.path.join(self._folder, "%s.py" % name)
        return spec_from_file_location(name, file) if os.path.exists(file) else None

    def _wrapped(self, name: str, path: "Any", target: "Any") -> "Any":
        """Return the spec of a library that runs its hook after it was imported."""
        hook = self._waiting.pop(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._wrap(spec, hook)
                return spec
        return None

    def _wrap(self, spec: "Any", hook: str) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: "Any") -> None:
            try:
                del loader.exec_module  # the loader's own again
            except AttributeError:  # the loader has slots, or another hook removed it
                pass
            execute(module)
            try:
                self._run(hook, module)
            except Exception:  # this hook must never fail the user's import
                pass

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader whose attributes cannot be set
            pass

    def _run(self, hook: str, module: "Any") -> None:
        from importlib.util import module_from_spec

        spec = self._spec(hook)
        if spec is not None and spec.loader is not None:
            loaded = module_from_spec(spec)
            spec.loader.exec_module(loaded)
            loaded.imported(module)


def _offer_stack(folder: str) -> None:
    """Let the agent ask this process for its stack (``distributed/stall.py``): the first Python of a rank only."""
    import os

    path = os.environ.pop("AMLTRAIN_STACK", "")
    if path:
        import _signal  # type: ignore[import-not-found]  # the module signal takes milliseconds
        import faulthandler

        with open("/proc/self/stat") as stat:
            started = stat.read().rpartition(")")[2].split()[19]
        # It stays open; the agent shortens it, so each write goes to its end.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _signal.signal(_signal.SIGRTMIN + 9, _signal.SIG_IGN)  # for the end of Python, which takes the handler away
        faulthandler.register(_signal.SIGRTMIN + 9, file=handle, all_threads=False)
        os.write(handle, ("%d %s %d\n" % (os.getpid(), started, handle)).encode())


def _keep_failure(finder: _Finder) -> None:
    """Keep the values of the lines that raised, when an exception ends the script (``failures/failure_hook.py``)."""
    import atexit
    import os

    pid = os.getpid()

    def write() -> None:
        error = getattr(sys, "last_exc", None)
        error = getattr(sys, "last_value", None) if error is None else error
        if error is None or os.getpid() != pid:
            return
        try:
            from importlib import import_module

            sys.meta_path.insert(0, finder)  # the script may have removed it
            import_module("amltrain_failure").write(error)
        except BaseException:  # the script ends as it would without this hook
            pass

    atexit.register(write)


def _wait(folder: str) -> None:
    """Become the process of a job, if this interpreter was started before there is one (``supervise/warm_hook.py``)."""
    import os

    handle = os.environ.pop("AMLTRAIN_WAITING", "")
    if handle:
        _names_of(folder, "amltrain_warm")["wait"](int(handle))


def _sample_lines(folder: str) -> None:
    """Begin to sample which lines the script spends its time in (``lines/lines_hook.py``)."""
    import os

    place = os.environ.get("AMLTRAIN_LINES", "")
    if place not in ("", "0"):
        _names_of(folder, "amltrain_lines")["start"](place, lambda name: _names_of(folder, name))


def _answer_questions(folder: str) -> None:
    """Let the agent ask this process, by a signal that is else ignored (``asking/asked_hook.py``)."""
    import _signal  # the module signal takes milliseconds
    import os

    place = os.environ.get("AMLTRAIN_ASKS", "")
    if place in ("", "0") or _signal.getsignal(_signal.SIGURG) != _signal.SIG_DFL:
        return
    answerers: Any = []

    def answer(number: int, frame: "Any") -> None:
        raised = None
        try:
            if not answerers:
                create = _names_of(folder, "amltrain_asked")["Answerer"]
                answerers.append(create(place, lambda name: _names_of(folder, name)))
            raised = answerers[0].answer(frame)
        except Exception:  # whoever asks gets no answer
            pass
        if raised is not None:
            raise raised

    _signal.signal(_signal.SIGURG, answer)


def _offer_debugger(folder: str) -> None:
    """Let ``breakpoint()`` and the end by an exception wait for a person (``debugging/debug_hook.py``).

    Without ``--debug`` a breakpoint is passed: the job has no keyboard, on which Python's own would fail.
    """
    import os

    place = os.environ.get("AMLTRAIN_DEBUG", "")
    if place not in ("", "0"):
        _names_of(folder, "amltrain_debugger")["start"](place)
    elif not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _pass_breakpoint


def _pass_breakpoint(*args: "Any", **more: "Any") -> None:
    frame = sys._getframe(1)
    place = "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
    sys.stderr.write("amltrain: passed the breakpoint at %s; --debug at the submit stops there\n" % place)


def _names_of(folder: str, name: str) -> "Any":
    """Run a file beside this one, with its byte code; no module of its name is there afterward."""
    path = "%s/%s.py" % (folder, name)
    loader: Any = type(_LOADER)  # that of source files, which keeps byte code
    names: Any = {"__name__": name, "__file__": path}
    exec(loader(name, path).get_code(name), names)
    return names


def _import_next(here: str) -> None:
    """Run the next sitecustomize on the path: Python imports only the first."""
    sys.path[:] = [folder for folder in sys.path if folder != here]
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(__name__, None) if find is not None else None
        if spec is not None and spec.loader is not None:
            from importlib.util import module_from_spec

            module = module_from_spec(spec)
            sys.modules[__name__] = module
            spec.loader.exec_module(module)
            return


if __name__ == "sitecustomize":
    _folder = __file__.rpartition("/")[0]
    try:
        _finder = _Finder(_folder)
        sys.meta_path.insert(0, _finder)
        _keep_failure(_finder)
    except Exception:  # the user's interpreter must start without this hook too
        pass
    _import_next(_folder)
    _wait(_folder)
    for _begin in (_offer_stack, _answer_questions, _offer_debugger, _sample_lines):
        try:
            _begin(_folder)
        except Exception:
            pass
