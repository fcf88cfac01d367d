"""Values of the notebook that a job takes with it: ``--in NAME``. Blocks on the disk; any thread."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent import shared_objects, values
from jupyter_amltrain.agent.secret_values import looks_secret
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs import value_graph
from jupyter_amltrain.jobs.content_names import MIN_BYTES
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.state_dir import default_path
from jupyter_amltrain.text import bytes_text

#: Largest value (bytes in memory, where the value says it, and of its files).
LIMIT_BYTES = 4 << 30
#: Days after their last use in which files of values are kept for further submits.
KEEP_DAYS = 30


def store() -> Path:
    """Return the folder with the files of values, named by their content; equal values are one file."""
    return default_path() / "values"


def pack(
    names: Sequence[str], namespace: Mapping[str, Any], *, allow_pickle: bool = False, known: Collection[str] = ()
) -> dict[str, Any]:
    """Write variables of the notebook to the store; return their nodes (:mod:`jupyter_amltrain.agent.values`) by name.

    Parameters
    ----------
    known
        Names of the notebook's functions and classes whose source travels with the job (``--with``).

    Raises
    ------
    SubmitError
        A name does not exist, or its value has no form; says what would work.
    """
    sent = checked(names, namespace)
    try:
        nodes = write_all(sent, allow_pickle=allow_pickle, known=known)
    except CannotSend as error:
        cause = error.__cause__
        if isinstance(cause, OSError):
            advice, code = "Free some space, or set AMLTRAIN_HOME.", "values.disk"
        else:
            advice, code = getattr(cause, "advice", ""), "values.form"
        raise _error(error.name, f"{error}.", advice, code) from cause
    for name, node in nodes.items():
        if (total := bytes_of(node)) > LIMIT_BYTES:
            raise _too_large(name, total)
    return nodes


def checked(names: Sequence[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of ``--in`` by name; raises the errors of :func:`pack` that need no writing."""
    for name in names:
        if name not in namespace:
            raise _error(name, "the notebook has no such variable.", _near(name, namespace), "values.unknown")
        value = namespace[name]
        if (size := values.memory_of(value)) > LIMIT_BYTES:
            raise _too_large(name, size)
        if isinstance(value, str) and looks_secret(name, value):
            raise _error(
                name,
                "looks like a secret; its value would be stored with the run.",
                f"Write --secret {name}, and in the code: os.environ[{name!r}]",
                "spec.secret",
            )
    return {name: namespace[name] for name in names}


class CannotSend(Exception):
    """A value that cannot be written; the cause is the error of its library or of the disk.

    Attributes
    ----------
    name
        Its name.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class Interrupted(CannotSend):
    """The user does not wait for a value any longer."""


def write_all(
    sent: Mapping[str, Any],
    *,
    allow_pickle: bool = False,
    known: Collection[str] = (),
    exact: bool = False,
    is_local: bool = False,
) -> dict[str, Any]:
    """Write values to the store, those that share objects together; return their nodes by name.

    Parameters
    ----------
    exact
        Whether a value without an exact form is pickled.
    is_local
        Whether only this interpreter reads them: then large arrays are buffers, which are written the fastest.

    Raises
    ------
    CannotSend
        A value cannot be written.
    """
    folder = store()
    nodes: dict[str, Any] = {}
    together = {name: group for group in shared_objects.groups(sent) for name in group}
    for name, value in sent.items():
        if name in nodes:
            continue
        try:
            if name in together:
                nodes.update(value_graph.write(together[name], folder, known))
            elif exact:
                nodes[name] = _exact(name, value, folder, known, is_local)
            else:
                nodes[name] = values.write(value, str(folder), allow_pickle or values.is_data(value), known)
        except values.CannotWrite as error:
            raise CannotSend(name, str(error)) from error
        except OSError as error:
            raise CannotSend(name, f"cannot be saved in {folder}: {error.strerror or error}") from error
        except KeyboardInterrupt:  # its own code may wait for ever
            raise Interrupted(name, "was not pickled: interrupted") from None
    _touch(folder, nodes)
    return {name: nodes[name] for name in sent}


def _exact(name: str, value: Any, folder: Path, known: Collection[str], is_local: bool) -> Any:
    if not (is_local and values.memory_of(value) >= MIN_BYTES):
        with contextlib.suppress(values.CannotWrite):
            return values.write(value, str(folder), exact=True)
    return value_graph.write({name: value}, folder, known)[name]


def bytes_of(node: Any) -> int:
    """Return the size of a value's files."""
    return sum(int(file["bytes"]) for file in values.files_of(node))


def _too_large(name: str, size: int) -> SubmitError:
    return _error(
        name,
        f"has {bytes_text(size)}; at most {bytes_text(LIMIT_BYTES)} travel with a job.",
        f"Save it to a file, and pass that: --input {name}=FILE",
        "values.size",
    )


