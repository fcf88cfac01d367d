"""``model``: register files of a run as a model, list models, and download one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_amltrain.commands.magic_line import quote
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.text import ago, table, tilde

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.kernel.models import DownloadedModel, ModelRow

_WORKSPACE = "registry: a connected workspace, or local; default that of the target in use"


def _list_flags(parser: Parser) -> None:
    parser.flag("--workspace", metavar="NAME", default="", help=_WORKSPACE)


def _list(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    rows = api.models(workspace=args.workspace)
    return Result(listing_text(rows, context.prog), rows)


def _register_flags(parser: Parser) -> None:
    parser.flag("name", help="name of the model; adds a version if the model exists")
    parser.flag("--run", metavar="HANDLE", default="last", help="handle, run id or prefix; default last")
    parser.flag(
        "--path",
        metavar="PATH",
        default="",
        help="path in the run, e.g. outputs/model; default the only model of the run",
    )
    parser.flag(
        "--type",
        metavar=flag_types.model_type.metavar,
        type=flag_types.model_type,
        help="default mlflow_model if there is an MLmodel file",
    )
    parser.flag("--description", metavar="TEXT", default="", help="description of the version")
    parser.flag("--tag", metavar="K=V", type=flag_types.tag, repeated=True, help="tag of the version")


def _register(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    row = api.register_model(
        args.name,
        run=args.run,
        path=args.path,
        type=args.type or "",
        description=args.description,
        tags=dict(args.tag),
        progress=context.notify,
    )
    return Result(registered_text(row, context.prog), row)


def _download_flags(parser: Parser) -> None:
    parser.flag("model", help="NAME or NAME:VERSION; default the newest version")
    parser.flag(
        "--to", metavar="FOLDER", default="", help="new or empty folder; default NAME-VERSION in the working folder"
    )
    parser.flag("--workspace", metavar="NAME", default="", help=_WORKSPACE)


def _download(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.kernel.models import name_and_version

    name, version = name_and_version(args.model)
    copy = api.download_model(name, version, to=args.to, workspace=args.workspace, progress=context.notify)
    return Result(downloaded_text(copy), copy)


COMMANDS = (
    Command(
        verb="list",
        summary="List the models, newest version first.",
        run=_list,
        flags=_list_flags,
        json=True,
        examples=Examples(("%aml_model",), ("amltrain model list --json",)),
    ),
    Command(
        verb="register",
        summary="Register files of a run as a version of a model.",
        run=_register,
        flags=_register_flags,
        json=True,
        examples=Examples(
            (
                "%aml_model register digits",
                "%aml_model register digits --run last --path outputs/model --tag stage=trial",
            ),
            ("amltrain model register digits --run local/digits-k3f9x",),
        ),
    ),
    Command(
        verb="download",
        summary="Download the files of a model into a new folder.",
        run=_download,
        flags=_download_flags,
        json=True,
        examples=Examples(
            ("%aml_model download digits:1 --to digits-1",), ("amltrain model download digits --to digits-model",)
        ),
    ),
)


def listing_text(rows: Sequence[ModelRow], prog: str = "%aml_model") -> str:
    """Return the table of models."""
    if not rows:
        return f"No models yet. Register one from a run: {prog} register NAME"
    now = time.time()
    return table(
        ("model", "type", "created", "run", "description"),
        [
            (f"{row.name}:{row.version}", row.type, ago(row.created, now), row.run, row.description or _tags(row))
            for row in rows
        ],
    )


def registered_text(row: ModelRow, prog: str = "%aml_model") -> str:
    """Return one sentence about a new version."""
    kind = " as an MLflow model" if row.type == "mlflow_model" else ""
    model = f"{row.name}:{row.version}"
    where = f" --workspace {quote(row.workspace)}" if row.workspace else ""
    return f"Registered {model}{kind} from {row.run}. Download it with: {prog} download {model}{where}"


def downloaded_text(copy: DownloadedModel) -> str:
    """Return one sentence about a downloaded model."""
    size = f"{copy.bytes / 1e6:.1f} MB" if copy.bytes >= 1e5 else f"{copy.bytes / 1e3:.1f} kB"
    files = "1 file" if copy.files == 1 else f"{copy.files} files"
    return f"Downloaded {copy.name}:{copy.version} to {tilde(copy.folder)} ({files}, {size})."


def _tags(row: ModelRow) -> str:
    return " ".join(f"{key}={value}" for key, value in row.tags.items())
