"""``compute connect|workspaces|disconnect``: Azure ML workspaces, and the form that writes a connect line."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jupyter_amltrain.commands import magic_line
from jupyter_amltrain.commands.forms import actions_of, form_field
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Result, parser_of
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.schema.fields import Field
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import table, tilde

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.azure.workspaces import WorkspaceRef

#: Maximum number of folders, upward, that are searched for a configuration; the same as in the SDK.
MAX_LEVELS = 20
#: Parts of a workspace's address, and their keys in a configuration.
CONFIG_KEYS = {"subscription": "subscription_id", "resource_group": "resource_group", "workspace": "workspace_name"}
#: The magic at the start of the line that a form writes.
MAGIC = "%aml_compute connect"
#: Fields that a form hides at first.
_ADVANCED = ("tenant",)
_METHODS = ("auto", "browser", "device")


# ---- the commands


def _connect_flags(parser: Parser) -> None:
    parser.flag(
        "--config",
        metavar="FILE",
        help="config.json from the portal; default: the nearest one, here or in a folder above",
    )
    parser.flag("--subscription", metavar="S", default="", help="id or name of the subscription")
    parser.flag("--resource-group", metavar="G", default="", help="resource group of the workspace")
    parser.flag("--workspace", metavar="W", default="", help="name of the workspace")
    parser.flag("--tenant", metavar="T", default="", help="directory (tenant); default: that of the subscription")
    parser.flag(
        "--sign-in",
        dest="method",
        metavar="HOW",
        default="",
        choices=_METHODS,
        offers=_METHODS,
        help="auto: environment variables, managed identity, az login, else interactive; browser; device: a code",
    )
    parser.flag("--name", metavar="NAME", default="", help="local name of the workspace; default its own name")


def _connect(args: argparse.Namespace, context: Context) -> Result:
    import msgspec

    from jupyter_amltrain.azure import functions

    try:
        connected = functions.connect(workspace_ref(args), context.sign_in)
    except KeyboardInterrupt:
        raise AmlTrainError("Connecting was interrupted; nothing has changed.", code="interrupted") from None
    data = msgspec.to_builtins(connected)
    del data["facts"]["account"]
    return Result(connected.message(), data)


def _workspaces(args: argparse.Namespace, context: Context) -> Result:
    rows = listing()
    return Result(listing_text(rows), rows)


def _disconnect_flags(parser: Parser) -> None:
    parser.flag("workspace", metavar="NAME", help="name of the workspace")
    parser.flag("-y", "--yes", action="store_true", help="disconnect even if runs are still active there")


def _disconnect(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.azure import functions

    text = functions.disconnect(args.workspace, confirmed=args.yes)
    return Result(text, {"message": text})


COMMANDS = (
    Command(
        verb="connect",
        summary="Connect an Azure ML workspace: its computes become targets.",
        run=_connect,
        flags=_connect_flags,
        json=True,
    ),
    Command(
        verb="workspaces",
        summary="List the connected Azure ML workspaces; * marks the current one.",
        run=_workspaces,
        json=True,
    ),
    Command(
        verb="disconnect",
        summary="Forget a workspace and its targets; nothing changes in Azure.",
        run=_disconnect,
        flags=_disconnect_flags,
        json=True,
    ),
)


# ---- operations


def workspace_ref(
    args: argparse.Namespace, folder: Path | None = None, names: Sequence[str] | None = None
) -> WorkspaceRef:
    """Return the workspace to connect: from the flags, else from a ``config.json``, else a connected workspace.

    Parameters
    ----------
    folder
        Folder where the search for a ``config.json`` starts, upward; default the working folder.
    names
        Names of the connected workspaces if they are known already.

    Raises
    ------
    CommandError
        A flag is missing, or the file cannot be used.
    """
    from jupyter_amltrain.azure.workspaces import WorkspaceRef

    rest = {"tenant": args.tenant, "method": args.method, "name": args.name}
    parts = {key: str(getattr(args, key)) for key in CONFIG_KEYS}
    if all(parts.values()):
        return WorkspaceRef(**parts, **rest)
    if any(parts.values()) and not args.config:
        missing = [key.replace("_", "-") for key, value in parts.items() if not value]
        flags = " and ".join(f"--{name}" for name in missing)
        raise CommandError(
            f"{flags} {'is' if len(missing) == 1 else 'are'} missing.",
            hint="Give all three, or --config config.json.",
            code="connect.incomplete",
            field=missing[0],
        )
    if not args.config and args.name and args.name in (names := _connected_names(names)):
        return WorkspaceRef(**rest)
    path = config_of(args, folder)
    if path is None:
        if _connected_names(names):
            return WorkspaceRef(**rest)
        raise CommandError(
            f"No config.json in {folder or Path(working_folder())} or above it.",
            hint="Download it from the workspace's page in the portal, or type: "
            "%aml_compute connect --subscription S --resource-group G --workspace W",
            code="connect.no_config",
            field="config",
        )
    configured = read_config(path)
    typed = {key: value for key, value in {**parts, **rest}.items() if value}
    return WorkspaceRef(**{**configured, **typed})


def _connected_names(names: Sequence[str] | None) -> Sequence[str]:
    if names is not None:
        return names
    from jupyter_amltrain.azure import functions

    return [facts.name for facts in functions.workspaces()[0]]


def config_of(args: argparse.Namespace, folder: Path | None = None) -> Path | None:
    """Return the path of ``--config``, else the nearest configuration."""
    return Path(args.config).expanduser() if args.config else find_config(folder or Path(working_folder()))


def find_config(folder: Path) -> Path | None:
    """Return the nearest ``config.json`` or ``.azureml/config.json`` upward, as ``MLClient.from_config`` finds it."""
    folder = folder.absolute()
    for parent in (folder, *list(folder.parents)[: MAX_LEVELS - 1]):
        for path in (parent / "config.json", parent / ".azureml" / "config.json"):
            if path.is_file() and (path.parent.name == ".azureml" or _is_of_workspace(path)):
                return path
    return None


def _is_of_workspace(path: Path) -> bool:
    """Whether a config.json describes a workspace; other programs have files of that name too."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return False
    return "subscription" in text.lower() or "workspace" in text.lower() or '"Scope"' in text


