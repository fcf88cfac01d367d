"""Another job of the same code: with other values of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import notebook_source, script, values
from jupyter_amltrain.jobs.kept_names import keep_of
from jupyter_amltrain.schema import az_yaml_job
from jupyter_amltrain.schema import inputs as references
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.search_space import Expression


def with_params(spec: JobSpec, params: Mapping[str, Any]) -> JobSpec:
    """Return the job of a run with other values of some parameters.

    Raises
    ------
    CommandError
        The cell of the run is not stored, or does not take the parameter.
    SpecError
        The file of the job has no such input.
    """
    if not params:
        return spec
    merged = {**spec.params, **references.with_literals(dict(params), spec.inputs)}
    if spec.job_type:
        return az_yaml_job.with_line_params(spec, merged)
    if not spec.script:  # a file: parameters are its arguments
        return msgspec.structs.replace(spec, params=merged)
    if not spec.cell:
        raise CommandError(
            "again: --param needs the text of the run's cell, which is not stored.",
            hint="Run its cell with the other value.",
            code="again.no_cell",
            field="params",
        )
    searched = {} if spec.sweep is None or spec.trial is not None else spec.sweep.space
    return with_script(spec, merged, searched)


def with_script(spec: JobSpec, params: Mapping[str, Any], searched: Mapping[str, Expression]) -> JobSpec:
    """Return the job of a cell with other values of its parameters.

    Parameters
    ----------
    searched
        Parameters whose values the script reads from its environment (:mod:`..schema.searched_values`).
    """
    statements = values.statements(spec.values, notebook_source.RUN if spec.modules else "")
    own: dict[str, Any] = {"out": spec.out, "before": statements, "known": tuple(spec.values)}
    own["helpers"] = "\n".join(spec.modules.values())
    own["keep"] = keep_of(spec.script)
    before = script.from_cell(spec.cell, params={**spec.params, **searched}, **own)
    after = script.from_cell(spec.cell, params={**params, **searched}, **own)
    return msgspec.structs.replace(
        spec,
        params=dict(params),
        script=after.text,
        line_offset=spec.line_offset + after.line_offset - before.line_offset,
        notes=after.notes,
    )
