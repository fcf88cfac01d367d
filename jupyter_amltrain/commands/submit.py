"""``submit``: from words and a cell to a job, its plan, its run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parsers import parser_of
from jupyter_amltrain.errors import CommandError, MissingDependency
from jupyter_amltrain.naming import notebook_name

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun
    from jupyter_amltrain.spec.job import JobSpec

#: Where `keyring` looks for the values of ``--secret``.
KEYRING_SERVICE = "amltrain"


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What holds when the line says nothing; empty means "no opinion"."""

    target: str = ""
    experiment: str = ""
    timeout: float | None = None
    environment: str = ""


@dataclasses.dataclass(frozen=True)
class Submission:
    """A submit line, understood; nothing is sent yet."""

    spec: JobSpec
    target: str | None
    wait: bool = False
    dry_run: bool = False
    as_name: str | None = None
    as_json: bool = False
    as_yaml: bool = False
    compute: str = ""

    @property
    def place(self) -> str | None:
        """The target; of a YAML job without one the target of the compute that it asks for."""
        if self.target or not self.compute:
            return self.target
        from jupyter_amltrain.commands import submit_yaml

        return submit_yaml.target_of(self.compute)


def understand(
    tokens: Sequence[str],
    cell: str | None = None,
    *,
    prog: str = "%aml_submit",
    defaults: Defaults | None = None,
) -> Submission:
    """Read the words of a line and the text of a cell.

    Parameters
    ----------
    tokens
        The words after the command; those after ``--`` are the script's own.
    cell
        Text of the cell without the magic's line; ``None`` for the line form.
    prog
        The command as the user typed it.

    Raises
    ------
    CommandError
        Words or cell cannot be carried out as written.
    """
    tokens = list(tokens)
    args: list[str] = []
    if "--" in tokens:
        at = tokens.index("--")
        tokens, args = tokens[:at], tokens[at + 1 :]
    asked = parser_of("submit", prog).parse(tokens)
    if asked.yaml and not asked.dry_run:
        raise CommandError("--yaml: it says how --dry-run prints.", hint="Write: --dry-run --yaml")
    spec, compute = _spec(asked, args, cell, prog, defaults or Defaults())
    return Submission(
        spec=spec,
        target=asked.target or (defaults.target if defaults and not compute else None) or None,
        compute=compute,
        wait=asked.wait,
        dry_run=asked.dry_run,
        as_yaml=asked.yaml,
        as_name=getattr(asked, "as_name", None),
        as_json=getattr(asked, "json", False),
    )


def _spec(
    asked: argparse.Namespace, args: list[str], cell: str | None, prog: str, defaults: Defaults
) -> tuple[JobSpec, str]:
    """The job, and the compute that its file asks for."""
    from jupyter_amltrain import script
    from jupyter_amltrain.spec import references
    from jupyter_amltrain.spec.job import JobSpec, validated

    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise CommandError(
            f"{prog}: the working folder of this process is gone.", hint="Go to one that is there: %cd ~"
        ) from None
    if cell is None and asked.script and asked.script.lower().endswith((".yml", ".yaml")):
        from jupyter_amltrain.commands import submit_yaml

        experiment = defaults.experiment or notebook_name() or "default"
        spec, compute = submit_yaml.spec_of(asked, args, prog, experiment=experiment, here=here)
        return validated(spec), compute
    source = str(Path(asked.source).expanduser().resolve()) if asked.source else None
    where = _where_it_runs(asked, defaults)
    # IPython halves the braces of ${{inputs.data}} in a magic's line.
    typed = references.restored if prog.startswith("%") else lambda value: value
    params = references.with_literals(typed(dict(asked.param)), where["inputs"])
    args = references.with_literals(typed(args), where["inputs"])
    out = tuple(name for names in asked.out for name in names)
    notebook = notebook_name()
    code: dict[str, Any]
    if cell is not None:
        if asked.script:
            raise CommandError(
                f"{prog}: the cell is the script, and {asked.script!r} is one too many.",
                hint=f"Submit the file by: %{prog.lstrip('%')} {asked.script}"
                if asked.script.endswith(".py")
                else 'Quote values with spaces: --param "name=$value"',
            )
        if args:
            raise CommandError(f"{prog}: a cell has no arguments after '--'.", hint="Use --param name=value.")
        made = script.from_cell(cell, magic_line=prog, params=params, out=out)
        code = {
            "script": made.text,
            "script_name": _free_name(source),
            "cell": cell,
            "line_offset": made.line_offset,
            "source_sha256": made.sha256,
            "notebook_dir": here,
            "notes": made.notes,
        }
        name = notebook or "cell"
    else:
        if not asked.script:
            raise CommandError(
                f"{prog}: nothing to run.",
                hint=f"Name a script: {prog} train.py"
                + (f" -- or begin a cell with %{prog}" if prog.startswith("%") else ""),
            )
        found = script.from_file(asked.script, source=source, out=out)
        code = {
            "script_name": found.name,
            "source_sha256": found.sha256,
            "notebook_dir": found.folder,
            "notes": found.notes,
        }
        name = Path(found.name).stem
    timeout = asked.timeout if asked.timeout is not None else defaults.timeout
    made_spec = validated(
        JobSpec(
            name=(name[:64] if asked.name is None else asked.name),
            source=source,
            params=params,
            args=tuple(map(str, args)),
            out=tuple(dict.fromkeys(out)),
            env=dict(asked.env_var),
            secrets=tuple(dict.fromkeys(asked.secret)),
            require_gpu=asked.require_gpu or "",
            gpu_grace=asked.gpu_grace,
            share_gpus=asked.share_gpus,
            gpu_ids=asked.gpu_ids or "",
            experiment=asked.experiment or defaults.experiment or notebook or "default",
            tags=dict(asked.tag),
            timeout=timeout,
            project=here,
            **where,
            **code,
        )
    )
    return made_spec, ""


