"""``runs again``: submit the job of a run once more, with the code that the run had."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.backends.run_files import RunFiles
from jupyter_amltrain.commands.parser import Parser, run_flag
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.inside.pokes import repeat_note
from jupyter_amltrain.jobs import environments, flag_types
from jupyter_amltrain.jobs.launch import is_downloaded
from jupyter_amltrain.jobs.origin import has_commit, origin_of, top_folder
from jupyter_amltrain.jobs.params import with_params
from jupyter_amltrain.jobs.snapshot import digest_of, of_script, of_yaml
from jupyter_amltrain.schema import inputs as references
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec, validated
from jupyter_amltrain.schema.provenance import Difference, Provenance, differences
from jupyter_amltrain.schema.run import Run

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.run import TrackedRun

#: Maximum number of differences that the note of a repeated run names.
MAX_NAMED = 6


def resubmit(run: Run, files: RunFiles) -> tuple[JobSpec, dict[str, str]]:
    """Return the job of `run` to submit again, and the values of its secrets. Blocks on disk, target and keyring.

    The job uses the code of the run: if its files have changed since, the run's own copy.

    Parameters
    ----------
    files
        The files of the run.

    Raises
    ------
    CommandError
        The code has changed and no copy of it exists, or a secret has no value.
    """
    from jupyter_amltrain.commands.submit import secret

    check_repeatable(run)
    spec = with_code_of(run, run.spec, files)
    return spec, {name: secret(name) for name in spec.secrets}


def check_repeatable(run: Run) -> None:
    """Raise :class:`CommandError` for a run whose job cannot be read."""
    if run.damaged:
        raise CommandError(f"{run.handle} cannot run again: {run.error}", code="again.damaged")
    if run.partial:  # its folder was deleted after the listing
        raise CommandError(f"{run.handle} cannot run again: its job can no longer be read.", code="again.damaged")


def with_code_of(run: Run, spec: JobSpec, files: RunFiles) -> JobSpec:
    """Return `spec` with the code that a run had, as a job of its own. Blocks on disk and target.

    Parameters
    ----------
    spec
        The job of the run, or one that differs in its parameters and folders.

    Raises
    ------
    CommandError
        The code has changed and no copy of it exists.
    """
    spec = msgspec.structs.replace(spec, parent="", code_dir="", repeats=str(run.handle))
    original, names = _snapshot_of(files)
    reason = "has changed"
    try:
        then = msgspec.structs.replace(run.spec, source=spec.source, root=spec.root, notebook_dir=spec.notebook_dir)
        current = "" if run.spec.code_dir else _current_digest(then, original)
    except (AmlTrainError, OSError):
        current, reason = "", "can no longer be read"
    if current and original in ("", current):
        return spec
    if (copy := files.local_copy("source")) is not None and os.listdir(copy):
        try:
            if names and files.have_modes and digest_of(copy, names) != original:
                reason = "was changed by the run itself"
            else:
                return msgspec.structs.replace(spec, code_dir=copy)
        except OSError:
            reason = "is not complete in the run's folder"
    raise _changed(run, reason)


def _changed(run: Run, reason: str) -> CommandError:
    spec = run.spec
    if spec.script:
        code = (
            f"the folder {spec.source}" if spec.source else f"a module that its cell imports from {spec.notebook_dir}"
        )
        hint = "Run its cell to submit the current code."
    else:
        path = os.path.join(spec.code_root, spec.script_name)
        code = f"{path}, or a module that it imports,"
        hint = f"To submit the current code: %aml_submit {path}"
    return CommandError(
        f"{run.handle} cannot run again as it was: {code} {reason}.", hint=hint, code="resubmit.changed"
    )


def _current_digest(spec: JobSpec, original: str) -> str:
    """Return the digest of the files that the run would have now; `original` is that of the files that it had."""
    if spec.job_type:  # a service's job has the digest of the file alone: its SDK sends the code
        return next((digest for code in (True, False) if (digest := of_yaml(spec, code=code).digest) == original), "")
    return of_script(spec).digest


def _snapshot_of(files: RunFiles) -> tuple[str, list[str]]:
    """Return the digest and the names of the files that the run had; empty where they are unknown."""
    try:
        snapshot = json.loads(files.read("job.json"))["snapshot"]
        return str(snapshot["digest"]), [str(name) for name in snapshot.get("names") or ()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", []


# ---- changes


def for_target(spec: JobSpec, *, takes_images: bool, keeps_image: bool = False) -> JobSpec:
    """Return the job of a run without what was chosen for its target: interpreter, and a default environment.

    Parameters
    ----------
    takes_images
        Whether the new target is of a service. On others an environment of a service is left out, with a note.
    keeps_image
        Whether both targets are machines with our agent: then an image is used again, with the Docker engine there.
    """
    environment, notes = spec.environment, spec.notes
    if environment.chosen:
        environment = Environment()
    elif environment.kernel:  # the packages are looked up again
        environment = Environment(kernel=True) if takes_images else Environment()
    elif (
        not takes_images
        and (named := environment.name or environment.image or environment.build)
        and not (keeps_image and environment.image)
        and not (spec.job_type and environments.is_built(spec))
    ):
        environment, notes = Environment(), (*notes, f"The environment {named} of the repeated run is not used here.")
    return msgspec.structs.replace(spec, python="", environment=environment, notes=notes)


def relocated(spec: JobSpec, then: Provenance, here: str) -> JobSpec:
    """Return the job of a run with the paths that it has in the folder `here`. Blocks on git.

    In a clone of the run's repository its folder and its data are those of the clone. Where the folder of the run does
    not exist any more, `here` takes its place. Everything else keeps its path.
    """
    old = spec.notebook_dir or spec.project
    new = ""
    if then.git is not None and then.git.commit and has_commit(here, then.git.commit):
        prefix, new_top = then.git.prefix.rstrip("/"), top_folder(here)
        old_top = old.removesuffix(prefix).rstrip("/") if old.endswith(prefix) else ""
        if old_top and new_top and os.path.isdir(os.path.join(new_top, prefix)):
            return _moved(spec, old_top, new_top)
    if old and not os.path.isdir(old):
        new = here
    return _moved(spec, old, new) if new else spec


def _moved(spec: JobSpec, old: str, new: str) -> JobSpec:
    """Return the job with the paths below one folder moved to another one."""

    def path(text: str) -> str:
        if text == old or text.startswith(old.rstrip("/") + "/"):
            return os.path.normpath(os.path.join(new, os.path.relpath(text, old)))
        return text

    inputs = {
        name: msgspec.structs.replace(data, path=path(data.path)) if data.local else data
        for name, data in spec.inputs.items()
    }
    return msgspec.structs.replace(
        spec,
        notebook_dir=path(spec.notebook_dir),
        project=path(spec.project),
        source=path(spec.source) if spec.source else spec.source,
        root=path(spec.root) if spec.root else "",
        inputs=inputs,
    )


# ---- what differs


def provenance_here(spec: JobSpec, python: str) -> Provenance:
    """Return what a job would have here and now: git, data, and the packages of `python`. Blocks on git and disk.

    Parameters
    ----------
    python
        Interpreter on this machine; empty if the job runs elsewhere.
    """
    from jupyter_amltrain.agent.supervise.provenance_file import describe

    found = origin_of(spec).provenance
    facts = describe(python) if python else {}
    return msgspec.structs.replace(
        found,
        python=str(facts.get("python", {}).get("version", "")),
        packages=dict(facts.get("packages", {})),
    )


def difference_note(handle: str, found: list[Difference]) -> str:
    """Return one sentence about facts that were different in a run; empty if there is none."""
    if not found:
        return ""

    def text(one: Difference) -> str:
        then, now = ("none" if value is None else value for value in one.values)
        name = one.name if one.group == "packages" else f"{one.group} {one.name}"
        return f"{name} {then} then, {now} now"

    named = "; ".join(text(one) for one in found[:MAX_NAMED])
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"Not as in {handle}: {named}{more}."


# ---- the command


def _flags(parser: Parser) -> None:
    run_flag(parser)
    parser.flag("--target", metavar="NAME", help="where to run; default the target of the run")
    parser.flag(
        "--param", metavar="K=V", type=flag_types.param, repeated=True, field="params", help="another value of K"
    )
    parser.flag("--name", help="display name; default that of the run")
    parser.flag("--wait", action="store_true", help="wait until the run ends; a failed run is an error")
    if parser.magic:
        parser.flag("--as", dest="as_name", metavar="NAME", type=flag_types.variable, help="assign the run to NAME")


def _again(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.commands.submit import SubmitRequest, send

    original = api.attach(args.run)
    typed: Callable[[Any], Any] = references.restore_references if context.magic else lambda value: value
    spec = repeated_spec(original, typed(dict(args.param)), target=args.target or "", here=os.getcwd())
    if args.name is not None:
        spec = msgspec.structs.replace(spec, name=args.name)
    submission = SubmitRequest(
        spec=validated(spec),
        target=args.target or original.run.target,
        wait=args.wait,
        as_name=getattr(args, "as_name", None),
    )
    return context.submitted(send(submission), submission)


def repeated_spec(original: TrackedRun, params: Mapping[str, Any], *, target: str = "", here: str = "") -> JobSpec:
    """Return the job of a run to submit again, with a note about what is different here and now. Blocks.

    Parameters
    ----------
    params
        Other values of parameters.
    target
        Another target; empty for that of the run.
    here
        Working folder of the caller, which may be a clone of the run's project; empty for that of the run.

    Raises
    ------
    CommandError
        The run is damaged, its code is not available, or a parameter cannot be changed.
    """
    run = original.run
    check_repeatable(run)
    then = original.read_provenance()
    spec = with_params(run.spec, params)
    if target and target != run.target:
        is_service_sweep = spec.sweep is not None and not spec.job_type and spec.trial is None
        if spec.trial is not None or (is_service_sweep and not _takes_images(target)):
            raise CommandError(
                f"{run.handle} is a sweep, which another kind of target runs in another way.",
                hint=f"Run its cell or file again: %%aml_sweep --target {target}",
                code="again.sweep",
                field="target",
            )
        keeps = _has_agent(run.target) and _has_agent(target)
        spec = for_target(spec, takes_images=_takes_images(target), keeps_image=keeps)
    if here:
        spec = relocated(spec, then, here)
    spec = with_code_of(run, spec, original.reader)
    name = target or run.target
    now = provenance_here(spec, _interpreter(name, spec))
    downloaded = {name for name, data in spec.inputs.items() if is_downloaded(data)}  # known when it runs
    then = msgspec.structs.replace(
        then, inputs={name: digest for name, digest in then.inputs.items() if name not in downloaded}
    )
    groups = ("git", "data", *(("python", "packages") if now.packages and then.packages else ()))
    note = difference_note(str(run.handle), differences((then, now), groups))
    notes = [note, repeat_note(str(run.handle), run.status.pokes)]
    return msgspec.structs.replace(spec, notes=(*spec.notes, *filter(None, notes)))


def _takes_images(target: str) -> bool:
    from jupyter_amltrain import api

    return any(one.service for one in api.targets() if one.name == target)


def _has_agent(target: str) -> bool:
    from jupyter_amltrain import api
    from jupyter_amltrain.schema.ssh_target import SshLogin
    from jupyter_amltrain.schema.target import LocalTarget

    return any(isinstance(one, (LocalTarget, SshLogin)) for one in api.targets() if one.name == target)


def _interpreter(target: str, spec: JobSpec) -> str:
    """Return the interpreter that a job has on a target of this machine; empty for another machine."""
    import sys

    from jupyter_amltrain import api
    from jupyter_amltrain.schema.target import LocalTarget

    found = next((one for one in api.targets() if one.name == target), None)
    if not isinstance(found, LocalTarget) or spec.environment != Environment():
        return ""
    return spec.python or found.python or sys.executable


RESUBMIT = Command(
    verb="again",
    summary="Submit the job of a run once more, with the run's own code.",
    run=_again,
    flags=_flags,
    examples=Examples(
        ("%aml_runs again digits-k3f9x", "%aml_runs again last --target gpu-vm --param lr=0.01"),
        ("amltrain runs again last --param lr=0.01 --wait",),
    ),
)
