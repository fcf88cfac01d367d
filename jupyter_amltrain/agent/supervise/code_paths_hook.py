"""Hook in a job's Python that leaves the runs of a project out of the code of a model.

``log_model(..., code_paths=[os.getcwd()])`` copies the notebook's folder, where ``.amltrain`` has the models of all
earlier runs. ``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs
:func:`imported` when MLflow has imported the module that copies. A version of MLflow without its private function
copies everything, as without this hook.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Optional

#: Folder of a project with its runs and MLflow's store.
STATE = ".amltrain"


def imported(model_utils: Any) -> None:
    """Wrap the function that copies the files and folders of ``code_paths``."""
    copy = model_utils._copy_file_or_tree

    def copy_without_runs(src: Any, dst: Any, dst_dir: Optional[Any] = None) -> Any:
        import os
        import shutil

        if not os.path.isdir(os.path.join(src, STATE)):
            return copy(src, dst, dst_dir)
        name = os.path.basename(os.path.abspath(src))
        below = name if dst_dir is None else os.path.join(dst_dir, name)
        shutil.copytree(src, os.path.join(dst, below), ignore=shutil.ignore_patterns("__pycache__", STATE))
        return below

    model_utils._copy_file_or_tree = copy_without_runs
