"""``%config AMLTrain`` and ``c.AMLTrain.*``: defaults of the magics."""

from __future__ import annotations

import os
from typing import Any

from traitlets import Bool, Float, Int, TraitError, Unicode, default, observe, validate
from traitlets.config import Configurable

from jupyter_amltrain.agent.protocol import WARM
from jupyter_amltrain.commands.registry import Defaults
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs import flag_types


class AMLTrain(Configurable):
    """Defaults of the magics of jupyter_amltrain."""

    target = Unicode(
        "", help="Where runs go; empty for the target in use (%aml_compute use NAME sets that for this notebook)."
    ).tag(config=True)
    experiment = Unicode("", help="MLflow experiment of the runs; empty for the notebook's name.").tag(config=True)
    tracking_uri = Unicode(
        "",
        help="MLflow server of a team, which gets the runs' records as well; empty for the one that"
        " MLFLOW_TRACKING_URI named when the kernel started, or none.",
    ).tag(config=True)
    timeout = Unicode("", help="Time limit of the runs, as 90, 30s, 15m, 2h, 1d; empty for none.").tag(config=True)
    environment = Unicode(
        "",
        help="Environment of runs without --env, on targets that create environments and have no default; empty for"
        " one that fits the imports.",
    ).tag(config=True)
    isolated = Bool(
        False, help="Whether a cell takes from the notebook only what --in and --with name, as with --isolated."
    ).tag(config=True)
    autolog = Bool(False, help="Whether MLflow logs in the runs for libraries that it knows, as with --autolog.").tag(
        config=True
    )
    warm = Bool(
        True,
        help="Whether a Python waits for the next run with the packages of the last one; False sets AMLTRAIN_WARM=0.",
    ).tag(config=True)
    short_errors = Bool(True, help="Show errors as one line; False shows tracebacks.").tag(config=True)
    log_lines = Int(
        0, min=0, help="Lines that %aml_runs logs shows without --tail; 0 for all (long logs are shortened)."
    ).tag(config=True)
    refresh_rate = Float(2.0, min=0.1, max=2.0, help="Maximum redraws of a run's output per second.").tag(config=True)
    progress = Bool(True, help="Show a status line of the run while --wait waits in an interactive terminal.").tag(
        config=True
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        AmlTrainError.short = self.short_errors

    @validate("timeout")
    def _validate_timeout(self, proposal: Any) -> str:
        text = str(proposal["value"]).strip()
        try:
            if text:
                flag_types.duration(text)
        except CommandError as error:
            raise TraitError(f"AMLTrain.timeout: {error}") from None
        return text

    @validate("environment")
    def _validate_environment(self, proposal: Any) -> str:
        from jupyter_amltrain.jobs.flag_values import environment_of
        from jupyter_amltrain.schema.environment import check_environment

        text = str(proposal["value"]).strip()
        try:
            check_environment(environment_of(text))
        except AmlTrainError as error:
            raise TraitError(f"AMLTrain.environment: {error}") from None
        return text

    @validate("tracking_uri")
    def _validate_tracking_uri(self, proposal: Any) -> str:
        from jupyter_amltrain.jobs import team_server

        text = str(proposal["value"]).strip()
        if error := team_server.error_of(text):
            raise TraitError(f"AMLTrain.tracking_uri: {error}")
        return text

    @validate("experiment", "target")
    def _strip(self, proposal: Any) -> str:
        return str(proposal["value"]).strip()

    @observe("short_errors")
    def _apply_short_errors(self, change: Any) -> None:
        AmlTrainError.short = bool(change["new"])

    @default("warm")
    def _default_warm(self) -> bool:
        return os.environ.get(WARM) != "0"

    @observe("warm")
    def _apply_warm(self, change: Any) -> None:
        # What a target reads of a submitter. A field of the job would be its own, and repeated with it.
        if not change["new"]:
            os.environ[WARM] = "0"
        elif os.environ.get(WARM) == "0":
            del os.environ[WARM]

    def defaults(self) -> Defaults:
        """Return the defaults for the commands."""
        timeout = flag_types.duration(self.timeout) if self.timeout else None
        return Defaults(
            target=self.target,
            experiment=self.experiment,
            timeout=timeout,
            environment=self.environment,
            isolated=self.isolated,
            tracking_uri=self.tracking_uri,
            autolog=self.autolog,
        )
