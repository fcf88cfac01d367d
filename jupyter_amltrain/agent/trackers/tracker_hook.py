"""Hook in a job's Python that notes which files its trackers write, and lets MLflow log for libraries (``--autolog``).

``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`
when the script itself has imported one of the libraries. An audit hook of Python then sees each file that is opened:
its path, and that it is this job's. TensorFlow opens its files in C++; its process is noted, whose open files
``tracker_files.py`` looks at.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Variable with the file for the notes.
NOTES = "AMLTRAIN_TRACKERS"

#: Libraries whose files are followed; their import brings the audit hook.
TRACKERS = ("tensorboard", "tensorboardX", "tensorflow", "lightning", "pytorch_lightning", "transformers", "wandb")

#: Libraries for which MLflow logs.
LOGGED = ("sklearn", "xgboost", "lightgbm", "keras", "tensorflow", "lightning", "pytorch_lightning", "statsmodels",
          "transformers", "pyspark", "paddle")  # fmt: skip

_AUTOLOG = "AMLTRAIN_AUTOLOG"


def imported(library: Any) -> None:
    """Note the files of this process from now on; let MLflow log for the library."""
    import os
    import sys

    name = library.__name__
    notes = os.environ.get(NOTES, "")
    if notes and name in TRACKERS and __name__ not in sys.modules:
        sys.modules[__name__] = type(sys)(__name__)  # once in each process
        _watch(notes)
    if notes and name == "tensorflow":
        _write(notes, {"pid": os.getpid()})
    if name in LOGGED and os.environ.get(_AUTOLOG, "") not in ("", "0"):
        _autolog(name)


def _autolog(name: str) -> None:
    """Turn MLflow's logging on, once in a process, for this library and the others."""
    import sys

    marker = __name__ + ".autolog"
    others = (sys.modules.get(other) for other in (*LOGGED, "mlflow") if other != name)
    if marker in sys.modules or any(getattr(getattr(one, "__spec__", None), "_initializing", False) for one in others):
        return  # a library that imports this one is not ready for MLflow; its own import is followed by this, too
    sys.modules[marker] = sys
    try:
        import mlflow
    except ImportError:
        sys.stderr.write("amltrain: --autolog needs MLflow in the job's Python. Try: pip install mlflow\n")
        return
    mlflow.autolog()


def _watch(notes: str) -> None:
    import sys

    known = set()

    def see(event: str, args: Any) -> None:
        if event not in ("open", "os.mkdir"):
            return
        try:
            path = _tracked(event, args)
            if path and path not in known:
                known.add(path)
                _write(notes, {"path": path})
        except Exception:  # it would be the error of the program's own call
            pass

    sys.addaudithook(see)


def _tracked(event: str, args: Any) -> str:
    """Return the path if it is that of a tracker's file, opened to write, or of a folder of wandb."""
    import os

    path = os.fspath(args[0]) if not isinstance(args[0], int) else ""
    path = path.decode() if isinstance(path, bytes) else path
    folder, _, name = path.rpartition("/")
    if event == "open":
        is_one = name.startswith("events.out.tfevents") or name in ("metrics.csv", "trainer_state.json")
        is_one = is_one and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
    else:
        is_one = name.startswith("offline-run-") and os.path.basename(folder) in ("wandb", ".wandb")
    return os.path.abspath(path) if is_one else ""


def _write(notes: str, found: Any) -> None:
    """Write what was found, and how the program finds the tracker's package."""
    import json
    import os
    import sys

    line = json.dumps({**found, "python": sys.executable, "search": [one for one in sys.path[1:] if one]})
    handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (line + "\n").encode())
    finally:
        os.close(handle)
