"""Errors of the data and of the environment, which a further attempt would repeat."""

from __future__ import annotations

#: Exit code of a run that another attempt would repeat; ``jobs/launch.py`` has the same number.
FINAL_EXIT_CODE = 3


class UnusableData(Exception):
    """The data, the options or the environment cannot give a model; one sentence, and what to do."""


class Stopped(BaseException):
    """The run was canceled, or its time is over: what was found so far is kept. No library catches it."""
