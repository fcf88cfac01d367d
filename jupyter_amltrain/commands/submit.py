"""``submit``: turn a line and a cell, a script, or a job file of ``az ml`` into a job, its plan, or its run."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.commands import saved_job, template
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Defaults, Examples, Result, parser_of
from jupyter_amltrain.errors import CommandError, MissingDependency
from jupyter_amltrain.jobs import closure, flag_types, flag_values, script, script_file
from jupyter_amltrain.jobs.closure import Notebook
from jupyter_amltrain.jobs.flags import FLAGS, job_fields, typed_values
from jupyter_amltrain.jobs.kept_names import Keep, keep_for
from jupyter_amltrain.jobs.project import place_of_cell
from jupyter_amltrain.jobs.scaling import ScalingPlan, plan_of
from jupyter_amltrain.schema import az_yaml, az_yaml_job
from jupyter_amltrain.schema import inputs as references
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec, validated
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.text import notebook_name

if TYPE_CHECKING:
    from jupyter_amltrain.output.scaling_runs import ScalingRuns
    from jupyter_amltrain.run import TrackedRun

__all__ = ["COMMANDS", "Defaults", "SubmitRequest", "parse_submit", "plan_text", "secret", "send"]

#: Service name of the values of ``--secret`` in `keyring`.
KEYRING_SERVICE = "amltrain"


def _flags(parser: Parser) -> None:
    script_flags(parser, "a job.yml of az ml")
    parser.flag("--target", metavar="NAME", help="where to run; default the target in use")
    job_flags(parser)
    if parser.magic:
        notebook_flags(parser)
    parser.flag(
        "--scaling", metavar="N,N,...", samples=("1,2,4", "nodes:1,2"),
        help="measure the speed with these numbers of processes (nodes:N,... of machines), one after another",
    )  # fmt: skip
    parser.flag(
        "--scaling-time", metavar="TIME", type=flag_types.duration, samples=("60s", "5m"),
        help="time that each width is measured after its first metric; default 60s",
    )  # fmt: skip
    parser.flag(
        "--scaling-steps", metavar="N", type=flag_types.count, samples=("200",),
        help="steps that each width is measured",
    )  # fmt: skip
    parser.flag("--yaml", action="store_true", help="with --dry-run: print the request as a file for az ml job create")
    parser.flag(
        "--save", metavar="FILE", help="write the job as a file of az ml with its code beside it; submit nothing",
        samples=("job.yml",),
    )  # fmt: skip
    parser.flag(
        "--template", metavar="NAME", offers=tuple(template.TEMPLATES),
        help="show a ready cell that trains with a framework; submit nothing",
    )  # fmt: skip
    run_flags(parser)


def run_flags(parser: Parser, what: str = "run", dry_run: str = "print the request without sending it") -> None:
    """Add the flags of a line that starts a run: whether it waits for it, or only prints it, and what it returns."""
    parser.flag("--wait", action="store_true", help=f"wait until the {what} ends; a failed {what} is an error")
    parser.flag("--dry-run", action="store_true", help=dry_run)
    if parser.magic:
        parser.flag("--as", dest="as_name", metavar="NAME", type=flag_types.variable, help=f"assign the {what} to NAME")
    else:
        parser.flag("--json", action="store_true", help="print JSON")


def script_flags(parser: Parser, more: str) -> None:
    """Add what names the script, and the words behind it; `more` says what else may be named."""
    parser.takes_rest = True
    parser.flag("script", nargs="?", help=f"a .py file or a folder with a __main__.py (arguments follow --), or {more}")
    parser.flag(
        "-m", "--module", metavar="NAME", default="", samples=("package.train",),
        help="run this module, as python -m does",
    )  # fmt: skip


def job_flags(parser: Parser, without: Collection[str] = ()) -> None:
    """Add the flags of a job.

    Parameters
    ----------
    without
        Flags that are left out.
    """
    for flag in FLAGS:
        if flag.flag in without:
            continue
        rest: dict[str, Any] = {"action": "store_true"} if flag.switch else {"metavar": flag.metavar or None}
        if flag.type is not None:
            rest["type"] = flag.type
        parser.flag(
            flag.flag,
            field=flag.field,
            help=flag.help,
            repeated=flag.repeated,
            offers=flag.offers,
            samples=flag.samples,
            **rest,
        )


def notebook_flags(parser: Parser, *, values: bool = True) -> None:
    """Add the flags that send something of the notebook, with `values` also ``--in``."""
    if values:
        parser.flag(
            "--in",
            dest="in_names",
            metavar="NAME",
            type=flag_types.names,
            repeated=True,
            help="assign this variable of the notebook before the first line: data, arrays, frames, tensors,"
            " estimators",
        )
    parser.flag(
        "--with",
        dest="with_names",
        metavar="NAME",
        type=flag_types.names,
        repeated=True,
        help="include this function, class or named cell (%%%%aml_cell) of the notebook, with what it uses",
    )
    parser.flag(
        "--replay",
        metavar="CELL",
        type=flag_types.cells,
        repeated=True,
        samples=("5", "all"),
        help="run this cell (its number, or all that are needed) before the script, instead of sending what it made",
    )
    parser.flag(
        "--isolated",
        action="store_true",
        help="take nothing from the notebook but what --in and --with name",
    )
    parser.flag(
        "--allow-pickle",
        action="store_true",
        help="read results of another machine that could only be pickled: this can run any code",
    )


def _run(args: argparse.Namespace, context: Context) -> Result:
    """Print the plan of a submit, or send it and continue as `context` does after a submit."""
    if args.template:
        return template.show(args.template, context)
    notebook = None if context.namespace is None else Notebook(context.namespace, context.history)
    submission = _submission(args, context.cell, context.prog, context.defaults, notebook=notebook)
    if submission.scaling is not None:
        _check_scaling_line(args)
        if submission.dry_run:
            return Result(scaling_plan_text(submission) + "\n", verbatim=True)
        return context.measured(send_scaling(submission), submission)
    if args.save:
        check_saved_line(args)
        return Result(saved_job.save(submission.spec, submission.target_name, args.save))
    if submission.dry_run:
        return Result(plan_text(submission) + "\n", verbatim=True)
    return context.submitted(send(submission), submission)


@dataclasses.dataclass(frozen=True)
class SubmitRequest:
    """A parsed submit line, before it is sent."""

    spec: JobSpec
    target: str | None
    wait: bool = False
    dry_run: bool = False
    as_name: str | None = None
    as_json: bool = False
    as_yaml: bool = False
    compute: str = ""
    scaling: ScalingPlan | None = None
    sweep: Sweep | None = None

    @property
    def target_name(self) -> str | None:
        """Name of the target; for a YAML job without one the target of the compute that the file names."""
        if self.target or not self.compute:
            return self.target
        from jupyter_amltrain import api

        return api.target_of_compute(self.compute)


def parse_submit(
    tokens: Sequence[str],
    cell: str | None = None,
    *,
    prog: str = "%aml_submit",
    defaults: Defaults | None = None,
    first_line: int = 2,
    notebook: Notebook | None = None,
) -> SubmitRequest:
    """Parse the words of a line and the text of a cell.

    Parameters
    ----------
    tokens
        The words after the command; those after ``--`` are the script's arguments.
    cell
        Text of the cell below the magic's line; ``None`` for the line form.
    prog
        The command as the user typed it.
    first_line
        Line number of the first line of `cell` in messages: 2 below a magic's line.
    notebook
        What ``--in`` and ``--with`` take from; ``None`` without a notebook.

    Raises
    ------
    CommandError
        The line or the cell is invalid.
    """
    args = parser_of("submit", prog).parse(tokens)
    return _submission(args, cell, prog, defaults or Defaults(), first_line, notebook)


def _submission(
    args: argparse.Namespace,
    cell: str | None,
    prog: str,
    defaults: Defaults,
    first_line: int = 2,
    notebook: Notebook | None = None,
) -> SubmitRequest:
    if args.yaml and not args.dry_run:
        raise CommandError(
            "--yaml: only --dry-run prints a file.",
            hint="Write: --dry-run --yaml",
            code="submit.yaml_without_dry_run",
            field="yaml",
        )
    scaling = plan_of(args.scaling, args.scaling_time, args.scaling_steps)
    spec, compute = job_of_line(args, args.rest, cell, prog, defaults, first_line, notebook)
    return submission_of(args, spec, compute, defaults.target, scaling=scaling, as_yaml=args.yaml)


def submission_of(
    args: argparse.Namespace, spec: JobSpec, compute: str, default_target: str | None, **more: Any
) -> SubmitRequest:
    """Return the submission of a checked job and a line of ``submit`` or ``sweep``.

    Parameters
    ----------
    compute
        Compute that the file of the job names; it takes precedence over `default_target`.
    more
        Fields of the submission that only one of the commands has.
    """
    return SubmitRequest(
        spec=validated(spec),
        target=args.target or (default_target if not compute else None) or None,
        compute=compute,
        wait=args.wait,
        dry_run=args.dry_run,
        as_name=getattr(args, "as_name", None),
        as_json=getattr(args, "json", False),
        **more,
    )


def job_of_line(
    args: argparse.Namespace,
    words: list[str],
    cell: str | None,
    prog: str,
    defaults: Defaults,
    first_line: int,
    notebook: Notebook | None,
    defined: Sequence[str] = (),
    keeps: bool = True,
) -> tuple[JobSpec, str]:
    """Return the job, and the compute that its file names.

    Parameters
    ----------
    defined
        Names that the cell may use besides its own and those of the line.
    keeps
        Whether the run keeps what its cell binds; each trial of a sweep would.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise CommandError(
            f"{prog}: the working folder of this process no longer exists.",
            hint="Change to another one: %cd ~",
            code="submit.no_folder",
        ) from None
    if cell is None and args.script and args.script.lower().endswith((".yml", ".yaml")):
        experiment = defaults.experiment or notebook_name() or "default"
        return _yaml_spec(args, words, prog, experiment=experiment, folder=folder)
    if isinstance(args.deepspeed, str) and notebook is not None:  # the name of a dict
        args.deepspeed = notebook.namespace.get(args.deepspeed, args.deepspeed)
    values = typed_values(args)
    source = values["source"] = str(Path(args.source).expanduser().resolve()) if args.source else None
    # IPython halves the braces of ${{inputs.data}} in a magic's line.
    typed = references.restore_references if prog.startswith("%") else lambda value: value
    fields = job_fields(values)
    inputs = fields.get("inputs", {})
    params = fields["params"] = references.with_literals(typed(fields.get("params", {})), inputs)
    words = references.with_literals(typed(words), inputs)
    out = fields.get("out", ())
    title = notebook_name()
    if cell is not None:
        _check_cell_line(args, words, prog)
        own = _of_notebook(args, notebook, cell, {*params, *defined}, first_line, defaults)
        cell_script = script.from_cell(
            cell,
            magic_line=prog,
            params=params,
            out=out,
            first_line=first_line,
            before=own.statements,
            known=(*own.names, *defined),
            helpers="\n".join(own.modules.values()),
            namespace=None if notebook is None else notebook.namespace,
            check_names=notebook is not None,
            is_alone=notebook is None,  # the form checks a line before the kernel has the cell
            keep=keep_for(_is_local(args, defaults)) if keeps and notebook else Keep.NOTHING,
        )
        fields["environment"] = _with_packages(fields["environment"], cell_script.packages)
        code, name = _cell_code(args, cell, cell_script, own, source, folder), title or "cell"
        if notebook is not None and not source:
            code |= place_of_cell(JobSpec(name="cell", **code))
    else:
        code, name = _file_code(args, prog, source, out, {*params, *defined})
    _add_defaults(fields, defaults, name, title)
    return JobSpec(**{**fields, **code, "args": tuple(map(str, words)), "project": folder}), ""


