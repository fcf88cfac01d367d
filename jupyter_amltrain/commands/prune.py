"""``runs prune``: delete the folders of old runs, all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import AmlTrainError, CommandError, ConfirmationNeeded, UnrecordedRun
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.kernel.models import PROJECT_REGISTRY
from jupyter_amltrain.schema.run import Run, RunHandle, RunState
from jupyter_amltrain.text import ago, bytes_text, table

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.kernel.controller import Controller

#: States that ``--state`` selects.
STATES = tuple(state.value for state in RunState if state.terminal)
#: Runs of the list that is shown, and listings of folders at the same time.
MAX_SHOWN, MAX_LISTINGS = 30, 8
#: Seconds to wait for the sizes of all folders.
SIZES_TIMEOUT_S = 600.0


class PruneRules(NamedTuple):
    """What is deleted: ended runs that meet every condition.

    Attributes
    ----------
    older
        Minimum age in seconds; ``None`` for any.
    keep_last
        Number of runs on each target that stay, the newest ones.
    states
        States; empty for all ended ones.
    target
        Name of the only target; empty for all whose runs are folders of this user.
    """

    older: float | None = None
    keep_last: int = 0
    states: tuple[str, ...] = ()
    target: str = ""


class Candidate(NamedTuple):
    """A run that would be deleted, with the bytes of its folder."""

    run: Run
    bytes: int


class PrunePlan(NamedTuple):
    """Runs to delete, oldest first, and the number of runs that stay because one of their models is registered."""

    candidates: list[Candidate]
    with_model: int

    @property
    def bytes(self) -> int:
        """Size of all folders."""
        return sum(candidate.bytes for candidate in self.candidates)


def _state(text: str) -> str:
    if text not in STATES:
        raise CommandError(
            f"--state: expected {', '.join(STATES)}, got {text!r}.",
            hint="Example: --state failed",
            code="flag.value",
            field="states",
        )
    return text


def _flags(parser: Parser) -> None:
    parser.flag(
        "--older", metavar="TIME", type=flag_types.duration, help="only runs older than this: 12h, 30d",
        samples=("7d", "30d", "90d"),
    )  # fmt: skip
    parser.flag(
        "--keep-last", metavar="N", type=flag_types.count, default=0, help="keep the N newest runs of each target",
        samples=("20", "100"),
    )  # fmt: skip
    parser.flag(
        "--state", metavar="|".join(STATES), type=_state, repeated=True, offers=STATES, field="states",
        help="only runs that ended so",
    )  # fmt: skip
    parser.flag("--target", metavar="NAME", help="only runs of this target; required for runs at a service")
    parser.flag("-f", "--force", "-y", "--yes", action="store_true", help="delete without asking")


def _prune(args: argparse.Namespace, context: Context) -> Result:
    rules = PruneRules(args.older, args.keep_last, tuple(args.state), args.target or "")
    if rules.older is None and not rules.keep_last and not rules.states:
        raise CommandError(
            "prune: say which runs to delete.",
            hint=f"Example: {context.prog} prune --older 30d --keep-last 20",
            code="prune.no_rule",
        )
    plan = prune_plan(rules)
    rows = [
        {"handle": run.handle, "state": run.status.state.value, "created": run.created, "bytes": size}
        for run, size in plan.candidates
    ]
    if not plan.candidates:
        return Result(f"No run to delete.{_kept_text(plan)}", {"deleted": [], "bytes": 0, "errors": {}})
    if not args.force:
        raise ConfirmationNeeded(
            plan_text(plan),
            hint=f"To delete: {_line(args, context.prog)} --yes",
            code="confirm.prune",
            details={"runs": rows},
        )
    deleted, errors = prune(plan, context.notify)
    size = sum(candidate.bytes for candidate in plan.candidates if candidate.run.handle in deleted)
    text = f"Deleted {_count(deleted)}, {bytes_text(size)}. The MLflow records are kept.{_kept_text(plan)}"
    notice = "\n".join(f"{handle}: {error}" for handle, error in errors.items())
    data = {"deleted": sorted(deleted), "bytes": size, "errors": errors}
    return Result(text, data, notice=notice, exit_code=1 if errors else 0)


def _line(args: argparse.Namespace, prog: str) -> str:
    """Return the line of the command, without ``--yes``."""
    words = [prog, "prune"]
    if args.older is not None:
        words += ["--older", flag_types.duration_text(args.older)]
    if args.keep_last:
        words += ["--keep-last", str(args.keep_last)]
    words += [word for state in args.state for word in ("--state", state)]
    return " ".join([*words, *(("--target", args.target) if args.target else ())])


def _count(runs: Collection[Any]) -> str:
    return "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def _kept_text(plan: PrunePlan) -> str:
    if not plan.with_model:
        return ""
    kept = "1 run has" if plan.with_model == 1 else f"{plan.with_model} runs have"
    return f" {kept} a registered model and will not be deleted."


def plan_text(plan: PrunePlan) -> str:
    """Return the runs that would be deleted, with their sizes, the largest first."""
    largest = sorted(plan.candidates, key=lambda candidate: -candidate.bytes)
    rows = [
        [run.handle, run.status.state.value, ago(run.created), bytes_text(size)] for run, size in largest[:MAX_SHOWN]
    ]
    rest = largest[MAX_SHOWN:]
    if rest:
        rows.append([f"{len(rest)} more", "", "", bytes_text(sum(candidate.bytes for candidate in rest))])
    return (
        f"{table(['run', 'state', 'submitted', 'size'], rows)}\n"
        f"This permanently deletes the folders of {_count(plan.candidates)}, {bytes_text(plan.bytes)}: logs, outputs"
        f" and all other files. The MLflow records are kept.{_kept_text(plan)}"
    )


def prune_plan(rules: PruneRules) -> PrunePlan:
    """Return the runs that rules select; a run that lives, is damaged, or has a registered model is never one."""
    from jupyter_amltrain.kernel.session import controller

    own = controller()

    async def get() -> PrunePlan:
        runs = await own.runs(rules.target or None)
        selected = select(runs, rules, time.time(), lambda name: _is_pruned_by_default(own, name))
        registered = await _registered(own, selected)
        limit = asyncio.Semaphore(MAX_LISTINGS)

        async def candidate(run: Run) -> Candidate:
            async with limit:
                try:
                    files = await own.backend(run.target).files.list(run.run_id)
                except (AmlTrainError, OSError):
                    files = ()
            return Candidate(run, sum(file.size for file in files))

        free = [run for run in selected if run.handle not in registered]
        candidates = await asyncio.gather(*map(candidate, free))
        return PrunePlan(list(candidates), len(selected) - len(free))

    return own.loop.call(get(), SIZES_TIMEOUT_S)


def select(runs: Sequence[Run], rules: PruneRules, now: float, is_included: Callable[[str], bool]) -> list[Run]:
    """Return the runs that rules select, oldest first.

    Parameters
    ----------
    runs
        Runs, newest first.
    is_included
        Whether runs of a target are selected without naming it.
    """
    seen: dict[str, int] = {}
    selected = []
    for run in runs:
        seen[run.target] = seen.get(run.target, 0) + 1
        if seen[run.target] <= rules.keep_last or not run.status.state.terminal or run.damaged or not run.reachable:
            continue
        if rules.older is not None and now - run.created < rules.older:
            continue
        if rules.states and run.status.state.value not in rules.states:
            continue
        if rules.target or is_included(run.target):
            selected.append(run)
    return selected[::-1]


def _is_pruned_by_default(own: Controller, target: str) -> bool:
    """Whether the runs of a target are folders of this user, as opposed to jobs of a service that others see."""
    try:
        return not getattr(own.backend(target), "keeps_history", False)
    except AmlTrainError:
        return False


async def _registered(own: Controller, runs: Sequence[Run]) -> set[RunHandle]:
    """Return the handles of runs that have created a registered model.

    Raises
    ------
    AmlTrainError
        A registry cannot be read: then it is not known what may be deleted.
    """
    found: set[str] = set()
    places = {
        (run.project, own.workspaces.of_target(own.backend(run.target).target) or PROJECT_REGISTRY) for run in runs
    }
    for project, workspace in places:
        if project or workspace != PROJECT_REGISTRY:
            found |= {row.run for row in await own.models.list(project, workspace)}
    return {run.handle for run in runs if run.handle in found or run.run_id in found}


def prune(plan: PrunePlan, notify: Callable[[str], Any]) -> tuple[set[RunHandle], dict[RunHandle, str]]:
    """Delete the runs of a plan; return those that were deleted, and the errors of the others."""
    from jupyter_amltrain import api

    deleted, errors = set[RunHandle](), dict[RunHandle, str]()
    reported = time.monotonic()
    for number, (run, _) in enumerate(plan.candidates):
        try:
            api.attach(run.handle).delete()
            deleted.add(run.handle)
        except UnrecordedRun as error:  # what it has logged would be lost
            errors[run.handle] = (
                f"{error.message} To delete it anyway: %aml_runs delete --force --without-mlflow {run.handle}"
            )
        except AmlTrainError as error:
            errors[run.handle] = str(error)
        if time.monotonic() - reported > 2.0:
            reported = time.monotonic()
            notify(f"{number + 1} of {len(plan.candidates)} runs")
    return deleted, errors


PRUNE = Command(
    verb="prune",
    summary="Delete the folders of old runs; lists them with their sizes first.",
    run=_prune,
    flags=_flags,
    json=True,
    examples=Examples(
        ("%aml_runs prune --older 30d --keep-last 20", "%aml_runs prune --state failed"),
        ("amltrain runs prune --older 30d --keep-last 20 --yes",),
    ),
)
