"""Hook in a job's Python by which ``rich`` writes into the log of the run as on a terminal: colors, bars that move.

The log is a file, for which ``rich`` draws a bar once, at its end. But it is shown as a terminal shows it.
``supervise/job_hooks.py`` puts this file into a job's Python, where ``supervise/import_hook.py`` runs :func:`imported`
when the script itself has imported ``rich.console`` or ``rich.live``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any

#: Variables by which a person has decided.
_DECIDED = ("TTY_COMPATIBLE", "FORCE_COLOR", "NO_COLOR")
#: How often a live display is written at most: ten times a second, as on a terminal, would be megabytes an hour.
_PER_SECOND = 2.0


def imported(module: Any) -> None:
    """Change the class ``Console`` or ``Live`` of a module."""
    if module.__name__ == "rich.live":
        return _slow_down(module.Live)
    kind, own = module.Console, module.Console.is_terminal

    def is_terminal(console: Any) -> bool:
        """Whether the console writes into a terminal, or into the log of this run."""
        return bool(own.fget(console)) or _writes_into_log(console)

    kind.is_terminal = property(is_terminal)


def _slow_down(live: Any) -> None:
    begin = live.start

    def start(self: Any, refresh: bool = False) -> None:
        if _writes_into_log(self.console):
            self.refresh_per_second = min(self.refresh_per_second, _PER_SECOND)
        begin(self, refresh)

    live.start = start


def _writes_into_log(console: Any) -> bool:
    import os

    try:
        if console.is_jupyter or console._force_terminal is not None or any(map(console._environ.get, _DECIDED)):
            return False
        # A process whose output another one reads has a pipe there.
        log = os.path.join(os.path.dirname(os.environ["AMLTRAIN_DISPLAYS"]), "log")
        own = os.fstat(console.file.fileno())
        return any(os.path.samestat(own, entry.stat()) for entry in os.scandir(log))
    except Exception:  # no file of the system, or no folder of a run
        return False