def _cell_code(
    args: argparse.Namespace, cell: str, made: script.Script, own: closure.Closure, source: str | None, folder: str
) -> dict[str, Any]:
    """Return the fields of a job that describe the code of a cell, and what it takes from the notebook."""
    return {
        "script": made.text,
        "script_name": _free_name(source),
        "cell": cell,
        "line_offset": made.line_offset,
        "source_sha256": made.sha256,
        "notebook_dir": folder,
        "notes": (*own.notes, *made.notes),
        "values": own.values,
        "modules": own.modules,
        "taken": own.taken,
        "allow_pickle": bool(getattr(args, "allow_pickle", False)),
    }


def _add_defaults(fields: dict[str, Any], defaults: Defaults, name: str, title: str) -> None:
    """Add what the line leaves out: from the settings, the name of the code, and the `title` of the notebook."""
    fields.setdefault("name", name[:64])
    fields.setdefault("experiment", defaults.experiment or title or "default")
    fields.setdefault("timeout", defaults.timeout)
    fields.setdefault("tracking_uri", defaults.tracking_uri)
    fields.setdefault("autolog", defaults.autolog)
    if not fields["environment"] and defaults.environment:
        environment = flag_values.environment_of(defaults.environment)
        fields["environment"] = msgspec.structs.replace(environment, chosen="%config AMLTrain.environment")


