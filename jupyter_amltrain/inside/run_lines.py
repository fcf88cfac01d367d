"""Reads the lines of a run, with the text of its files, from its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.inside.line_files import ProcessLines, read_lines
from jupyter_amltrain.inside.line_report import LineReader, source_path
from jupyter_amltrain.schema.run import Run

#: Files whose text is read, those that took most of the time, and the size of each.
_MAX_SOURCES, _MAX_SOURCE_BYTES = 10, 1 << 20


async def read_run_lines(
    backend: Backend, run: Run, known: LineReader | None = None
) -> tuple[list[ProcessLines], LineReader]:
    """Return the samples of a run, of its last attempt, and what names their lines.

    Parameters
    ----------
    known
        Of an earlier reading: the text of its files is not read again.
    """
    if not run.folder:
        return [], LineReader(run.spec)
    processes = await read_lines(backend, run.run_id)
    if run.status.attempts:
        started = max((phase.start for phase in run.status.phases if phase.name == "running"), default=0.0)
        processes = [one for one in processes if one.started >= started - 1.0]
    return processes, await line_reader(backend, run, _longest(processes), {} if known is None else known.sources)


async def line_reader(
    backend: Backend, run: Run, paths: Sequence[str], known: Mapping[str, Sequence[str]] = {}
) -> LineReader:
    """Return what names lines of these files, most important first; with their text as far as the run has it."""
    sources = dict(known)
    for path in paths[:_MAX_SOURCES]:
        if path in sources:
            continue
        if not run.spec.script and path.endswith(f"/{run.spec.script_name}"):
            name = run.spec.script_name
        else:
            name = source_path(run.spec, path)
        data = await backend.files.read(run.run_id, f"source/{name}", _MAX_SOURCE_BYTES) if name else b""
        sources[path] = data.decode("utf-8", "replace").splitlines()
    return LineReader(run.spec, sources)


def _longest(processes: list[ProcessLines]) -> list[str]:
    """Return the paths of the files by the time in them, longest first."""
    seconds: dict[str, float] = {}
    for process in processes:
        for window in process.windows:
            for sample in window.samples:
                if sample.node:
                    path = process.nodes[sample.node].file
                    seconds[path] = seconds.get(path, 0.0) + sample.wall
    return sorted(seconds, key=lambda path: -seconds[path])
