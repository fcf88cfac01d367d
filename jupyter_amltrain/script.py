"""Cell text and parameters -> the training script, line for line.

Line 1 of the script stands where the magic's own line stood and holds the
parameters, so a line number in a traceback is the line number in the cell. The
values of ``--out`` are taken by a few lines after the last one.
"""

from __future__ import annotations

import ast
import hashlib
import io
import keyword
import math
import re
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain import preflight
from jupyter_amltrain.errors import CommandError, PreflightError

#: Largest JSON text of one ``--out`` value, in bytes.
OUT_LIMIT = 1_000_000

_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=]")

# It runs at the normal end of the script only. `sys.exit()` before the last line
# skips it, and the value counts as never set: catching that too would need an
# atexit hook on line 1, in front of the user's own code, or a wrapper around it.
# Everything goes by `b.`: a script may have used the names `open`, `type`, `len`.
# Python 3.8 can run it: the target's interpreter need not be ours.
_EPILOGUE = """
# ---- added by amltrain: the values of --out ----
def _amltrain_out(names, b=__import__("builtins")):
    import json, os, sys
    folder = os.environ.get("AML_OUTPUT_DIR")
    if not folder:
        return
    def plain(value):
        if b.isinstance(value, os.PathLike):
            return os.fspath(value)
        if b.tuple(b.getattr(value, "shape", (1,))) == () and b.hasattr(value, "item"):
            return value.item()
        raise b.TypeError(b.type(value).__name__)
    found = b.globals()
    for name in names:
        record = {{"name": name}}
        if name not in found:
            record["error"] = "never set"
        else:
            try:
                record["value"] = found[name]
                size = b.len(json.dumps(record, default=plain))
                if size > {limit}:
                    record = {{"name": name, "error": "too large: %d bytes, limit {limit}" % size}}
            except b.Exception as error:
                why = error if b.type(error) is b.TypeError else b.type(found[name]).__name__
                record = {{"name": name, "error": "not JSON: %s" % why}}
        path = os.path.join(folder, name + ".json")
        try:
            os.makedirs(folder, exist_ok=True)
            with b.open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump(record, file, default=plain)
            os.replace(path + ".tmp", path)
        except b.OSError as error:
            b.print("amltrain: --out %s was not written: %s" % (name, error), file=sys.stderr)
_amltrain_out({names})
"""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A training script as it will run.

    Attributes
    ----------
    text
        The whole text, ``\\n`` line ends.
    line_offset
        Script line minus cell line.
    sha256
        Of what the user wrote: the same cell with other parameters has the same one.
    """

    text: str
    line_offset: int = 0
    sha256: str


def from_cell(
    cell: str,
    *,
    magic_line: str = "%%aml_submit",
    params: Mapping[str, Any] | None = None,
    out: Sequence[str] = (),
) -> Script:
    """Make the script of a cell.

    Parameters
    ----------
    cell
        The cell without the magic's line.
    magic_line
        The magic's line; its first word is named in messages and on line 1.
    params
        Assigned on line 1; JSON values.
    out
        Names of variables whose value comes home.

    Raises
    ------
    CommandError
        The cell is empty, or a name is no variable name.
    PreflightError
        The text would certainly fail; names the cell line (the magic's own is 1).
    """
    magic = (magic_line.split() or ["%%aml_submit"])[0]
    cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell.strip():
        raise CommandError(
            f"{magic}: the cell is empty, there is nothing to run.",
            hint=f"Write Python below the line, or submit a file: %{magic.lstrip('%')} train.py",
        )
    # Plain text has no magic above it: its first line is line 1.
    tree = preflight.check(cell, first_line=2) if magic_line else preflight.check(cell, where="Line")
    if not tree.body:
        raise CommandError(
            f"{magic}: the cell holds comments only, there is nothing to run.",
            hint=f"Write Python below the line, or submit a file: %{magic.lstrip('%')} train.py",
        )
    digest = hashlib.sha256(cell.encode()).hexdigest()
    assignments = [f"{_variable('--param', k)} = {literal(v)}" for k, v in (params or {}).items()]
    body = cell
    if assignments:
        if (doc := ast.get_docstring(tree, clean=False)) is not None:
            assignments.insert(0, f"__doc__ = {doc!r}")
        futures, body = _without_futures(tree, cell)
        first = "; ".join([*futures, *assignments])
    else:
        first = f"# {magic}"
        # Line 2 may tell Python an encoding; we write UTF-8, and line 1 is asked first.
        if _COOKIE.match(cell):
            first += " -*- coding: utf-8 -*-"
    names = [_variable("--out", name) for name in out]
    end = _EPILOGUE.format(limit=OUT_LIMIT, names=json_names(names)) if names else ""
    body = body if body.endswith("\n") else body + "\n"
    return Script(text=f"{first}\n{body}{end}", line_offset=0, sha256=digest)


class ScriptFile(msgspec.Struct, frozen=True, kw_only=True):
    """A ``.py`` file that runs as it is.

    Attributes
    ----------
    name
        Its name in the run's ``source/`` (posix; a path inside the folder of ``--source``).
    folder
        The absolute folder that it lies in.
    sha256
        Of its bytes.
    """

    name: str
    folder: str
    sha256: str


def from_file(path: str | Path, *, source: str | Path | None = None) -> ScriptFile:
    """Find and check a ``.py`` file; nothing is added to its text.

    Its parameters become ``--name value`` arguments, and a value of ``--out`` is what
    the script itself writes to ``$AML_OUTPUT_DIR/<name>.json``.

    Parameters
    ----------
    path
        Of the file; with `source` it may be relative to that folder.
    source
        Folder that is copied with the run; the file must be in it.

    Raises
    ------
    CommandError
        No such file, not a text, or not in `source`.
    PreflightError
        The text would certainly fail; names the line.
    """
    given, path = str(path), Path(path).expanduser()
    root = Path(source).expanduser().resolve() if source is not None else None
    if root is not None and not root.is_dir():
        raise CommandError(f"--source {source}: no such folder.", hint=f"The working folder is {Path.cwd()}.")
    if root is not None and not path.is_absolute() and not path.exists():
        path = root / path
    path = path.absolute()
    name = path.name
    if root is not None:
        folder = path.parent.resolve()
        if folder != root and root not in folder.parents:
            raise CommandError(
                f"The script {given} is not in the source folder {root}.",
                hint="Name a script of that folder, or another --source.",
            )
        name = (folder / path.name).relative_to(root).as_posix()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CommandError(
            f"Cannot read the script {given!r}: {error.strerror or error}.", hint=_near_files(path)
        ) from None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, ValueError) as error:
        raise CommandError(f"{path.name} is not a Python source text: {error}.", hint="Save it as UTF-8.") from None
    if not text.strip():
        raise CommandError(f"{path.name} is empty, there is nothing to run.", hint="Save it first.")
    preflight.check(text, where=f"{path.name} line")
    return ScriptFile(name=name, folder=str(path.parent), sha256=hashlib.sha256(data).hexdigest())


def literal(value: Any) -> str:
    """A JSON value as Python source, on one line.

    Raises
    ------
    CommandError
        It is no JSON value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    raise CommandError(
        f"--param: {type(value).__name__} is no JSON value.",
        hint="Pass a number, text, true/false/null, a list or a mapping.",
    )


def json_names(names: Sequence[str]) -> str:
    """Names as a Python list."""
    return "[" + ", ".join(map(repr, names)) + "]"


def _variable(flag: str, name: str) -> str:
    if name.startswith("__"):
        raise CommandError(f"{flag} {name}: that name is Python's own.", hint="Take another one.")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandError(
            f"{flag} {name!r} is not a variable name.",
            hint=f"Try: {flag} {_slug(name)}=..." if flag == "--param" else f"Try: {flag} {_slug(name)}",
        )
    return name


def _slug(name: str) -> str:
    slug = re.sub(r"\W+", "_", name).strip("_") or "value"
    return f"{slug}_" if keyword.iskeyword(slug) else f"v{slug}" if slug[0].isdigit() else slug


def _without_futures(tree: ast.Module, cell: str) -> tuple[list[str], str]:
    """``from __future__`` imports for line 1, and the text with ``pass`` in their places."""
    names: list[str] = []
    lines = [line.encode() for line in cell.split("\n")]  # ast counts columns in UTF-8
    for node in reversed(tree.body):
        if not isinstance(node, ast.ImportFrom) or node.module != "__future__":
            continue
        if any(alias.asname for alias in node.names):
            raise PreflightError(
                f"Cell line {node.lineno + 1}: 'from __future__ import ... as' cannot move to line 1.",
                hint="Remove the 'as'.",
            )
        names += [alias.name for alias in node.names if alias.name not in names]
        assert node.end_lineno is not None and node.end_col_offset is not None
        first, last = node.lineno - 1, node.end_lineno - 1
        tail = lines[last][node.end_col_offset :]
        if first == last:
            lines[first] = lines[first][: node.col_offset] + b"pass" + tail
        else:
            lines[first] = lines[first][: node.col_offset] + b"pass"
            lines[first + 1 : last + 1] = [b""] * (last - first - 1) + [b"pass" + tail]
    imports = [f"from __future__ import {', '.join(reversed(names))}"] if names else []
    return imports, b"\n".join(lines).decode()


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