def _of_notebook(
    args: argparse.Namespace,
    notebook: Notebook | None,
    cell: str,
    known: Collection[str],
    first_line: int,
    defaults: Defaults,
) -> closure.Closure:
    """Return what a cell takes from the notebook; with ``--isolated`` only what ``--in`` and ``--with`` name."""
    if notebook is None:
        return closure.Closure()
    given = (getattr(args, name, None) or () for name in ("in_names", "with_names"))
    sent, code = (tuple(dict.fromkeys(itertools.chain(*lists))) for lists in given)
    if args.isolated or defaults.isolated:
        return closure.named(notebook, sent, code, allow_pickle=args.allow_pickle)
    replay = [*itertools.chain(*args.replay)]
    return closure.closure_of(
        cell,
        notebook,
        sent=sent,
        code=code,
        replay=replay,
        known=known,
        is_local=_is_local(args, defaults),
        above=first_line - 1,
    )


def _is_local(args: argparse.Namespace, defaults: Defaults) -> bool:
    """Whether the job of a line runs in this interpreter."""
    from jupyter_amltrain import api

    return not args.python and api.is_local(args.target or defaults.target or None)


def _with_packages(environment: Environment, packages: Sequence[str]) -> Environment:
    """Return the environment with the packages that the cell installs (``!pip install NAME``).

    A job without an environment gets the packages of the kernel, where these may be installed already.
    """
    from jupyter_amltrain.jobs.requirements import is_installed

    if not packages:
        return environment
    if not environment or environment.kernel:
        environment = msgspec.structs.replace(environment, kernel=True)
        packages = [one for one in packages if not is_installed(one)]
    return msgspec.structs.replace(environment, pip=tuple(dict.fromkeys((*environment.pip, *packages))))


