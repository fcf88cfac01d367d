"""What an environment passes on: of a submitter to the dispatcher, of a kernel to a job."""

from __future__ import annotations

import re
from typing import Dict, Mapping

from ..protocol import MARK

#: What the dispatcher itself, the driver library and systemd's tools read.
_NAMES = frozenset(
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
_PREFIXES = ("LC_", "XDG_", "AMLTRAIN_", "CUDA_", "NVIDIA_", "SLURM_", "JUPYTERHUB_")
_SECRET = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|JWT", re.IGNORECASE)

#: What ipykernel sets for its own process, as the notebook's way to show text.
_KERNELS = {
    "FORCE_COLOR": "1",
    "CLICOLOR": "1",
    "CLICOLOR_FORCE": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TERM": "xterm-color",
}
#: How a kernel talks to its server; the last is a secret.
_SERVERS = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "JPY_API_TOKEN")
_BACKENDS = ("module://matplotlib_inline", "module://ipykernel")


def for_dispatcher(environ: Mapping[str, str]) -> Dict[str, str]:
    """What a dispatcher may keep of the environment of whoever happens to start it.

    It lives for days, everybody with the user's rights reads its environment in
    ``/proc``, and each guardian inherits it: nothing of the submitter's that it does
    not need, and nothing whose name looks like a secret.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }
    # Who started it may be a job, and its GPUs are not those of later submitters.
    for name in (MARK, "CUDA_VISIBLE_DEVICES"):
        kept.pop(name, None)
    return kept


def without_kernel(environ: Mapping[str, str]) -> Dict[str, str]:
    """A submitter's environment without what a kernel has set for itself."""
    kept = {name: value for name, value in environ.items() if name not in _SERVERS and _KERNELS.get(name) != value}
    if kept.get("MPLBACKEND", "").startswith(_BACKENDS):
        del kept["MPLBACKEND"]
    return kept
