"""Names at Azure ML: of computes (the rule is :mod:`jupyter_amltrain.spec.azure_names`) and of jobs."""

from __future__ import annotations

import re

from jupyter_amltrain.spec.azure_names import RULE, compute_name_error, suggested

__all__ = ["RULE", "compute_name_error", "job_name", "suggested"]


def job_name(run_id: str) -> str:
    """A run id as the name of a job: letters, digits, ``-`` and ``_``, at most 255, a letter or digit first."""
    text = re.sub(r"[^A-Za-z0-9_-]+", "-", run_id)[:255].lstrip("-_")
    return text or "run"
