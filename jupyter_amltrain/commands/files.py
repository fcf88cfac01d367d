"""``runs files``, ``download`` and ``export``: what a run has written, copied here, and its telemetry as a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyter_amltrain.commands.parser import RUN, Parser, run_flag
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.text import close_matches, tilde

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.run import TrackedRun

#: Supported suffixes of exported telemetry.
EXPORT_SUFFIXES = (".csv", ".parquet", ".png")


def _files(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.output.file_list import files_text

    run = api.attach(args.run)
    files = run.files()
    rows = [{"path": file.path, "size": file.size, "modified": file.modified} for file in files]
    folder = run.run.folder
    where = f"\nThey are in {tilde(folder)}" if files and os.path.isdir(folder) else ""
    return Result(f"{files_text(files)}{where}" if files else f"{run.handle} has written no files.", rows)


FILES = Command(
    verb="files",
    summary="List the files that a run has written: outputs, artifacts, figures, logs.",
    run=_files,
    flags=run_flag,
    json=True,
    examples=Examples(("%aml_runs files last",), ("amltrain runs files last",)),
)


def _download_flags(parser: Parser) -> None:
    run_flag(parser)
    parser.flag("path", nargs="*", default=[], help="files or folders, e.g. outputs/model.joblib; default all")
    parser.flag(
        "--to", metavar="FOLDER", default="",
        help="folder to write to; default the working folder, for all files one with the id of the run",
    )  # fmt: skip


def _download(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    run = api.attach(args.run)
    files = run.files()
    to = args.to or ("." if args.path else run.run_id)
    paths = [files.download(path, to) for path in args.path or [""]]
    return Result(f"Copied {', '.join(tilde(os.path.abspath(path)) for path in paths)}.", [str(path) for path in paths])


DOWNLOAD = Command(
    verb="download",
    summary="Copy files that a run has written into a folder of this machine.",
    run=_download,
    flags=_download_flags,
    json=True,
    examples=Examples(
        ("%aml_runs download last outputs/model.joblib", "%aml_runs download digits-k3f9x --to results"),
        ("amltrain runs download last outputs --to results",),
    ),
)


def _export_flags(parser: Parser) -> None:
    parser.flag("run", help=f"{RUN}, or last")
    parser.flag("file", help="file to write; its suffix selects the format")


def _export(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    path = export_path(args.file)
    return Result(export(api.attach(args.run), path))


EXPORT = Command(
    verb="export",
    summary="Write a run's telemetry to a .csv, .parquet or .png file.",
    run=_export,
    flags=_export_flags,
    examples=Examples((), ("amltrain runs export last telemetry.csv",)),
)


def export_path(path: str) -> str:
    """Return the absolute path of a file to write; checked before any call to a target.

    Raises
    ------
    CommandError
        Its suffix is unknown, or its folder does not exist.
    """
    stem, suffix = os.path.splitext(path)
    if suffix.lower() not in EXPORT_SUFFIXES:
        matches = close_matches(suffix.lower(), EXPORT_SUFFIXES, 1) or [EXPORT_SUFFIXES[0]]
        raise CommandError(
            f"Unknown file type {suffix!r}." if suffix else f"{path!r} has no file type.",
            hint=f"Use {', '.join(EXPORT_SUFFIXES[:-1])} or {EXPORT_SUFFIXES[-1]}, for example {stem}{matches[0]}",
            code="export.file_type",
            field="file",
        )
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(os.path.dirname(full)):
        raise CommandError(
            f"The folder {tilde(os.path.dirname(full))} does not exist.",
            hint="Create it, or choose another file.",
            code="export.no_folder",
            field="file",
        )
    if os.path.isdir(full):
        raise CommandError(
            f"{tilde(full)} is a folder.",
            hint=f"Name a file: {path}/telemetry{suffix}",
            code="export.is_folder",
            field="file",
        )
    return full


def export(run: TrackedRun, path: str) -> str:
    """Write a run's telemetry to a file; return one sentence.

    Raises
    ------
    CommandError
        The file cannot be written.
    """
    try:
        run.export(path)
    except OSError as error:
        raise CommandError(
            f"Cannot write {tilde(path)}: {error.strerror or error}.", hint="Choose another file.", code="export.write"
        ) from error
    return f"Wrote the telemetry of {run.handle} to {tilde(path)}."
