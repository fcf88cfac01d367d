"""``runs send``: send records to the team's MLflow server that it has refused, or that still wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_amltrain.commands.parser import RUN, Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.tracking import team_ledger

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.schema.run import Run


def _flags(parser: Parser) -> None:
    parser.flag("run", nargs="*", help=f"{RUN}, or last; default all of this folder that the server does not have")


def _send(args: argparse.Namespace, context: Context) -> Result:
    entries = send(args.run)
    rows = [{"handle": one["handle"], "state": one["state"], "error": one.get("error", "")} for one in entries]
    text = "\n".join(map(_line, entries)) or "No run of this folder waits for a team's server."
    return Result(text, rows, exit_code=int(any(one["state"] != team_ledger.SENT for one in entries)))


def send(names: Sequence[str]) -> list[team_ledger.Entry]:
    """Send runs to the servers that were named when they were submitted; without names all that are not there.

    Returns
    -------
    list
        The entries of the ledger after an attempt, in the order of the names.

    Raises
    ------
    CommandError
        A run is not to be sent, or has not ended.
    """
    from jupyter_amltrain import api
    from jupyter_amltrain.kernel.session import controller

    if names:
        runs = [api.attach(name).run for name in names]
        wanted = [(run.project, _entry(run)["run"]) for run in runs]
    else:
        folder = working_folder()
        wanted = [(folder, entry["run"]) for entry in team_ledger.unsent(folder)]
    kernel, found = controller(), dict[str, team_ledger.Entry]()
    for project in dict.fromkeys(project for project, _ in wanted):
        run_ids = [run_id for place, run_id in wanted if place == project]
        found |= kernel.loop.call(kernel.team.send(project, run_ids), None)  # models may have gigabytes
    return [found[run_id] for run_id in dict.fromkeys(run_id for _, run_id in wanted)]


def _entry(run: Run) -> team_ledger.Entry:
    if entry := team_ledger.entry_of(run.project, run.tracking_id):
        return entry
    if run.spec.tracking_uri:
        raise CommandError(f"{run.handle} is not recorded yet: it is sent when it has ended.", code="team.unrecorded")
    raise CommandError(
        f"{run.handle} is not for a team's server: none was named when it was submitted.",
        hint='For later runs: %config AMLTrain.tracking_uri = "https://..."',
        code="team.none",
    )


def _line(entry: team_ledger.Entry) -> str:
    if page := team_ledger.page_of(entry):
        return f"{entry['handle']} is at {page}"
    error = entry.get("error") or "an earlier run of the same server comes first"
    if entry["state"] == team_ledger.REFUSED:
        return f"{entry['handle']} was not sent: {error}"
    return f"{entry['handle']} waits, and is tried again while a kernel of this project runs: {error}"


SEND = Command(
    verb="send",
    summary="Send runs to the team's MLflow server: refused ones again, waiting ones now.",
    run=_send,
    flags=_flags,
    json=True,
    examples=Examples(("%aml_runs send digits-k3f9x", "%aml_runs send"), ("amltrain runs send",)),
)
