"""MLflow in the notebook looks at the store in which the notebook's runs are recorded."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.jobs import team_server

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_amltrain.kernel.controller import Controller

_VARIABLE = "MLFLOW_TRACKING_URI"

#: Maximum wait of a cell that mentions MLflow for the records of runs that have ended, in seconds.
RECORD_TIMEOUT_S = 20.0

#: Name of the logger with which MLflow reports the creation of a store.
_CREATION = "mlflow.store.db.utils"

_MENTION = re.compile(r"\bmlflow\b")

#: A line that imports MLflow.
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+mlflow\b", re.M)


class NotebookMlflow:
    """The tracking URI that this kernel got from us, unless its user has set one.

    Parameters
    ----------
    server
        Returns the address of the team's server from the configuration; empty without one.

    Notes
    -----
    A variable of the environment, so that MLflow is not imported, :func:`mlflow.set_tracking_uri` takes precedence, and
    programs that a cell starts use the same store, as they do after that function.
    """

    def __init__(self, ip: InteractiveShell, server: Callable[[], str] = str) -> None:
        self._ip, self._team_server = ip, server
        self._uri = ""
        self._given = ""  #: a team's server that the user's own variable names: runs go there, too
        self._was_imported = False

    def install(self) -> None:
        """Set the URI, and say so when the notebook imports or uses MLflow."""
        module = sys.modules.get("mlflow")
        is_set = getattr(module, "is_tracking_uri_set", None)  # absent in a module of the user's with this name
        self._given = self._uri = team_server.of_environment()[0]
        if (os.environ.get(_VARIABLE) and not self._given) or (is_set is not None and is_set()):
            return
        self._was_imported = module is not None
        self._follow()
        self._ip.events.register("pre_run_cell", self._before_cell)
        if not self._given:
            self._ip.events.register("post_run_cell", self._after_cell)

    def remove(self) -> None:
        """Undo :meth:`install`."""
        if self._uri and not self._given and os.environ.get(_VARIABLE) == self._uri:
            del os.environ[_VARIABLE]
        self._stop("pre_run_cell", self._before_cell)
        self._stop("post_run_cell", self._after_cell)

    def _follow(self) -> None:
        """Name the store of the current working folder, to which runs go."""
        from jupyter_amltrain.state_dir import project_store

        if os.environ.get(_VARIABLE, "") != self._uri:  # the user's own
            return
        try:
            folder = os.getcwd()
        except FileNotFoundError:  # it was deleted; a submit says so
            return
        self._uri = self._team_server() or self._given or f"sqlite:///{project_store(folder) / 'mlflow.db'}"
        os.environ[_VARIABLE] = self._uri

    def _before_cell(self, info: Any) -> None:
        self._follow()
        text = str(getattr(info, "raw_cell", ""))
        if os.environ.get(_VARIABLE) != self._uri or not _mentions(text):
            return
        if _IMPORT.search(text) and self._uri.startswith("sqlite:"):
            _create_store()
        _await_records()

    def _after_cell(self, result: Any) -> None:
        """Say once where MLflow looks."""
        get_uri = getattr(sys.modules.get("mlflow"), "get_tracking_uri", None)  # absent while a thread imports it
        text = str(getattr(getattr(result, "info", None), "raw_cell", ""))
        if get_uri is None or (self._was_imported and not _mentions(text)):
            return
        self._stop("post_run_cell", self._after_cell)
        if self._uri and get_uri() == self._uri:
            place = "the store of its runs, .amltrain/mlflow.db"
            place = place if self._uri.startswith("sqlite:") else self._uri
            print(f"MLflow in this notebook looks at {place}. For another one: mlflow.set_tracking_uri(...)")

    def _stop(self, event: str, callback: Callable[[Any], None]) -> None:
        if callback in self._ip.events.callbacks[event]:
            self._ip.events.unregister(event, callback)


def _mentions(cell: str) -> bool:
    """Return whether the code of a cell, which is not a job's, names MLflow."""
    return not cell.startswith("%%") and _MENTION.search(cell) is not None


def _create_store() -> None:
    """Create the store if there is none: MLflow, which would do so on its first call, does not do it all or nothing."""
    from jupyter_amltrain.errors import AmlTrainError
    from jupyter_amltrain.tracking import importer

    logger = logging.getLogger(_CREATION)
    level = logger.level
    logger.setLevel(logging.WARNING)  # it reports each step
    try:
        importer.create_store(os.getcwd())
    except (AmlTrainError, ImportError, OSError) as error:  # MLflow itself says more, if the cell needs the store
        print(f"MLflow's store cannot be created: {error}", file=sys.stderr)
    finally:
        logger.setLevel(level)


def _await_records() -> None:
    """Wait until the runs that have ended are in the store."""
    from jupyter_amltrain.kernel.session import current_controller

    if (controller := current_controller()) is not None:
        with contextlib.suppress(TimeoutError):
            controller.loop.call(_recorded(controller), RECORD_TIMEOUT_S)


async def _recorded(controller: Controller) -> None:
    await controller.imports.settle()
    await controller.team.settle(os.getcwd())
