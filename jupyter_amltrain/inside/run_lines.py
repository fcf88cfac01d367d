"""Reads the lines of a run, with the text of its files, from its target."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.inside.line_files import ProcessLines, read_lines
from jupyter_amltrain.inside.line_report import LineReader, report_of, source_path
from jupyter_amltrain.inside.line_table import MIN_SECONDS, sentence
from jupyter_amltrain.schema.run import Run

log = logging.getLogger(__name__)

#: Files whose text is read, those that took most of the time, and the size of each.
_MAX_SOURCES, _MAX_SOURCE_BYTES = 10, 1 << 20


async def read_run_lines(backend: Backend, run: Run) -> tuple[list[ProcessLines], LineReader]:
    """Return the samples of a run, of its last attempt, and what names their lines."""
    if not run.folder:
        return [], LineReader(run.spec)
    processes = await read_lines(backend, run.run_id)
    if run.status.attempts:
        started = max((phase.start for phase in run.status.phases if phase.name == "running"), default=0.0)
        processes = [one for one in processes if one.started >= started - 1.0]
    return processes, await line_reader(backend, run, _longest(processes))


async def line_reader(backend: Backend, run: Run, paths: Sequence[str]) -> LineReader:
    """Return what names lines of these files, most important first; with their text as far as the run has it."""
    sources = {}
    for path in paths[:_MAX_SOURCES]:
        if not run.spec.script and path.endswith(f"/{run.spec.script_name}"):
            name = run.spec.script_name
        else:
            name = source_path(run.spec, path)
        data = await backend.files.read(run.run_id, f"source/{name}", _MAX_SOURCE_BYTES) if name else b""
        if data:
            sources[path] = data.decode("utf-8", "replace").splitlines()
    return LineReader(run.spec, sources)


async def line_note(backend: Backend, run: Run) -> str:
    """Return the sentence about the line that the time of an ended run went into; empty if there is none."""
    seconds = sum(phase.seconds or 0.0 for phase in run.status.phases if phase.name == "running")
    if seconds < MIN_SECONDS or not run.spec.lines or backend.files.lists_by_service:
        return ""
    try:
        processes, reader = await read_run_lines(backend, run)
        return sentence(report_of(processes, reader))
    except (AmlTrainError, OSError) as error:  # the rest of the run is still shown
        log.info("lines of %s: %s", run.handle, error)
        return ""


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
