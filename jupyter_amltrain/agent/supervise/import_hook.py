"""Hook in a job's Python that runs the others: at its start, or right after the script has imported a library.

This file is also written as ``sitecustomize.py`` into a folder of hooks, beside the files that it names, and runs at
the start of every Python of a job. It starts those that begin with Python, and imports nothing until the script itself
has imported one of the libraries. No error of a hook may reach the script.
"""

import os  # as site does
import sys

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Library -> module beside this file whose function ``imported`` gets the library; modules that a script can import;
#: variable -> module whose function ``start`` gets its value. ``job_hooks.py`` writes here those of ``hook_table.py``.
_ROWS: "Any" = ({}, (), {})
AFTER, IMPORTABLE, STARTED = _ROWS

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

                found = import_module("amltrain_mlflow").plugins()
            except Exception:  # the scan of the user's packages goes on
                pass
        return iter(found)  # Python 3.8 wants an iterator

    def _spec(self, name: str) -> "Any":
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


def _keep_failure(finder: _Finder) -> None:
    """Keep the values of the lines that raised, when an exception ends the script (``failures/failure_hook.py``)."""
    import atexit

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
    handle = os.environ.pop("AMLTRAIN_WAITING", "")
    if handle:
        _names_of(folder, "amltrain_warm")["wait"](int(handle))


def _start(folder: str, variable: str, module: str) -> None:
    """Start a hook, if the job has its variable."""
    value = os.environ.get(variable, "")
    if value not in ("", "0"):
        _names_of(folder, module)["start"](value, lambda name: _names_of(folder, name))


def _pass_breakpoint(*args: "Any", **more: "Any") -> None:
    """Pass a breakpoint of a job without ``--debug``: it has no keyboard, on which Python's own would fail."""
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
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _pass_breakpoint
    for _variable, _module in STARTED.items():
        try:
            _start(_folder, _variable, _module)
        except Exception:  # the job runs without what this hook adds
            pass
