"""``agent.pyz rank`` where the agent itself is broken: then the command runs alone.

What can fail here is telemetry; what must not is the training.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import List, Match


def main(argv: List[str]) -> int:
    """Body of ``agent.pyz rank``; see `service_rank`."""
    try:
        from . import entry

        return entry.main(argv)
    except Exception as error:  # a fault of ours must not cost the job
        sys.stderr.write("amltrain: %s: %s; the job runs without telemetry\n" % (type(error).__name__, error))
        sys.stderr.flush()
    return _replaced(argv[0])


def _replaced(path: str) -> int:
    """Become the command of the job, as far as it can be read."""
    with open(path, "rb") as file:
        job = json.loads(file.read().decode())
    words = _command(job["argv"])
    env = dict(os.environ, PYTHONUNBUFFERED="1", **{str(key): str(value) for key, value in job.get("env", {}).items()})
    try:
        os.chdir(job.get("cwd") or ".")
        os.execvpe(words[0], words, env)
    except OSError as error:
        sys.stderr.write("amltrain: the job cannot be started: %s\n" % (error.strerror or error))
    return 127


def _command(words: List[str]) -> List[str]:
    """As `service_job.command`, which may be what is broken."""

    def path(found: Match[str]) -> str:
        kind = "INPUT" if found.group(1) == "inputs" else "OUTPUT"
        return os.environ.get("AML_%s_%s" % (kind, found.group(2).upper()), found.group(0))

    pattern = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.-]+)\s*\}\}")
    return [sys.executable if word == "@python" else pattern.sub(path, str(word)) for word in words]