def _check_cell_line(args: argparse.Namespace, words: Sequence[str], prog: str) -> None:
    """Raise if the line above a cell names a script or its arguments."""
    if args.script:
        raise CommandError(
            f"{prog}: unexpected argument {args.script!r}.",
            hint=f"To submit the file: %{prog.lstrip('%')} {args.script}"
            if args.script.endswith(".py")
            else 'Put values with spaces in quotes, e.g. --name "$name"',
            code="command.unexpected_argument",
        )
    if words:
        raise CommandError(
            f"{prog}: a cell takes no arguments after '--'.",
            hint="Use --param name=value.",
            code="command.unexpected_argument",
        )


def _file_code(
    args: argparse.Namespace, prog: str, source: str | None, out: Sequence[str], params: Collection[str]
) -> tuple[dict[str, Any], str]:
    """Return the fields of a job that describe the code of a file, and a name for the job."""
    if not args.script and not args.module:
        raise CommandError(
            f"{prog}: no script.",
            hint=f"Name one: {prog} train.py" + (f" -- or start a cell with %{prog}" if prog.startswith("%") else ""),
            code="submit.no_script",
        )
    job = script_file.from_file(
        args.script or "", source=source, out=out, module=args.module, params=params, style=args.style or ""
    )
    return job, args.module.rpartition(".")[2] or Path(args.script).stem


