"""``runs restore``: write the code of a run into a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jupyter_amltrain.commands.new_files import write_new
from jupyter_amltrain.commands.parser import RUN, Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
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
    found = write_new(contents, folder, "restore")
    return Restored(found.written, found.same, exact)


def _contents(run: TrackedRun, spec: JobSpec, files: RunFiles) -> tuple[dict[str, str | bytes], bool]:
    """Return the run's code by name, as bytes or paths, and whether its digest is the one that was recorded."""
    try:
        digest = str(json.loads(files.read("job.json"))["snapshot"]["digest"])
    except (ValueError, KeyError, TypeError):
        digest = ""
    copy = files.local_copy("source")
    if copy is not None and (paths := code_files(Path(copy))):
        try:
            exact = not files.have_modes or digest in ("", digest_of(copy, paths))
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


RESTORE = Command(
    verb="restore",
    summary="Write the code of a run into a folder, with the text of its cell.",
    run=_restore,
    flags=_flags,
    json=True,
    examples=Examples(("%aml_runs restore last ./digits-code",), ("amltrain runs restore last ./digits-code",)),
)