def _where_it_runs(asked: argparse.Namespace, defaults: Defaults) -> dict[str, Any]:
    """Fields about machines, packages and data."""
    import msgspec

    from jupyter_amltrain import job_words
    from jupyter_amltrain.spec.resources import Distribution, Resources, distribution_of

    nodes = 1 if asked.nodes is None else asked.nodes
    kind = asked.distribution or Distribution()
    environment = job_words.environment_of(asked.env or "", asked.derive_env)
    if not environment and defaults.environment:
        environment = job_words.environment_of(defaults.environment)
        environment = msgspec.structs.replace(environment, chosen="%config AMLTrain.environment")
    return {
        "resources": Resources(
            gpus=asked.gpus,
            nodes=nodes,
            instance_type=asked.instance_type or "",
            shm_size=asked.shm_size or "",
            docker_args=asked.docker_args or "",
        ),
        "distribution": distribution_of(kind.kind, asked.processes, nodes, kind.parameter_servers),
        "environment": environment,
        "inputs": _once("--input", asked.input),
        "outputs": _once("--output", asked.output),
        "identity": asked.identity or "",
        "services": tuple(dict.fromkeys(asked.service)),
        "priority": asked.priority or "",
        "tier": asked.tier or "",
    }


def _once(flag: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"{flag} {twice} is given twice.", hint="Give it once, or rename one.")
    return found


def send(submission: Submission, environ: Mapping[str, str] = os.environ) -> TrackedRun:
    """Submit; returns at once with the run.

    Raises
    ------
    CommandError
        A secret has no value, the target is unknown.
    """
    from jupyter_amltrain import api

    if submission.spec.secrets:  # nobody sets a variable for a job that is refused anyway
        api.check_spec(submission.spec, target=submission.place)
    secrets = {name: secret(name, environ) for name in submission.spec.secrets}
    return api.submit_spec(submission.spec, target=submission.place, secrets=secrets)


def plan_text(submission: Submission) -> str:
    """The exact request as indented JSON, or the job as YAML; sends nothing and asks for no secret."""
    from jupyter_amltrain import api

    plan = api.plan_spec(submission.spec, target=submission.place)
    if submission.as_yaml:
        from jupyter_amltrain.commands import submit_yaml

        return submit_yaml.text_of(plan).rstrip()
    return json.dumps(plan.request, indent=2, ensure_ascii=False)


def secret(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The value of ``--secret``: from the environment, else from keyring; never printed.

    Raises
    ------
    CommandError
        Neither has one; the hint says how to set it.
    """
    if value := environ.get(name):
        return value
    try:
        import keyring
    except ImportError:
        raise MissingDependency(
            f"--secret {name}: it is not in the environment, and keyring is not installed.",
            hint=f"Set it without storing it: import os, getpass; os.environ[{name!r}] = getpass.getpass()",
        ) from None
    try:
        value = keyring.get_password(KEYRING_SERVICE, name)
    except Exception as error:  # back ends raise what they like; none of it holds the value
        raise CommandError(
            f"--secret {name}: it is not in the environment, and keyring failed ({type(error).__name__}).",
            hint=f"Set it without storing it: import os, getpass; os.environ[{name!r}] = getpass.getpass()",
        ) from None
    if not value:
        raise CommandError(
            f"--secret {name}: no value in the environment, none in keyring.",
            hint=f"Store it once: keyring set {KEYRING_SERVICE} {name}",
        )
    return str(value)


def _free_name(source: str | None) -> str:
    """Name of the cell's script, which must not hide a file of the source folder."""
    name = "script.py"
    while source and os.path.lexists(os.path.join(source, name)):
        name = f"cell_{name}"
    return name