def send(submission: SubmitRequest, environ: Mapping[str, str] = os.environ) -> TrackedRun:
    """Submit the job; return the run without waiting for it.

    Raises
    ------
    CommandError
        A secret has no value, or the target is unknown.
    """
    from jupyter_amltrain import api

    if submission.spec.secrets:  # so that nobody has to set a variable for a job that is rejected
        api.check_spec(submission.spec, target=submission.target_name)
    secrets = {name: secret(name, environ) for name in submission.spec.secrets}
    return api.submit_spec(submission.spec, target=submission.target_name, secrets=secrets)


def send_scaling(submission: SubmitRequest, environ: Mapping[str, str] = os.environ) -> ScalingRuns:
    """Measure the job at the widths of ``--scaling``; return the runs without waiting for them."""
    from jupyter_amltrain import api

    assert submission.scaling is not None
    secrets = {name: secret(name, environ) for name in submission.spec.secrets}
    return api.submit_scaling(submission.spec, submission.scaling, target=submission.target_name, secrets=secrets)


def check_saved_line(args: argparse.Namespace) -> None:
    """Raise for a line that writes a file and prints a plan: each is instead of a submit."""
    if args.dry_run:
        raise CommandError(
            f"--save {args.save}: --dry-run prints the job, and writes no file.",
            hint="Leave out one of them.",
            code="submit.save_and_dry_run",
            field="save",
        )


def scaling_plan_text(submission: SubmitRequest) -> str:
    """Return the requests of a measurement, by increasing width, as indented JSON."""
    from jupyter_amltrain import api

    assert submission.scaling is not None
    plans = api.plan_scaling(submission.spec, submission.scaling, target=submission.target_name)
    return json.dumps([plan.request for plan in plans], indent=2, ensure_ascii=False)


def _check_scaling_line(args: argparse.Namespace) -> None:
    """Raise for flags of a line that a measurement of several runs contradicts."""
    for flag, value in (("--save", args.save), ("--yaml", args.yaml)):
        if value:
            raise CommandError(
                f"{flag}: a measurement is several jobs, and the file has one.",
                hint=f"Leave out {flag}, or --scaling.",
                code="scaling.contradiction",
                field="scaling",
            )


def plan_text(submission: SubmitRequest) -> str:
    """Return the exact request as text or indented JSON, or the job as YAML; sends nothing and reads no secret."""
    from jupyter_amltrain import api

    plan = api.plan_spec(submission.spec, target=submission.target_name)
    if submission.as_yaml:
        return saved_job.yaml_text(plan).rstrip()
    return plan.text or json.dumps(plan.request, indent=2, ensure_ascii=False)


