"""``agent.pyz rank`` if the agent itself is broken: runs the command alone.

Telemetry may fail here; the training must not.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import List, Match


def main(argv: List[str]) -> int:
    """Body of ``agent.pyz rank``; see `entry`."""
    try:
        from . import entry

        return entry.main(argv)
    except Exception as error:  # an internal error must not fail the job
        sys.stderr.write("amltrain: %s: %s; the job runs without telemetry\n" % (type(error).__name__, error))
        sys.stderr.flush()
    return _exec_command(argv[0])


def _exec_command(path: str) -> int:
    """Replace this process by the command of the job."""
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
    """Same as `job.command`, which may be the broken part."""

    def path(match: Match[str]) -> str:
        if match.group(1) == "search_space":
            return os.environ.get("AML_SWEEP_" + match.group(2), match.group(0))
        kind = "INPUT" if match.group(1) == "inputs" else "OUTPUT"
        return os.environ.get("AML_%s_%s" % (kind, match.group(2).upper()), match.group(0))

    pattern = re.compile(r"\$\{\{\s*(inputs|outputs|search_space)\.([\w.-]+)\s*\}\}")
    return [sys.executable if word == "@python" else pattern.sub(path, str(word)) for word in words]
