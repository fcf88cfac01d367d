"""What a sweep takes from its trials when it ends: the values of the best one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from jupyter_amltrain.agent.protocol import OUTPUTS
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.schema.run import split_handle
from jupyter_amltrain.state_dir import write_json
from jupyter_amltrain.sweeps.trial import Best, Trial

#: File with the best trial, besides the values of ``--out``.
BEST = "best-trial.json"


async def silence_reason(kernel: Controller, trial: Trial, metric: str) -> str:
    """Return why a trial without values of the primary metric ends the sweep."""
    logged: list[str] = []
    with contextlib.suppress(AmlTrainError):  # deleted in the meantime
        entry = await kernel.refresh_run(await kernel.find(trial.handle))
        logged = [*entry.metrics.metrics, *entry.run.outputs]
    names = f"it logged {', '.join(sorted(logged)[:8])}" if logged else "it logged no metric"
    return (
        f"trial {trial.number} completed without a value of {metric!r}; {names}."
        f" Log it with mlflow.log_metric({metric!r}, value), or name another metric in --goal"
    )


async def return_outputs(kernel: Controller, folder: Path, names: Sequence[str], best: Best, metric: str) -> None:
    """Make the output values of the best trial those of the sweep, whose folder is `folder`."""
    target, run_id = split_handle(best.handle)
    for name in names:
        try:
            data = await kernel.backend(target).files.read(run_id, f"{OUTPUTS}/{name}.json")
        except AmlTrainError as error:  # the sweep is still complete
            print(f"--out {name} of {best.handle} cannot be read: {error}", flush=True)
            continue
        if data:
            (folder / OUTPUTS / f"{name}.json").write_bytes(data)
    found = {"run": best.handle, "params": best.params, "metric": metric, "value": best.value}
    write_json(folder / OUTPUTS / BEST, found)
