"""Names of what a workspace has: ``azureml:NAME:VERSION``, the syntax of ``az ml`` for data, environments and computes.

This is the only place outside of :mod:`jupyter_amltrain.azure` that knows it.
"""

from __future__ import annotations

#: Prefix of a name with a version, ``azureml:digits:1``, and of a compute in a job file.
ASSET = "azureml:"
#: Prefix of an address within a workspace or a registry: ``azureml://datastores/NAME/paths/...``.
ADDRESS = "azureml://"
#: Address of a folder in a workspace's own store, for examples.
STORE_ADDRESS = f"{ADDRESS}datastores/workspaceblobstore/paths/..."
#: Prefix of the variables with the values of a trial, which programs read.
SWEEP_VARIABLE = "AZUREML_SWEEP_"


def is_versioned(text: str) -> bool:
    """Whether a text is a name with the prefix, ``azureml:NAME:VERSION``, and not an address."""
    return text.startswith(ASSET) and not text.startswith(ADDRESS)


def prefixed(name: str) -> str:
    """Return a name with the prefix; one that has it stays."""
    return name if name.startswith(ASSET) else f"{ASSET}{name}"