def secret(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the value of ``--secret`` from the environment, else from keyring; it is never printed.

    Raises
    ------
    CommandError
        Neither has a value; the hint says how to set it.
    """
    if value := environ.get(name):
        return value
    try:
        import keyring
    except ImportError:
        raise MissingDependency(
            f"--secret {name}: not set in the environment, and keyring is not installed.",
            hint=f"Set it without storing it: import os, getpass; os.environ[{name!r}] = getpass.getpass()",
            code="submit.no_secret",
            field="secrets",
        ) from None
    try:
        value = keyring.get_password(KEYRING_SERVICE, name)
    except Exception as error:  # backends raise any exception; none has the value
        raise CommandError(
            f"--secret {name}: not set in the environment, and {_keyring_problem(error)}.",
            hint=f"Set it without storing it: import os, getpass; os.environ[{name!r}] = getpass.getpass()",
            code="submit.no_secret",
            field="secrets",
        ) from None
    if not value:
        raise CommandError(
            f"--secret {name}: not set in the environment, and not in keyring.",
            hint=f"Store it once: keyring set {KEYRING_SERVICE} {name}",
            code="submit.no_secret",
            field="secrets",
        )
    return str(value)


def _keyring_problem(error: Exception) -> str:
    kind = type(error).__name__
    return "this machine has no keyring" if kind == "NoKeyringError" else f"the keyring failed ({kind})"


def _free_name(source: str | None) -> str:
    """Return a name for the cell's script that does not hide a file of the source folder."""
    name = "script.py"
    while source and os.path.lexists(os.path.join(source, name)):
        name = f"cell_{name}"
    return name


# ---- job files of az ml


def _yaml_spec(
    args: argparse.Namespace, words: Sequence[str], prog: str, *, experiment: str, folder: str
) -> tuple[JobSpec, str]:
    """Return the job of a file, and the compute that the file names.

    Parameters
    ----------
    experiment
        Name of the experiment if neither the line nor the file has one.

    Raises
    ------
    CommandError
        The line has flags that belong into the file, or the file is invalid.
    """
    if words:
        raise CommandError(
            f"{prog}: a YAML job takes no arguments after '--'.",
            hint="Write them in its command:, or use --param.",
            code="command.unexpected_argument",
        )
    for flag in FLAGS:
        if flag.yaml is None or getattr(args, flag.dest, None) in (None, False, []):
            continue
        raise CommandError(
            f"{flag.flag} is not supported for a YAML job: the file sets it.",
            hint=f"Write it in {args.script} as {flag.yaml}:" if flag.yaml else "Leave it out.",
            code="submit.flag_of_file",
            field=flag.field,
        )
    job, line = az_yaml.load(args.script), typed_values(args)
    inputs = flag_values.inputs_of_file(line.get("inputs", {}), job.doc.get("inputs"))
    spec = az_yaml_job.spec_of_line(job, line.get("params", {}), inputs)
    changed: dict[str, Any] = {
        "tags": {**spec.tags, **dict(args.tag)},
        "project": folder,
        "experiment": args.experiment or (spec.experiment if "experiment_name" in job.doc else experiment),
    }
    if args.name is not None:
        changed["name"] = args.name
    return msgspec.structs.replace(spec, **changed), job.compute


COMMANDS = (
    Command(
        summary="Submit a cell or script.",
        run=_run,
        flags=_flags,
        examples=Examples(
            (
                "%%aml_submit --param lr=0.1 --out accuracy",
                "%%aml_submit --gpus 1 --require-gpu stop --timeout 2h --wait",
                "%aml_submit train.py --param epochs=5 -- --verbose",
                "run = %aml_submit train.py --source . --name digits",
                "%aml_submit job.yml --target gpu-cluster --param epochs=5",
                "%%aml_submit --target gpu-cluster --env sklearn-1.5@latest --input data=digits/",
                "%%aml_submit --target gpu-cluster --nodes 2 --processes 4 --env conda.yml",
                "%%aml_submit --scaling 1,2,4",
            ),
            (
                "amltrain submit train.py --param epochs=5 --wait",
                "amltrain submit train.py --source . --gpus 1 --timeout 2h -- --verbose",
            ),
        ),
    ),
)
