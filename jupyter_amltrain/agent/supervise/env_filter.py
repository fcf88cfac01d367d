"""Filters for environments passed from a submitter to the dispatcher and from a kernel to a job."""

from __future__ import annotations

import re
from typing import Dict, Mapping

from ..protocol import MARK

#: Variables that the dispatcher, the driver library and the systemd tools read.
_DISPATCHER_NAMES = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TMP",
        "TEMP",
        "LD_LIBRARY_PATH",
        "SYSTEMROOT",
        "WINDIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "KUBERNETES_SERVICE_HOST",
        "container",
    ]
)
_DISPATCHER_PREFIXES = ("LC_", "XDG_", "AMLTRAIN_", "CUDA_", "NVIDIA_", "SLURM_", "JUPYTERHUB_")
_SECRET_NAME = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|JWT", re.IGNORECASE)

#: Variables that ipykernel sets for its own process, to format text for the notebook.
_KERNEL_VALUES = {
    "FORCE_COLOR": "1",
    "CLICOLOR": "1",
    "CLICOLOR_FORCE": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TERM": "xterm-color",
}
#: Variables for the connection between a kernel and its server; the last one is a secret.
_SERVER_NAMES = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "JPY_API_TOKEN")
_KERNEL_BACKENDS = ("module://matplotlib_inline", "module://ipykernel")


def for_dispatcher(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the part of the environment of its starter that a dispatcher keeps.

    The dispatcher runs for days, every process of the user can read its environment in
    ``/proc``, and each guardian inherits it. So it keeps only variables that it needs,
    and none whose name looks like a secret.
    """
    filtered = {
        name: value
        for name, value in environ.items()
        if (name in _DISPATCHER_NAMES or name.startswith(_DISPATCHER_PREFIXES)) and not _SECRET_NAME.search(name)
    }
    # The starter may be a job, whose GPUs must not restrict later submitters.
    for name in (MARK, "CUDA_VISIBLE_DEVICES"):
        filtered.pop(name, None)
    return filtered


def without_kernel(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of a submitter without variables that a kernel has set for itself."""
    filtered = {
        name: value
        for name, value in environ.items()
        if name not in _SERVER_NAMES and _KERNEL_VALUES.get(name) != value
    }
    if filtered.get("MPLBACKEND", "").startswith(_KERNEL_BACKENDS):
        del filtered["MPLBACKEND"]
    return filtered
