"""``env``: list, create, build and remove the environments that runs use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_amltrain.commands.magic_line import quote
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError, ConfirmationNeeded
from jupyter_amltrain.jobs import requirement_files
from jupyter_amltrain.text import UNKNOWN, ago, bytes_text, pairs, seconds_text, table, tilde

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.schema.environment import EnvironmentRow

_ENV = "its name, the file that it was built from, or the beginning of its key"
#: Characters of a key in a list; more are shown by ``show``.
_KEY_CHARS = 8


def _target_flag(parser: Parser) -> None:
    parser.flag("--target", metavar="NAME", help="machine or service of the environment; default the target in use")


def _pip_flag(parser: Parser) -> None:
    parser.flag(
        "--pip",
        metavar="SPEC",
        type=requirement_files.split_specs,
        repeated=True,
        samples=("pandas", "'torch>=2'"),
        help="add a package, or several in quotes",
    )


def _packages(args: argparse.Namespace) -> list[str]:
    return [spec for item in args.pip or () for spec in item]


def _list(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    rows = api.environments(target=args.target)
    text = listing_text(rows, context.prog)
    if args.target or (rows and rows[0].version):  # the target in use is one of a workspace
        return Result(text, rows)
    others, failures = api.workspace_environments()
    for name, found in others.items():
        text += f"\n\nWorkspace {name} (--target {found[0].target}):\n{listing_text(found)}"
    text += "".join(f"\n\nWorkspace {name} is not listed: {reason}" for name, reason in failures.items())
    return Result(text, [*rows, *(row for found in others.values() for row in found)])


def _one_flags(parser: Parser) -> None:
    parser.flag("environment", metavar="ENV", help=_ENV)
    _target_flag(parser)


def _show(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    row = api.environment(args.environment, target=args.target)
    return Result(shown_text(row), row)


def _create_flags(parser: Parser) -> None:
    parser.flag("name", metavar="NAME", help="name of the environment, for --env NAME")
    parser.flag(
        "environment",
        metavar="FILE",
        nargs="?",
        default="",
        help="requirements.txt, pyproject.toml or conda.yml; for a workspace also an image, or conda.yml,IMAGE",
    )
    _pip_flag(parser)
    _target_flag(parser)


def _create(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    row = api.create_environment(args.name, args.environment, pip=_packages(args), target=args.target)
    if row.version:
        text = f"Registered {row.key}. Use it with --env {args.name}, or always this version with --env {row.key}."
        return Result(f"{text} The service builds it for the first job that uses it, or now on its page.", row)
    where = f" --target {quote(args.target)}" if args.target else ""
    built = "It is built already" if row.built else f"Build it now: {context.prog} build {args.name}{where}"
    flag = f"--env {args.name}"
    return Result(f"{args.name!r} names {len(row.requested)} lines of packages. Use it with {flag}. {built}.", row)


def _build_flags(parser: Parser) -> None:
    parser.flag(
        "environment",
        metavar="ENV",
        nargs="?",
        default="",
        help="a name, or a file: requirements.txt, pyproject.toml, conda.yml",
    )
    _pip_flag(parser)
    _target_flag(parser)
    parser.flag("--wait", action="store_true", help="wait until it is built; an error if it fails")
    if not parser.magic:
        parser.flag("--json", action="store_true", help="print JSON")


def _build(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.commands.submit import SubmitRequest

    run = api.build_environment(args.environment, pip=_packages(args), target=args.target)
    as_json = bool(getattr(args, "json", False))
    return context.submitted(run, SubmitRequest(run.run.spec, args.target, wait=args.wait, as_json=as_json))


def _delete_flags(parser: Parser) -> None:
    _one_flags(parser)
    parser.flag("-y", "--yes", action="store_true", help="delete without a question")


def _delete(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    try:
        row = api.delete_environment(args.environment, target=args.target, confirmed=args.yes)
    except ConfirmationNeeded as question:
        where = f" --target {quote(args.target)}" if args.target else ""
        line = f"{context.prog} delete {quote(args.environment)}{where} --yes"
        raise ConfirmationNeeded(question.message, hint=f"To confirm: {line}", code=question.code) from None
    size = f" ({bytes_text(row.bytes)})" if row.bytes else ""
    return Result(f"Deleted environment {row.key} from {row.target!r}{size}.", row)


def _freeze_flags(parser: Parser) -> None:
    _one_flags(parser)
    parser.flag("--to", metavar="FILE", default="", help="write them to this new file")


def _freeze(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    row = api.environment(args.environment, target=args.target)
    if not row.built or row.version:
        if row.version:
            raise CommandError(
                f"The exact packages of {row.key} are known to the service only.",
                hint=f"Its conda file: {context.prog} show {row.key}",
                code="environment.unsupported",
            )
        raise CommandError(
            f"Environment {args.environment!r} is not built on {row.target!r}.",
            hint=f"Build it: {context.prog} build {quote(args.environment)}",
            code="environment.not_built",
        )
    text = "".join(f"{line}\n" for line in row.packages)
    if not args.to:
        return Result(text, list(row.packages), verbatim=True)
    try:
        with Path(args.to).expanduser().open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        hint = "Choose another name." if isinstance(error, FileExistsError) else "Choose another folder."
        raise CommandError(
            f"Cannot write {args.to}: {error.strerror}.", hint=hint, code="environment.not_written", field="to"
        ) from None
    return Result(f"Wrote {len(row.packages)} packages to {args.to}.", list(row.packages))


COMMANDS = (
    Command(
        verb="list",
        summary="List the environments of a target, last used first.",
        run=_list,
        flags=_target_flag,
        json=True,
        examples=Examples(("%aml_env", "%aml_env list --target gpubox"), ("amltrain env list --json",)),
    ),
    Command(
        verb="show",
        summary="Show an environment: its packages, size, build time and last use.",
        run=_show,
        flags=_one_flags,
        json=True,
    ),
    Command(
        verb="create",
        summary="Give a name to the packages of a file, for --env NAME.",
        run=_create,
        flags=_create_flags,
        json=True,
        examples=Examples(
            (
                "%aml_env create digits requirements.txt --pip mlflow-skinny",
                "%aml_env create digits conda.yml --target gpu-cluster",
            ),
            ("amltrain env create digits requirements.txt",),
        ),
    ),
    Command(
        verb="build",
        summary="Build an environment now, in a run that ends when it is built.",
        run=_build,
        flags=_build_flags,
        examples=Examples(
            ("%aml_env build requirements.txt --wait", "%aml_env build digits --target gpubox"),
            ("amltrain env build conda.yml --wait",),
        ),
    ),
    Command(
        verb="delete",
        summary="Delete an environment from a target, and its names.",
        run=_delete,
        flags=_delete_flags,
        json=True,
        examples=Examples(("%aml_env delete digits --yes",)),
    ),
    Command(
        verb="freeze",
        summary="Print the exact packages of an environment as a requirements file.",
        run=_freeze,
        flags=_freeze_flags,
        json=True,
        examples=Examples(("%aml_env freeze requirements.txt --to exact.txt",)),
    ),
)


def listing_text(rows: Sequence[EnvironmentRow], prog: str = "%aml_env") -> str:
    """Return the table of environments."""
    if not rows:
        return f"No environments yet. A run with --env requirements.txt builds one; or: {prog} build requirements.txt"
    now = time.time()
    if rows[0].version:
        return table(
            ("name", "version", "of", "created"),
            [
                (
                    *row.names,
                    row.version,
                    "service" if row.curated else "workspace",
                    ago(row.built, now) if row.built else "",
                )
                for row in rows
            ],
        )
    return table(
        ("key", "name", "from", "packages", "size", "built in", "last used"),
        [
            (
                row.key[:_KEY_CHARS],
                ", ".join(row.names),
                tilde(row.label),
                str(len(row.packages)) if row.built else "not built",
                bytes_text(row.bytes) if row.built else "",
                seconds_text(row.seconds) if row.built else "",
                "in use" if row.in_use else ago(row.used, now) if row.used else "",
            )
            for row in rows
        ],
    )


def shown_text(row: EnvironmentRow) -> str:
    """Return the facts of an environment, and its packages."""
    now = time.time()
    built = f"{ago(row.built, now)} in {seconds_text(row.seconds)} by {row.tool or UNKNOWN}" if row.built else "no"
    if row.version:
        return _lines_text(
            [
                ("name", ", ".join(row.names)),
                ("version", row.version),
                ("versions", ", ".join(row.versions)),
                ("target", row.target),
                ("of", "service" if row.curated else "workspace"),
                ("created", ago(row.built, now) if row.built else ""),
                ("image", row.image),
                ("conda file", "\n".join(row.requested)),
            ]
        )
    facts = [
        ("key", row.key),
        ("names", ", ".join(row.names)),
        ("target", row.target),
        ("from", tilde(row.label)),
        ("Python", row.python),
        ("folder", row.path),
        ("size", bytes_text(row.bytes) if row.built else ""),
        ("built", built),
        ("last used", "now" if row.in_use else ago(row.used, now) if row.used else ""),
        ("requested", "\n".join(row.requested)),
        ("installed", "\n".join(row.packages)),
    ]
    return _lines_text(facts)


def _lines_text(facts: Sequence[tuple[str, str]]) -> str:
    """Return labels and texts of one or more lines, without those that are empty."""
    lines = []
    for name, text in facts:
        if text:
            first, *rest = text.splitlines()
            lines += [(name, first), *(("", line) for line in rest)]
    return pairs(lines)
