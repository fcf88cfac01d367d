"""Hook in the Python of a cell's job that makes the text of a table as wide as in a notebook.

Without a notebook, pandas fits a table to the terminal and leaves columns out; the log of a job is no terminal.
``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Variable of a job that is a cell; see :mod:`.spawn_hook`.
CELL = "AMLTRAIN_CELL"
#: Columns that pandas shows in a notebook.
_COLUMNS = 20


def imported(pandas: Any) -> None:
    """Show as many columns as in a notebook, unless somebody has set their number."""
    import os

    if os.environ.get(CELL) and not pandas.get_option("display.max_columns"):
        pandas.set_option("display.max_columns", _COLUMNS)
