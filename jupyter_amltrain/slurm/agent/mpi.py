"""What starts the processes of MPI on several nodes: mpirun of Open MPI, else srun, where Slurm has a PMI."""

from __future__ import annotations

from typing import Dict, List, Sequence

from jupyter_amltrain.agent.distributed import launchers
from jupyter_amltrain.agent.protocol import AgentError
from jupyter_amltrain.agent.supervise.assignment import Assignment

from . import commands

KINDS = (launchers.MPI, launchers.HOROVOD)
#: Variables by which Open MPI starts its daemons as elsewhere: those of the allocation name other hosts and slots.
VARIABLES: Dict[str, str] = {"OMPI_MCA_ras": "^slurm", "PRTE_MCA_ras": "^slurm"}
#: Interfaces of Slurm to MPI, the best one first.
_PMIS = ("pmix", "pmi2")
_TIMEOUT_S = 10.0
#: Options of a step beside that of the supervisors, which has all processors and the memory of the job.
_STEP = ("--overlap", "--overcommit", "--mem=0", "--quiet")
#: Sets what a script finds in its environment with mpirun, too. The first argument is the number of processes here.
_EACH = (
    "export OMPI_COMM_WORLD_RANK=$SLURM_PROCID OMPI_COMM_WORLD_SIZE=$SLURM_NTASKS"
    ' OMPI_COMM_WORLD_LOCAL_RANK=$SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_SIZE=$1; shift; exec "$@"'
)


def launcher(task: Assignment, processes: Sequence[int]) -> List[str]:
    """Return the words that start the processes of all nodes by srun; none if mpirun starts them.

    Parameters
    ----------
    processes
        Their number on each node.
    """
    if task.job.get("environment") or launchers.has_open_mpi(task.environ):
        return []
    pmi = _pmi()
    if not pmi:
        return []  # mpirun says what is absent
    each = str(max(processes))
    ranks = ("--nodes=%d" % len(processes), "--ntasks=%d" % sum(processes), "--ntasks-per-node=%s" % each)
    return [
        *(commands.program("srun"), *_STEP, "--mpi=%s" % pmi, "--kill-on-bad-exit=1", "--distribution=block", *ranks),
        *("--chdir=%s" % task.job["cwd"], "/bin/sh", "-c", _EACH, "sh", each),
    ]


def _pmi() -> str:
    """Return the interface to MPI that Slurm can use here; empty for none. It may list one whose library is absent."""
    try:
        listed = commands.run_both("srun", "--mpi=list", timeout_s=_TIMEOUT_S).split()
    except AgentError:
        return ""
    return next((name for name in _PMIS if name in listed and _is_usable(name)), "")


def _is_usable(pmi: str) -> bool:
    try:
        commands.run("srun", *_STEP, "--nodes=1", "--ntasks=1", "--mpi=%s" % pmi, "true",
                     timeout_s=_TIMEOUT_S)  # fmt: skip
    except AgentError:
        return False
    return True
