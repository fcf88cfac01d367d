"""Files that a run's script has written: which ones there are, which are models, and parts of them."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence

from jupyter_amltrain.agent import kept_values
from jupyter_amltrain.agent.whole_files import WholeFile
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_file import NOT_RESULTS, RESULT_FOLDERS, RunFile, models_of

#: Start of the paths of values that a run keeps.
_VALUES_PREFIX = f"outputs/{kept_values.NAME}."
#: Start of the journal of MLflow calls that is searched for names of logged models (bytes).
_MAX_JOURNAL_BYTES = 1 << 20
_LOGGED = re.compile(r"artifacts/models/(?P<id>[^/]+)/artifacts")
_ARTIFACTS = re.compile(r"artifacts/runs/[^/]+/artifacts/(?P<path>.+)")


async def result_files(backend: Backend, run: Run) -> list[RunFile]:
    """Return the files that the script of a run has written, with paths in the run's folder.

    Values that the run keeps (:mod:`..agent.kept_values`) are not among them.
    """
    return [file for file in await _all_files(backend, run) if not file.path.startswith(_VALUES_PREFIX)]


async def kept_value_files(backend: Backend, run: Run) -> list[RunFile]:
    """Return the files of the values that a run keeps."""
    return [file for file in await _all_files(backend, run, ("outputs",)) if file.path.startswith(_VALUES_PREFIX)]


async def _all_files(backend: Backend, run: Run, folders: Sequence[str] = RESULT_FOLDERS) -> list[RunFile]:
    if not run.folder:
        return []
    found: list[RunFile] = []
    for folder in folders:
        for file in await backend.files.list(run.run_id, folder):
            path = f"{folder}/{file.path}"
            if path not in NOT_RESULTS:
                found.append(RunFile(path=path, size=file.size, modified=file.modified))
    return found


async def result_models(backend: Backend, run: Run, files: Sequence[RunFile]) -> list[str]:
    """Return the models of a run as ``%aml_model register --path`` takes them, e.g. ``outputs/model``."""
    paths = models_of(files)
    logged = {match["id"] for path in paths if (match := _LOGGED.fullmatch(path))}
    names = await _logged_names(backend, run) if logged else {}
    models = []
    for path in paths:
        if match := _LOGGED.fullmatch(path):
            path = f"outputs/{names[match['id']]}" if match["id"] in names else ""
        elif match := _ARTIFACTS.fullmatch(path):
            path = f"outputs/{match['path']}"
        if path and path not in models:
            models.append(path)
    return models


async def _logged_names(backend: Backend, run: Run) -> dict[str, str]:
    """Return the names of the models that MLflow 3 has logged, by their ids."""
    names = {}
    for line in (await backend.read(run.run_id, "metrics", 0, _MAX_JOURNAL_BYTES)).data.split(b"\n"):
        if b'"logged-models"' in line:
            try:
                answer = json.loads(line)["a"]
                names[str(answer["id"])] = str(answer["name"])
            except (ValueError, KeyError, TypeError):  # cut off, or written by the job
                continue
    return names


async def read_result(backend: Backend, run: Run, path: str, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a file that the script of a run has written, from byte `offset`.

    Raises
    ------
    CommandError
        The path is outside the folders that a script writes to.
    """
    plain = _checked(run, path)
    return await backend.files.read_part(run.run_id, plain, offset, limit) if run.folder else b""


async def read_results(backend: Backend, run: Run, paths: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
    """Return whole small files that the script of a run has written; see :meth:`TargetFiles.read_many`.

    Raises
    ------
    CommandError
        As of :func:`read_result`.
    """
    plain = [_checked(run, path) for path in paths]
    return await backend.files.read_many(run.run_id, plain, limit) if run.folder else [None] * len(paths)


def _checked(run: Run, path: str) -> str:
    """Return the normal form of a path of a file that a script may have written."""
    plain = posixpath.normpath(path)
    if plain.split("/")[0] not in RESULT_FOLDERS or plain in NOT_RESULTS or "\0" in path:
        raise CommandError(
            f"{path[:200]!r} is not a file that {run.handle} has written.",
            hint=f"List them: %aml_runs files {run.handle}",
            code="files.path",
        )
    return plain