def _error(name: str, reason: str, hint: str, code: str) -> SubmitError:
    return SubmitError(reason, hint=hint, code=code, field="values").about(f"--in {name}")


def _near(name: str, namespace: Mapping[str, Any]) -> str:
    import difflib

    near = difflib.get_close_matches(name, [other for other in namespace if not other.startswith("_")], 2, 0.6)
    return f"Did you mean {' or '.join(near)}?" if near else "Run the cell that defines it first."


def _touch(folder: Path, nodes: Mapping[str, Any]) -> None:
    """Note the use of files, and delete those that no submit has used for :data:`KEEP_DAYS`."""
    used = {file["file"] for node in nodes.values() for file in values.files_of(node)}
    oldest = time.time() - KEEP_DAYS * 86400
    try:
        for entry in os.scandir(folder):
            if entry.name in used:
                os.utime(entry.path)
            elif entry.stat().st_mtime < oldest:
                os.unlink(entry.path)
    except OSError:  # no folder, or another kernel was faster
        pass


def files(spec: JobSpec) -> dict[str, str | bytes]:
    """Return the files of a job's values for its ``source/``: path there to a local path, or to the bytes.

    Raises
    ------
    SubmitError
        A file is no longer in the store.
    """
    if not spec.values:
        return {}
    folder = store()
    found: dict[str, str | bytes] = {
        f"{values.MODULE}.py": importlib.resources.files("jupyter_amltrain.agent").joinpath("values.py").read_bytes(),
        values.INDEX: json.dumps(spec.values, sort_keys=True).encode(),
    }
    for name, node in spec.values.items():
        for file in values.files_of(node):
            path = folder / file["file"]
            if not path.is_file():
                raise _error(name, "its file is no longer there.", "Submit the cell again.", "values.gone")
            found[f"{values.FOLDER}/{file['file']}"] = str(path)
    return found


def statements(nodes: Mapping[str, Any], run: str = "") -> list[str]:
    """Return the statements that read the values, for the first line of a script.

    Parameters
    ----------
    run
        Statement that defines functions and classes of the notebook: they may use values, and some values need
        the classes.
    """
    late = [name for name, node in nodes.items() if any("named" in file for file in values.files_of(node))]
    first = [name for name in nodes if name not in late]
    read = {name: f"{name} = __import__({values.MODULE!r}).value_of({name!r})" for name in nodes}
    return [read[name] for name in first] + ([run] if run else []) + [read[name] for name in late]


#: Kind of node -> the modules that reading it needs.
_MODULES = {
    "frame": ("pandas", "pyarrow"),
    "series": ("pandas", "pyarrow"),
    "polars": ("polars",),
    "polars series": ("polars",),
    "table": ("pyarrow",),
    "array": ("numpy",),
    "sparse": ("scipy",),
    "tensor": ("torch",),
    "tensors": ("torch",),
    "estimator": ("sklearn", "skops"),
    "pickle": ("cloudpickle",),
    **{kind: (kind,) for kind in ("lightgbm", "xgboost", "catboost", "keras")},
}


def modules(spec: JobSpec) -> Iterator[str]:
    """Yield the modules that reading the values of a job needs."""
    for node in spec.values.values():
        for file in values.files_of(node):
            yield from file.get("needs", _MODULES.get(file["as"], ()))
            if str(file.get("file", "")).endswith(".safetensors"):
                yield "safetensors"


def makers(spec: JobSpec) -> dict[str, str]:
    """Return the versions of Python and of packages with which the pickles of a job were made, by package."""
    found: dict[str, str] = {}
    for node in spec.values.values():
        for file in values.files_of(node):
            found.update(file.get("made", {}))
    return found


def with_code(spec: JobSpec) -> list[str]:
    """Return the values whose pickles have compiled functions, which only the same version of Python can read."""
    return [name for name, node in spec.values.items() if any("code" in file for file in values.files_of(node))]


def other_versions(made: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return the versions that differ in more than a bug fix: ``Python 3.11 here, 3.8 there``; empty if none does."""
    parts = []
    for name, version in made.items():
        one, other = (".".join(text.split(".")[:2]) for text in (version, there.get(name, version)))
        if one != other:
            parts.append(f"{name.replace('python', 'Python')} {one} here, {other} there")
    return "; ".join(parts)


def notes(nodes: Mapping[str, Any], label: str = "--in") -> list[str]:
    """Return one sentence for each value that travels with a job."""
    return [
        f"{label} {name}: {values.description(node)}" + (f", {bytes_text(size)}." if (size := bytes_of(node)) else ".")
        for name, node in nodes.items()
    ]
