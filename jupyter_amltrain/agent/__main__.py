"""Entry point of ``agent.pyz``: ``dispatch``, ``call``, ``monitor``, ``node``, ``idle``, ``rank``,
``guest``: :data:`_USAGE`."""

from __future__ import annotations

import json
import sys
from typing import List

_USAGE = (
    "usage: agent.pyz dispatch QUEUE HOME | agent.pyz call OP [HOME [QUEUE]] < payload.json | agent.pyz monitor FOLDER"
    " | agent.pyz node HOME QUEUE < node.json | agent.pyz idle HOME SECONDS"
    " | agent.pyz rank JOBFILE [in:NAME=PATH ...] [out:NAME=PATH ...] | agent.pyz guest NAME ..."
)


def main(argv: List[str]) -> int:
    """Run one of the commands and return the exit code."""
    if len(argv) == 3 and argv[0] == "dispatch":
        from .queue.daemon import detach

        return detach(argv[1], argv[2])
    if len(argv) == 2 and argv[0] == "monitor":
        from .telemetry.monitor_process import detach as detach_monitor

        return detach_monitor(argv[1])
    if len(argv) == 3 and argv[0] == "node":
        from .distributed.node_connector import detach as detach_node

        return detach_node(argv[1], argv[2])
    if len(argv) == 3 and argv[0] == "idle":
        from .idle import main as idle_main

        return idle_main(argv[1:])
    if len(argv) >= 2 and argv[0] == "rank":
        from .azure.fallback import main as rank_main

        return rank_main(argv[1:])
    if len(argv) >= 2 and argv[0] == "guest":
        from . import guests

        return int(guests.part(argv[1]).main(argv[2:]))
    if 2 <= len(argv) <= 4 and argv[0] == "call":
        from .calls import call, default_home

        text = sys.stdin.buffer.read().decode("utf-8", "replace")
        try:
            payload = json.loads(text) if text.strip() else {}
        except ValueError as error:
            payload = None
            reply = {"error": {"type": "ProtocolError", "message": "The payload is not JSON: %s" % error}}
        if payload is not None:
            home = argv[2] if len(argv) > 2 else default_home()
            reply = call(argv[1], payload, home, argv[3] if len(argv) > 3 else None)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
        return 1 if "error" in reply else 0
    sys.stderr.write(_USAGE + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
