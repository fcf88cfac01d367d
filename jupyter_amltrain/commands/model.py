"""``model``: what a run left becomes a model that can be found and fetched again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.quoting import quote
from jupyter_amltrain.commands.tables import ago, table
from jupyter_amltrain.naming import tilde

if TYPE_CHECKING:
    from jupyter_amltrain.models import Fetched, ModelRow

Say = Callable[[str], None]


def carry_out(asked: argparse.Namespace, say: Say = lambda _: None, prog: str = "%aml_model") -> tuple[str, Any]:
    """Do what a parsed line asks for.

    Parameters
    ----------
    say
        Takes sentences on how far it is.

    Returns
    -------
    tuple
        The text for people, and the same as data.

    Raises
    ------
    AmlTrainError
        It cannot be done.
    """
    import msgspec

    from jupyter_amltrain import api
    from jupyter_amltrain.models import name_and_version

    text: str
    value: Any
    if asked.verb == "list":
        rows = api.models(workspace=asked.workspace)
        text, value = listing_text(rows, prog), rows
    elif asked.verb == "register":
        row = api.register_model(
            asked.name,
            run=asked.run,
            path=asked.path,
            type=asked.type or "",
            description=asked.description,
            tags=dict(asked.tag),
            progress=say,
        )
        text, value = registered_text(row, prog), row
    else:
        name, version = name_and_version(asked.model)
        found = api.download_model(name, version, to=asked.to, workspace=asked.workspace, progress=say)
        text, value = fetched_text(found), found
    return text, msgspec.to_builtins(value)


def listing_text(rows: Sequence[ModelRow], prog: str = "%aml_model") -> str:
    """The models as a table."""
    if not rows:
        return f"No models yet. One is made of what a run left: {prog} register NAME"
    now = time.time()
    return table(
        ("model", "type", "created", "run", "description"),
        [
            (f"{row.name}:{row.version}", row.type, ago(row.created, now), row.run, row.description or _tags(row))
            for row in rows
        ],
    )


def registered_text(row: ModelRow, prog: str = "%aml_model") -> str:
    """One sentence about a new version."""
    what = row.type.replace("_model", "").replace("mlflow", "an MLflow model").replace("custom", "files as they are")
    model = f"{row.name}:{row.version}"
    where = f" --workspace {quote(row.workspace)}" if row.workspace else ""
    return f"{model} is registered ({what}), of {row.run}. Download it with: {prog} download {model}{where}"


def fetched_text(found: Fetched) -> str:
    """One sentence about a copied model."""
    size = found.bytes
    shown = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
    many = "1 file" if found.files == 1 else f"{found.files} files"
    return f"{found.name}:{found.version} is in {tilde(found.folder)} ({many}, {shown})."


def _tags(row: ModelRow) -> str:
    return " ".join(f"{key}={value}" for key, value in row.tags.items())
