"""Settings of a queue, in its folder: they hold at once, also for jobs that wait."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from .protocol import SCHEMA, AgentError, read_json, write_json

FILE = "settings.json"
#: Submitter's environment variable that stands for the flag of its submits.
SHARE_VARIABLE = "AMLTRAIN_SHARE_GPUS"


def load(queue: str) -> Dict[str, Any]:
    """``{"share_gpus": bool}``: whether jobs may be given GPUs on which others compute."""
    try:
        stored = read_json(os.path.join(queue, FILE), "Queue folder") or {}
    except (AgentError, OSError):
        stored = {}
    return {"share_gpus": stored.get("share_gpus") is True}


def change(queue: str, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Store settings; all of them as they are now.

    Raises
    ------
    AgentError
        ``CommandError`` for a setting or value that there is not.
    """
    for name, value in values.items():
        if name != "share_gpus" or not isinstance(value, bool):
            raise AgentError("CommandError", "The queue has no setting %s=%r. Try: --share-gpus yes" % (name, value))
    settings = dict(load(queue), **values)
    write_json(os.path.join(queue, FILE), dict(settings, schema=SCHEMA))
    return settings


def asks_to_share(environ: Mapping[str, str]) -> bool:
    """Whether a submitter's environment asks to share GPUs (``AMLTRAIN_SHARE_GPUS=1``)."""
    return environ.get(SHARE_VARIABLE, "") not in ("", "0")
