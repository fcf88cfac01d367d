"""``compute connect|workspaces|disconnect``: Azure ML workspaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parsing import Parser
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.state import working_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from jupyter_amltrain.connections import Connected, Place

#: The verbs of this room.
VERBS = ("connect", "workspaces", "disconnect")
#: How many folders upward a configuration is looked for; the SDK's number.
LEVELS = 20
#: Parts of a place, and what a configuration calls them.
KEYS = {"subscription": "subscription_id", "resource_group": "resource_group", "workspace": "workspace_name"}


def add_verbs(parser: Parser) -> None:
    """Add the verbs to the parser of ``compute``."""
    verb = parser.verb("connect", "Connect an Azure ML workspace: its computes become targets.")
    verb.add_argument(
        "--config", metavar="FILE", help="config.json of the portal; default: looked for from here upward"
    )
    verb.add_argument("--subscription", metavar="S", default="", help="id or name of the subscription")
    verb.add_argument("--resource-group", metavar="G", default="", help="resource group of the workspace")
    verb.add_argument("--workspace", metavar="W", default="", help="name of the workspace")
    verb.add_argument("--tenant", metavar="T", default="", help="directory; default: that of the subscription")
    sign_in = verb.add_argument(
        "--sign-in",
        dest="method",
        metavar="HOW",
        default="",
        choices=("auto", "browser", "device"),
        help="auto: environment, managed identity, az login, else a person; browser; device: a code",
    )
    sign_in.offers = ("auto", "browser", "device")  # type: ignore[attr-defined]
    verb.add_argument("--name", metavar="NAME", default="", help="what to call it here; default its own name")
    parser.verb("workspaces", "The connected Azure ML workspaces; * marks the current one.")
    verb = parser.verb("disconnect", "Forget a workspace and its targets; nothing is done at Azure.")
    verb.add_argument("workspace", metavar="NAME", help="name of the workspace")
    verb.add_argument("-y", "--yes", action="store_true", help="also while runs go on there")


def place_of(asked: argparse.Namespace, folder: Path | None = None, names: Sequence[str] | None = None) -> Place:
    """Where to connect to: what was typed, else a ``config.json``, else a workspace that is known.

    Parameters
    ----------
    folder
        Where a ``config.json`` is looked for, and upward; default the folder we are in.
    names
        The connected workspaces, where they have been read.

    Raises
    ------
    CommandError
        Something is missing, or the file cannot be used; says what.
    """
    from jupyter_amltrain.connections import Place

    rest = {"tenant": asked.tenant, "method": asked.method, "name": asked.name}
    given = {key: str(getattr(asked, key)) for key in KEYS}
    if all(given.values()):
        return Place(**given, **rest)
    if any(given.values()) and not asked.config:
        lacking = [f"--{key.replace('_', '-')}" for key, value in given.items() if not value]
        said = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing."
        raise CommandError(said, hint="Give all three, or --config config.json.")
    if not asked.config and asked.name and asked.name in (names := _known(names)):
        return Place(**rest)
    path = config_of(asked, folder)
    if path is None:
        if _known(names):
            return Place(**rest)
        raise CommandError(
            f"No config.json in {folder or Path(working_folder())} or above it.",
            hint="Download it from the workspace's page in the portal, or type: "
            "%aml_compute connect --subscription S --resource-group G --workspace W",
        )
    found = read(path)
    return Place(**{**found, **{k: v for k, v in given.items() if v}, **{k: v for k, v in rest.items() if v}})


def _known(names: Sequence[str] | None) -> Sequence[str]:
    if names is not None:
        return names
    from jupyter_amltrain import api

    return [one.name for one in api.workspaces()[0]]


def config_of(asked: argparse.Namespace, folder: Path | None = None) -> Path | None:
    """The configuration that was named, else the nearest one."""
    return Path(asked.config).expanduser() if asked.config else find(folder or Path(working_folder()))


def find(folder: Path) -> Path | None:
    """The nearest ``config.json`` or ``.azureml/config.json`` upward; ``MLClient.from_config`` looks the same way."""
    folder = folder.absolute()
    for here in (folder, *list(folder.parents)[: LEVELS - 1]):
        for path in (here / "config.json", here / ".azureml" / "config.json"):
            if path.is_file() and (path.parent.name == ".azureml" or _ours(path)):
                return path
    return None


def _ours(path: Path) -> bool:
    """Many programs have a config.json: one that says nothing of a workspace is somebody else's."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    return "subscription" in text.lower() or "workspace" in text.lower() or '"Scope"' in text


