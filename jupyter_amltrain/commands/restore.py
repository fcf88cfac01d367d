"""``runs restore``: write the code of a run into a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jupyter_amltrain.commands.parser import RUN, Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs.file_hash import hash_file
from jupyter_amltrain.jobs.snapshot import code_files, digest_of
from jupyter_amltrain.text import tilde

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.backends.run_files import RunFiles
    from jupyter_amltrain.run import TrackedRun
    from jupyter_amltrain.schema.job import JobSpec

#: File of a run with the uncommitted changes of its project.
GIT_DIFF = "git.diff"
#: Maximum number of files that a message names.
MAX_NAMED = 20


class Restored(NamedTuple):
    """Files that were written, files that had the same content before, and whether they are the code of the run."""

    written: list[str]
    same: list[str]
    exact: bool


def _flags(parser: Parser) -> None:
    parser.flag("run", help=f"{RUN}, or last")
    parser.flag("folder", help="folder to write to; created if it does not exist")


def _restore(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    run = api.attach(args.run)
    folder = os.path.abspath(os.path.expanduser(args.folder))
    found = restore(run, folder)
    names = ", ".join(found.written[:MAX_NAMED])
    more = f" and {len(found.written) - MAX_NAMED} more" if len(found.written) > MAX_NAMED else ""
    text = f"Wrote {names}{more} to {tilde(folder)}." if found.written else f"Nothing to write to {tilde(folder)}."
    if found.same:
        text += f" Not changed: {len(found.same)} files with the same content."
    if not found.exact:
        text += f" The digest differs from the one recorded: {run.handle} has changed files of its own code."
    return Result(text, {"folder": folder, "written": found.written, "same": found.same, "exact": found.exact})


def restore(run: TrackedRun, folder: str) -> Restored:
    """Write the code that a run had into a folder: its files, the text of its cell, and its uncommitted changes.

    Parameters
    ----------
    folder
        Absolute path. Files with the same content stay as they are.

    Raises
    ------
    CommandError
        The code is not available, a file there has another content (then nothing is written), or the folder cannot
        be written.
    """
    spec, files = run.spec, run.reader
    contents, exact = _contents(run, spec, files)
    diff = files.read(GIT_DIFF)
    if diff:
        contents[_free(GIT_DIFF, contents)] = diff
    if spec.script and spec.cell:
        contents[_free("cell.py", contents)] = spec.cell.encode()
    written, same = _compare(contents, folder)
    try:
        for name in written:
            _write(os.path.join(folder, name), contents[name])
    except OSError as error:
        raise CommandError(
            f"restore: cannot write {tilde(error.filename or folder)}: {error.strerror or error}.",
            hint="Choose another folder.",
            code="restore.write",
            field="folder",
        ) from error
    return Restored(written, same, exact)


def _contents(run: TrackedRun, spec: JobSpec, files: RunFiles) -> tuple[dict[str, str | bytes], bool]:
    """Return the run's code by name, as bytes or paths, and whether its digest is the one that was recorded."""
    try:
        digest = str(json.loads(files.read("job.json"))["snapshot"]["digest"])
    except (ValueError, KeyError, TypeError):
        digest = ""
    copy = files.local_copy("source")
    if copy is not None and (paths := code_files(Path(copy))):
        try:
            exact = not files.are_local or digest in ("", digest_of(copy, paths))
        except OSError as error:
            raise _unavailable(run, f"{tilde(str(error.filename))} is missing from the run's folder") from error
        return dict(paths), exact
    text = spec.script or (spec.cell if spec.job_type else "")
    if not text:
        raise _unavailable(run, "its target keeps no copy of it")
    return {spec.script_name: text.encode()}, not spec.source


def _unavailable(run: TrackedRun, reason: str) -> CommandError:
    return CommandError(
        f"restore: the code of {run.handle} is not available: {reason}.",
        hint=f"Its git commit, if there is one: %aml_runs show {run.handle}",
        code="restore.unavailable",
    )


def _free(name: str, taken: dict[str, str | bytes]) -> str:
    """Return a name beside the files of the code."""
    while name in taken:
        name = f"run-{name}"
    return name


def _compare(contents: dict[str, str | bytes], folder: str) -> tuple[list[str], list[str]]:
    """Return the files to write, and those that exist with the same content.

    Raises
    ------
    CommandError
        A file exists with another content, or a folder with its name, or a link leads out of the folder.
    """
    written, same, other = list[str](), list[str](), list[str]()
    root = os.path.realpath(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise CommandError(
            f"restore: {tilde(folder)} is not a folder.",
            hint="Choose another one.",
            code="restore.exists",
            field="folder",
        )
    for name in sorted(contents):
        path = os.path.join(folder, name)
        inside = os.path.realpath(os.path.dirname(path))
        if inside != root and not inside.startswith(root.rstrip(os.sep) + os.sep):
            other.append(name)
        elif not os.path.lexists(path):
            written.append(name)
        elif os.path.isfile(path) and not os.path.islink(path) and _sha256(path) == _sha256(contents[name]):
            same.append(name)
        else:
            other.append(name)
    if other:
        named = ", ".join(other[:5]) + (f" and {len(other) - 5} more" if len(other) > 5 else "")
        raise CommandError(
            f"restore: {tilde(folder)} has other files of these names: {named}. Nothing was written.",
            hint="Choose an empty folder.",
            code="restore.exists",
            field="folder",
        )
    return written, same


def _sha256(content: str | bytes) -> bytes:
    return hashlib.sha256(content).digest() if isinstance(content, bytes) else hash_file(content).sha256


def _write(path: str, content: str | bytes) -> None:
    """Write a file with the mode of its original; an interrupted call leaves no half of it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        if isinstance(content, bytes):
            Path(part).write_bytes(content)
        else:
            shutil.copyfile(content, part)
            if os.stat(content).st_mode & 0o100:  # the run's own files may be read-only, or private
                os.chmod(part, os.stat(part).st_mode | 0o111)
        os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)


RESTORE = Command(
    verb="restore",
    summary="Write the code of a run into a folder: files, the text of its cell, uncommitted changes.",
    run=_restore,
    flags=_flags,
    json=True,
    examples=Examples(("%aml_runs restore last ./digits-code",), ("amltrain runs restore last ./digits-code",)),
)
