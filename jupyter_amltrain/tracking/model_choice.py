"""Which model is meant, and where its files go: the same words for the project's registry and a workspace's."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import CommandError, UnknownModel


def path_in_run(path: str) -> str:
    """``outputs/model`` -> ``model``: a path below the outputs of a run.

    Raises
    ------
    CommandError
        It leads out of the run, or to all of it.
    """
    asked = posixpath.normpath(path.replace(os.sep, "/"))
    below = asked.removeprefix("outputs/")
    if asked.startswith("/") or ".." in asked.split("/") or below in (".", "", "outputs"):
        raise CommandError(f"--path {path}: it is a path within the run.", hint="Try: --path outputs/model")
    return below


def only(found: Collection[str], run: str) -> str:
    """The one model that a run left.

    Raises
    ------
    CommandError
        There is none, or more than one; their paths are named.
    """
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise CommandError(
            f"{run} left {len(found)} models: {', '.join(sorted(found)[:5])}.", hint=f"Say which: --path {min(found)}"
        )
    raise CommandError(
        f"{run} left no model: no output, and none logged by MLflow.",
        hint="Name its files: --path outputs/model. A script writes them to $AML_OUTPUT_MODEL (--output model).",
    )


def counted(folder: Path) -> dict[str, int]:
    """``files`` and ``bytes`` below a folder."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def settle(new: Path, to: Path) -> None:
    """Give a filled folder its name, which may be an empty folder's.

    Raises
    ------
    CommandError
        There is something at that name.
    """
    try:
        if to.is_dir():
            to.rmdir()  # only an empty one
        elif to.exists():
            raise FileExistsError
        os.rename(new, to)
    except OSError as error:
        raise CommandError(
            f"{to} is there already, and nothing is overwritten.", hint="Name another folder: --to FOLDER"
        ) from error


def chosen(rows: Sequence[Mapping[str, Any]], name: str, version: str, where: str) -> Mapping[str, Any]:
    """The row of a model; the newest where no version is given.

    Raises
    ------
    UnknownModel
        Near matches are named.
    """
    mine = [row for row in rows if row["name"] == name]
    if not mine:
        import difflib

        names = list(dict.fromkeys(str(row["name"]) for row in rows))
        near = difflib.get_close_matches(name, names, 2, 0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "%aml_model list shows them."
        raise UnknownModel(f"There is no model {name!r} in {where}.", hint=hint)
    if not version:
        return mine[0]
    for row in mine:
        if row["version"] == version:
            return row
    there = ", ".join(row["version"] for row in mine[:5])
    raise UnknownModel(f"Model {name!r} has no version {version} in {where}.", hint=f"There are: {there}.")