def read(path: Path) -> dict[str, str]:
    """The place that a ``config.json`` names.

    Raises
    ------
    CommandError
        It cannot be read, is no JSON, or lacks keys, which are named.
    """
    try:
        value = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise CommandError(f"Cannot read {path}: {error.strerror or error}.", hint="Check the path.") from error
    except ValueError as error:
        raise CommandError(
            f"{path} is no JSON: {error}.", hint="Download it again from the workspace's page."
        ) from error
    if not isinstance(value, dict):
        raise CommandError(f"{path} holds no JSON object.", hint="Download it again from the workspace's page.")
    scope = str(value.get("Scope") or "").strip("/").split("/")
    if len(scope) >= 8 and scope[0].lower() == "subscriptions":  # an older form
        return {"subscription": scope[1], "resource_group": scope[3], "workspace": scope[7]}
    lacking = [key for key in KEYS.values() if not isinstance(value.get(key), str) or not value[key].strip()]
    if lacking:
        raise CommandError(
            f"{path} lacks {' and '.join(lacking)}.", hint="Download it again from the workspace's page in the portal."
        )
    placeholder = [key for key in KEYS.values() if value[key].strip().startswith("<")]
    if placeholder:
        raise CommandError(
            f"{path} still has a placeholder in {placeholder[0]}: {value[placeholder[0]]}.", hint="Fill it in."
        )
    found = {ours: value[theirs].strip() for ours, theirs in KEYS.items()}
    return {**found, "tenant": str(value.get("tenant_id") or "")}


def carry_out(asked: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> tuple[str, Any]:
    """Do what a parsed line says; what is to be told, and as JSON.

    Parameters
    ----------
    show
        Takes ``{"kind": "progress" | "sign-in", "text", "url", "code"}``; a sign-in without text is over.
    """
    import msgspec

    from jupyter_amltrain import api

    if asked.verb == "workspaces":
        rows = listing()
        return listing_text(rows), rows
    if asked.verb == "disconnect":
        said = api.disconnect(asked.workspace, confirmed=asked.yes)
        return said, {"said": said}
    made: Connected = api.connect(place_of(asked), show)
    value = msgspec.to_builtins(made)
    del value["facts"]["account"]
    return made.said(), value


def listing() -> list[dict[str, Any]]:
    """The connected workspaces as JSON-able rows."""
    import msgspec

    from jupyter_amltrain import api
    from jupyter_amltrain.workspaces import rows_of

    rows = rows_of(*api.workspaces(), api.targets())
    return [{**msgspec.to_builtins(row), "targets": list(row.targets)} for row in rows]


def listing_text(rows: list[dict[str, Any]]) -> str:
    """The table of ``compute workspaces``."""
    from jupyter_amltrain.commands.tables import table

    if not rows:
        return "No Azure ML workspace is connected. Connect one: %aml_compute connect --config config.json"
    head = ["", "name", "location", "resource group", "subscription", "as", "targets"]
    return table(
        head,
        [
            [
                "*" if row["current"] else "",
                row["name"],
                row["location"],
                row["resource_group"],
                row["subscription"],
                row["user"],
                str(len(row["targets"])),
            ]
            for row in rows
        ],
    )


def sign_in_html(event: dict[str, Any]) -> str:
    """A sign-in as a link to click and a code to copy."""
    from html import escape

    text, url, code = (str(event.get(key) or "") for key in ("text", "url", "code"))
    if not url.startswith("https://"):
        return f"<p>{escape(text)}</p>"
    minutes = max(1, int(event.get("expires") or 0) // 60)
    return (
        f'<p>To sign in to Azure, open <a href="{escape(url, quote=True)}" target="_blank" rel="noopener">'
        f"{escape(url)}</a> and enter the code <code>{escape(code)}</code> (good for {minutes} minutes).</p>"
    )
