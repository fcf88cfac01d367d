"""A file that runs as a job: a script, a module, or a notebook; and where it is."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tokenize
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.protocol import read_regular
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import notebook_file, preflight, project, script_options
from jupyter_amltrain.state_dir import working_folder

#: Maximum size of a run configuration that is read for a hint.
_MAX_RUNCONFIG_BYTES = 1 << 20
#: Extensions of files that run unchanged.
_PYTHON = ("", ".py", ".pyw", notebook_file.SUFFIX)


def from_file(
    path: str | Path,
    *,
    source: str | Path | None = None,
    out: Sequence[str] = (),
    module: str = "",
    params: Collection[str] = (),
    style: str = "",
) -> dict[str, Any]:
    """Find and check a ``.py`` file or a notebook that runs as a job; nothing is added to its text.

    Its parameters become arguments as its parser takes them, and a value of ``--out`` is what
    the script itself writes to ``$AML_OUTPUT_DIR/<name>.json``.

    Parameters
    ----------
    path
        Of the file, or of a folder that has a ``__main__.py``; with `source` it may be relative to that folder.
    source
        Folder that is copied with the run; the file must be in it.
    out
        Names of the values that are returned; a note is added for those that the text does not mention.
    module
        Name of a module to run as ``python -m`` does, in place of `path`.
    params, style
        Names of its parameters, and how it takes them; by default what its parser is.

    Returns
    -------
    dict
        Fields of its job: where it is, the digest of its bytes, and notes for the user on its outputs.

    Raises
    ------
    CommandError
        The file does not exist, is not text, or is not in `source`.
    PreflightError
        The text would certainly fail; names the line.
    SubmitError
        The script does not take a parameter.
    """
    requested, path, working = str(path), Path(path).expanduser(), Path(working_folder())
    root = Path(source).expanduser().resolve() if source is not None else None
    folders: tuple[str, ...] = ()
    if root is not None and not root.is_dir():
        raise CommandError(
            f"--source {source}: no such folder.", hint=f"The working folder is {Path.cwd()}.", field="source"
        )
    if module:
        path, folder = project.module_file(module, root or working)
        folders = (str(folder),)
    if root is not None and not path.is_absolute() and not path.exists():
        path = root / path
    path = Path(os.path.normpath(path.absolute()))
    if path.is_dir() and (path / "__main__.py").is_file():
        path = path / "__main__.py"
    if path.is_file() and path.suffix.lower() not in _PYTHON:
        raise CommandError(f"{path.name} is not a Python file.", hint=_hint_for_file(path))
    data, text = _python_text(path, requested)
    is_notebook = notebook_file.is_notebook(path.name)
    if not is_notebook:
        preflight.check(text, where=f"{path.name} line")
    notes = [
        f"--out {one}: {path.name} does not mention {one}. A file writes its values itself:"
        f" json.dump(value, open(os.environ['AML_OUTPUT_DIR'] + '/{one}.json', 'w'))"
        for one in out
        if not re.search(rf"\b{re.escape(one)}\b", text)
    ]
    if is_notebook:  # whose kernel works in its folder
        working = path.parent
    if root is not None:
        place = project.Place("", _name_in_source(path, root, requested))
    else:
        place = project.place_of(path, text.encode("utf-8", "replace"), working, folders)
    return {
        "script_name": place.name,
        "root": place.root,
        "search": place.search,
        "module": module,
        "forms": {} if is_notebook else script_options.forms_of(text, params, path.name, style),
        "source_sha256": hashlib.sha256(data).hexdigest(),
        "notebook_dir": str(working),
        "notes": tuple(notes),
    }


def _name_in_source(path: Path, root: Path, requested: str) -> str:
    """Return the path of a script in its ``--source`` folder."""
    folder = path.parent.resolve()
    if folder != root and root not in folder.parents:
        raise CommandError(
            f"The script {requested} is not in the source folder {root}.",
            hint="Name a script of that folder, or another --source.",
        )
    return (folder / path.name).relative_to(root).as_posix()


def _python_text(path: Path, requested: str) -> tuple[bytes, str]:
    """Return the bytes and the text of a Python file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CommandError(
            f"Cannot read the script {requested!r}: {error.strerror or error}.", hint=_near_files(path)
        ) from None
    if notebook_file.is_notebook(path.name):
        return data, notebook_file.code_of(data, path.name)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, ValueError) as error:
        raise CommandError(f"{path.name} is not Python source code: {error}.", hint="Save it as UTF-8.") from None
    if not text.strip():
        raise CommandError(f"{path.name} is empty, there is nothing to run.", hint="Save it first.")
    return data, text


def _hint_for_file(path: Path) -> str:
    """Return a hint for a file that is not a Python script."""
    suffix = path.suffix.lower()
    if suffix in (".yml", ".yaml"):
        return f"Submit an az ml job with: %aml_submit {path.name}"
    if suffix == ".runconfig":
        return (
            "It is a run configuration of the first SDK of az ml. Submit its script with flags, and write that as a"
            f" job of az ml: %aml_submit {_runconfig_line(path)} --save job.yml"
        )
    if suffix in (".sh", ".bash"):
        return "Write a .py file that runs it: subprocess.run([...], check=True)"
    return f"Name a .py file that reads it; pass it with --input data={path.name}"


#: Keys of a run configuration of SDK v1 -> flag of a submit; the value of a nested key is below its parent.
_RUNCONFIG_FLAGS = {
    "target": "--target",
    "nodeCount": "--nodes",
    "processCountPerNode": "--processes",
    "maxRunDurationSeconds": "--timeout",
}


def _runconfig_line(path: Path) -> str:
    """Return the script and the flags of a run configuration, as far as its text names them."""
    try:
        text = read_regular(str(path), _MAX_RUNCONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        text = ""
    values: dict[str, str] = {}
    for key, value in re.findall(r"^[ \t]*[\"']?(\w+)[\"']?[ \t]*:[ \t]*[\"']?([\w./-]+)", text, re.MULTILINE):
        values.setdefault(key, value)
    words = [values.get("script", "train.py")]
    for key, flag in _RUNCONFIG_FLAGS.items():
        if (value := values.get(key, "null")) not in ("null", "local", "amlcompute", "0", "1"):
            words += [flag, value]
    return " ".join(words)


def _near_files(path: Path) -> str:
    import difflib

    try:
        names = [x.name for x in path.parent.iterdir() if x.suffix == ".py"]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, 3, 0.5)
    if near:
        return f"Did you mean {', '.join(near)}?"
    return f"Name a .py file; the working folder is {Path.cwd()}."