def read_config(path: Path) -> dict[str, str]:
    """Return the parts of the workspace that a ``config.json`` names.

    Raises
    ------
    CommandError
        The file cannot be read, is not JSON, or lacks keys, which the message names.
    """
    try:
        value = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise _config_error(f"Cannot read {path}: {error.strerror or error}.", "Check the path.") from error
    except ValueError as error:
        raise _config_error(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise _config_error(f"{path} is not a JSON object.")
    scope = str(value.get("Scope") or "").strip("/").split("/")
    if len(scope) >= 8 and scope[0].lower() == "subscriptions":  # an older format
        return {"subscription": scope[1], "resource_group": scope[3], "workspace": scope[7]}
    missing = [key for key in CONFIG_KEYS.values() if not isinstance(value.get(key), str) or not value[key].strip()]
    if missing:
        raise _config_error(f"{path} lacks {' and '.join(missing)}.")
    placeholder = [key for key in CONFIG_KEYS.values() if value[key].strip().startswith("<")]
    if placeholder:
        message = f"{path} still has a placeholder in {placeholder[0]}: {value[placeholder[0]]}."
        raise _config_error(message, "Fill it in.")
    parts = {part: value[key].strip() for part, key in CONFIG_KEYS.items()}
    return {**parts, "tenant": str(value.get("tenant_id") or "")}


def _config_error(
    message: str, hint: str = "Download it again from the workspace's page in the portal."
) -> CommandError:
    return CommandError(message, hint=hint, code="connect.config", field="config")


def listing() -> list[dict[str, Any]]:
    """Return the connected workspaces as JSON-serializable rows."""
    import msgspec

    from jupyter_amltrain import api
    from jupyter_amltrain.azure import functions
    from jupyter_amltrain.azure.workspace_file import rows_of

    rows = rows_of(*functions.workspaces(), api.targets())
    return [{**msgspec.to_builtins(row), "targets": list(row.targets)} for row in rows]


def listing_text(rows: list[dict[str, Any]]) -> str:
    """Return the table of ``compute workspaces``."""
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


# ---- the form


@dataclasses.dataclass
class ConnectLine:
    """A connect line, its errors by field (``""``: the whole line), the workspace it would connect, and a note."""

    line: str
    errors: dict[str, str]
    workspace: WorkspaceRef | None = None  #: ``None`` if there are errors, or if only IPython knows the values
    note: str = ""


@functools.lru_cache(maxsize=1)
def _parser() -> Parser:
    return parser_of("compute", "%aml_compute").verbs["connect"]


@functools.lru_cache(maxsize=1)
def connect_fields() -> tuple[Field, ...]:
    """Return the fields of a connect form, in the order of the help."""
    shown = [name for name in actions_of(_parser()) if name not in _ADVANCED]
    fields = (form_field(name, action, shown) for name, action in actions_of(_parser()).items())
    # The placeholders `S` and `G` mean nothing in a form.
    return tuple(replace(field, metavar="" if len(field.metavar) == 1 else field.metavar) for field in fields)


def compose(values: Mapping[str, Any], known: Sequence[str], folder: Path | None = None) -> ConnectLine:
    """Write the line for the values of a form, and check it as the magic would.

    Parameters
    ----------
    values
        By name of a field; fields without a value are left out of the line.
    known
        Names of the connected workspaces.
    folder
        Folder where the search for a ``config.json`` starts; default the kernel's folder.
    """
    actions = actions_of(_parser())
    errors = {name: f"connect has no field {name!r}." for name in values if name not in actions}
    texts = {name: text for name in actions if (text := str(values.get(name) or "").strip())}
    words = [MAGIC]
    for name, text in texts.items():
        try:
            words.append(magic_line.flag_with_value(actions[name].option_strings[-1], text))
        except CommandError as error:
            errors[name] = str(error)
    line = ConnectLine(" ".join(words), errors)
    if errors or magic_line.unexpanded(texts.values()):
        return line
    try:
        args = _parser().parse([f"{actions[name].option_strings[-1]}={text}" for name, text in texts.items()])
    except CommandError as error:
        line.errors[error.field if error.field in actions else ""] = str(error)
        return line
    try:
        line.workspace = workspace_ref(args, folder, known)
    except CommandError as error:
        line.errors[error.field] = str(error)
    else:
        line.note = _note(args, line.workspace, folder)
    return line


def _note(args: argparse.Namespace, place: WorkspaceRef, folder: Path | None) -> str:
    if all(getattr(args, key) for key in CONFIG_KEYS):
        return ""
    path = config_of(args, folder)
    if path is None or not place.workspace:
        return ""
    return f"{tilde(str(path))} names {place.workspace} in {place.resource_group}."
