"""Submits of scripts to Slurm: the variables of a job travel in the environment of sbatch."""

from __future__ import annotations

import os
from typing import Mapping

from jupyter_amltrain.agent.protocol import MARK, AgentError

from . import commands
from .allocation import GPU_VARIABLES

#: Variables of an allocation in which the kernel itself may run: its jobs are others.
_ALLOCATION = ("SLURM_", "SBATCH_", "PMI_", "PMIX_")
_CLUSTER_NAMES = ("SLURM_CONF", "SLURM_CLUSTERS")


def submit(script: str, variables: Mapping[str, str], secrets: Mapping[str, str], *options: str) -> str:
    """Submit a script and return the id of its job.

    The variables of the job, with its secrets, travel in the environment of sbatch: neither a file nor a command line
    has them.

    Raises
    ------
    AgentError
        Slurm refuses the job, or does not answer.
    """
    environ = {
        name: value for name, value in variables.items() if name in _CLUSTER_NAMES or not name.startswith(_ALLOCATION)
    }
    for name in _CLUSTER_NAMES:
        if name in os.environ:
            environ.setdefault(name, os.environ[name])
    if environ.pop(MARK, ""):  # from a job, which would take the new one for its own process, and whose GPUs are others
        for name in GPU_VARIABLES:
            environ.pop(name, None)
    environ.update(secrets)
    environ.setdefault("PATH", os.environ.get("PATH", os.defpath))
    try:
        output = commands.run("sbatch", "--parsable", *options, text=script, environ=environ)
    except commands.CommandRefused as error:
        raise AgentError("SubmitError", "Slurm refuses the job: %s." % error.reason, error.code) from None
    job = output.strip().splitlines()[-1].partition(";")[0] if output.strip() else ""
    if not job.isdigit():
        raise AgentError("SubmitError", "sbatch has answered something else than a job's id: %r." % output[:200])
    return job
