"""Hook in a job's Python that makes ``tqdm.notebook`` the bar in text that ``tqdm.auto`` is there.

A job has no notebook to draw the widget in: its bar stays at 0 % in the log. ``supervise/job_hooks.py`` puts this file
into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported` when the script itself has imported it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any


def imported(notebook: Any) -> None:
    """Replace the widget of ``tqdm.notebook``, unless this process is the kernel of a notebook."""
    import sys

    ipython = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):  # a job may execute a notebook
        return
    from tqdm.std import tqdm as text_bar

    class tqdm(text_bar):  # type: ignore[misc]
        """The bar in text, which takes the widget's own arguments."""

        def __init__(self, *args: Any, display: bool = True, **more: Any) -> None:
            super().__init__(*args, **more)

    tqdm.__module__ = notebook.__name__

    def trange(*args: Any, **more: Any) -> Any:
        """Return ``tqdm(range(*args), **more)``."""
        return tqdm(range(*args), **more)

    notebook.tqdm = notebook.tqdm_notebook = tqdm
    notebook.trange = notebook.tnrange = trange
