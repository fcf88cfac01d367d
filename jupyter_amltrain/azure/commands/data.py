"""``data``: upload files as data of an Azure ML workspace, list and show data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.magic_line import quote
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.text import ago, bytes_text, pairs, table

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.azure.data_assets import DataAsset

#: Seconds between two lines about the progress of an upload; the first comes after one second.
_NOTICE_INTERVAL_S = 5.0


def _workspace_flag(parser: Parser) -> None:
    parser.flag(
        "--workspace", metavar="NAME", default="", help="a connected workspace; default that of the target in use"
    )


def _seldom(notify: Callable[[str], Any]) -> Callable[[str], None]:
    """Return `notify` for texts that change all the time."""
    shown_at = [time.monotonic() - _NOTICE_INTERVAL_S + 1.0]

    def show(text: str) -> None:
        if time.monotonic() - shown_at[0] >= _NOTICE_INTERVAL_S:
            shown_at[0] = time.monotonic()
            notify(text)

    return show


def _list(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.azure import functions

    rows = functions.data_assets(workspace=args.workspace)
    return Result(listing_text(rows, context.prog), rows)


def _upload_flags(parser: Parser) -> None:
    parser.flag("name", metavar="NAME", help="name of the data; adds a version if it exists with other content")
    parser.flag("path", metavar="PATH", help="file or folder; its .amlignore or .gitignore is respected")
    parser.flag("--version", metavar="V", default="", help="default the next number; refused if it has other content")
    parser.flag("--type", metavar="TYPE", default="", help="uri_file, uri_folder or mltable; default by the path")
    parser.flag("--description", metavar="TEXT", default="", help="description of the version")
    parser.flag("--tag", metavar="K=V", type=flag_types.tag, repeated=True, help="tag of the version")
    _workspace_flag(parser)
    parser.flag("--wait", action="store_true", help="no effect: an upload always waits until the data is there")


def _upload(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.azure import functions

    row = functions.upload_data(
        args.name,
        args.path,
        args.version,
        type=args.type,
        description=args.description,
        tags=dict(args.tag),
        workspace=args.workspace,
        progress=_seldom(context.notify),
    )
    return Result(uploaded_text(row), row)


def _show_flags(parser: Parser) -> None:
    parser.flag("data", metavar="NAME[:V]", help="name, or name and version; default the newest version")
    _workspace_flag(parser)


def _show(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.azure import functions
    from jupyter_amltrain.azure.data_assets import name_and_version

    name, version = name_and_version(args.data)
    row = functions.data_asset(name, version, workspace=args.workspace)
    return Result(shown_text(row), row)


COMMANDS = (
    Command(
        verb="list",
        summary="List the data of the workspace, newest version first.",
        run=_list,
        flags=_workspace_flag,
        json=True,
        examples=Examples(("%aml_data",), ("amltrain data list --json",)),
    ),
    Command(
        verb="upload",
        summary="Upload a file or folder as a version of data, unless the workspace has it.",
        run=_upload,
        flags=_upload_flags,
        json=True,
        examples=Examples(
            ("%aml_data upload digits data/digits.csv", "%aml_data upload images ./images --version 2"),
            ("amltrain data upload digits data/digits.csv",),
        ),
    ),
    Command(
        verb="show",
        summary="Show a version of data: its type, address, digest, and how to use it.",
        run=_show,
        flags=_show_flags,
        json=True,
        examples=Examples(("%aml_data show digits:1",)),
    ),
)


def listing_text(rows: Sequence[DataAsset], prog: str = "%aml_data") -> str:
    """Return the table of data."""
    if not rows:
        return f"No data yet. Upload a file or folder: {prog} upload NAME PATH"
    now = time.time()
    return table(
        ("data", "type", "created", "description"),
        [(f"{row.name}:{row.version}", row.type, ago(row.created, now), row.description or _tags(row)) for row in rows],
    )


def uploaded_text(row: DataAsset) -> str:
    """Return what an upload has done, and how to use the data."""
    count = "1 file" if row.files == 1 else f"{row.files} files"
    sent = f"{bytes_text(row.sent)} sent" if row.sent else "nothing sent, because the storage has it already"
    made = "Registered" if row.new else "Unchanged:"
    use = f"Use it with --input {quote(f'data={row.address}')}"
    return f"{made} {row.name}:{row.version} ({count}, {bytes_text(row.bytes)}; {sent}). {use}"


def shown_text(row: DataAsset) -> str:
    """Return the facts of a version."""
    facts = [
        ("data", f"{row.name}:{row.version}"),
        ("type", row.type),
        ("workspace", row.workspace),
        ("created", ago(row.created, time.time()) if row.created else ""),
        ("description", row.description),
        ("tags", _tags(row)),
        ("address", row.path),
        ("sha256", row.sha256),
        ("use", f"--input data={row.address}"),
    ]
    return pairs([(name, text) for name, text in facts if text])


def _tags(row: DataAsset) -> str:
    return " ".join(f"{key}={value}" for key, value in row.tags.items())
