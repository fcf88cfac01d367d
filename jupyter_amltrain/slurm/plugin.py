"""What this folder adds to the package, for its registry of plug-ins."""

from __future__ import annotations

from jupyter_amltrain.plugins import BackendKind

_HERE = "jupyter_amltrain.slurm"

KIND = BackendKind(
    targets=f"{_HERE}.target:SlurmTarget",
    backend=f"{_HERE}.backend:SlurmBackend",
    hint="pip install asyncssh",
    variants=(("slurm_login", f"{_HERE}.ssh_backend:SlurmLoginBackend"),),
    parts=(("agent", f"{_HERE}.agent:slurm"),),
    offer="a Slurm cluster (%aml_compute attach NAME --kind slurm)",
)
