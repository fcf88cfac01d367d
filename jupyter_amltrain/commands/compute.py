"""``compute``: list, check, choose, create, change and delete the targets where jobs run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.backends.provisioner import SCALE_FIELDS
from jupyter_amltrain.backends.target_kinds import forms
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.quota import QUOTA
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import AmlTrainError, CommandError, ConfirmationNeeded
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.kernel.target_gpus import gpu_rows, slots_reason
from jupyter_amltrain.kernel.target_status import PARTICIPLES, gpus_text, info_text, lost_text, use_text
from jupyter_amltrain.schema.fields import NAME, Field, TargetKind
from jupyter_amltrain.text import ago, bytes_text, pairs, table, tilde

if TYPE_CHECKING:
    from jupyter_amltrain.schema.target import TargetInfo

#: Prefix of a field's name in the parsed arguments.
VALUE_PREFIX = "value_"
#: Maximum wait of ``list`` for a service that does not respond (seconds).
LIST_TIMEOUT_S = 0.9
#: A shorter name of ``--min-nodes``.
_NODES = Field(name="nodes", flag="--nodes", kind="int")


# ---- the commands


def _list(args: argparse.Namespace, context: Context) -> Result:
    rows = listing()
    return Result(listing_text(rows), rows)


def _optional_target(parser: Parser) -> None:
    parser.flag("target", nargs="?", help="name of the target; default the one in use")


def _target(parser: Parser) -> None:
    parser.flag("target", help="name of the target")


def _show(args: argparse.Namespace, context: Context) -> Result:
    info = show(args.target, wait=False)
    return Result(show_text(info), info)


def _test(args: argparse.Namespace, context: Context) -> Result:
    info = show(args.target)
    return Result(info_text(info), info)


def _use(args: argparse.Namespace, context: Context) -> Result:
    default = args.default or not context.magic  # a terminal has no notebook
    return Result(use(args.target, default=default), {"current": args.target, "default": default})


def _use_flags(parser: Parser) -> None:
    _target(parser)
    parser.flag(
        "--default", action="store_true", help="for this notebook and all that have chosen none; always in a terminal"
    )


def _edit_flags(parser: Parser) -> None:
    _target(parser)
    parser.flag(
        "--share-gpus",
        metavar="yes|no",
        type=flag_types.share_gpus,
        help="whether its runs may get GPUs that other processes use",
    )
    parser.flag(
        "--idle-shutdown", metavar="TIME", type=flag_types.minutes, samples=("30m", "1h", "off"),
        help="stop the idle machine after this time (a number: minutes), or off: never",
    )  # fmt: skip
    for verb in ("start", "stop"):
        parser.flag(
            f"--schedule-{verb}", metavar="HH:MM|CRON", samples=("18:30", "off"),
            help=f"{verb} the instance daily at this time, or by a cron expression (UTC), or off",
        )  # fmt: skip


def _edit(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    changes: dict[str, Any] = {"idle_shutdown": args.idle_shutdown}
    for name in ("schedule_start", "schedule_stop"):
        changes[name] = "" if getattr(args, name) == flag_types.OFF else getattr(args, name)
    changes["share_gpus"] = None if args.share_gpus is None else args.share_gpus == "yes"
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise CommandError(
            "compute edit: nothing to change.",
            hint=f"Example: %aml_compute edit {args.target} --share-gpus yes",
            code="compute.nothing_to_change",
        )
    settings = api.configure_target(args.target, **changes)
    return Result(_edit_text(args.target, settings), {"target": args.target, **settings})


def _operation_flags(parser: Parser) -> None:
    """Add the flags of operations that take time, and may cost money or lose data."""
    parser.flag("-y", "--yes", action="store_true", help="confirm the cost or loss")
    text = "wait until it is done; an error if it fails"
    parser.flag("--wait", action="store_true", help=text if parser.magic else "no effect: a terminal always waits")


def _creation_flags(verb: str) -> Callable[[Parser], None]:
    """Return a function that adds the flags of ``create`` or ``attach``: the fields of the kinds of targets."""

    def add(parser: Parser) -> None:
        kinds = [kind for kind in forms() if kind.verb == verb]
        parser.flag("name", metavar="NAME", help=kinds[0].fields[0].help)
        text = "; ".join(f"{kind.kind}: {kind.title}" for kind in kinds)
        parser.flag("--kind", metavar="KIND", default="", help=text, offers=[kind.kind for kind in kinds])
        _add_fields(parser, kinds)
        _operation_flags(parser)

    return add


def _change_flags(parser: Parser) -> None:
    _target(parser)
    _operation_flags(parser)


def _scale_flags(parser: Parser) -> None:
    _target(parser)
    for field in SCALE_FIELDS:
        _add_field(parser, field)
    parser.flag(
        "--nodes", dest=f"{VALUE_PREFIX}nodes", metavar="N", default=argparse.SUPPRESS, help="the same as --min-nodes",
        samples=("2", "4"),
    )  # fmt: skip
    _operation_flags(parser)


def _operate(args: argparse.Namespace, context: Context) -> Result:
    """Create, attach, start, stop, restart, scale or delete."""
    wait = args.wait or not context.magic  # this process runs the operation, so a shell waits
    try:
        text = run(args, wait=wait, write=context.notify)
    except KeyboardInterrupt:
        if context.magic:
            doing = "stopping" if args.verb == "stop" else f"{args.verb.rstrip('e')}ing"
            message = f"Still {doing} {_name_of(args)!r} in the background."
            raise AmlTrainError(message, hint="To see its progress: %aml_compute list", code="interrupted") from None
        raise AmlTrainError(f"interrupted; {abandoned_text(args)}", code="interrupted") from None
    return Result(text, {"message": text})


def _operation(verb: str, summary: str, flags: Callable[[Parser], Any], examples: Examples = Examples()) -> Command:  # noqa: B008
    return Command(verb=verb, summary=summary, run=_operate, flags=flags, json=True, examples=examples)


COMMANDS = (
    Command(
        verb="list",
        summary="List the compute targets; * marks the one in use.",
        run=_list,
        json=True,
        examples=Examples(("%aml_compute",), ("amltrain compute",)),
    ),
    Command(
        verb="show",
        summary="Show a target: processors, memory, GPUs, slots, and what a run there survives.",
        run=_show,
        flags=_optional_target,
        json=True,
        examples=Examples((), ("amltrain compute show local --json",)),
    ),
    Command(
        verb="use",
        summary="Send the new runs of this notebook to a target.",
        run=_use,
        flags=_use_flags,
        json=True,
        examples=Examples(("%aml_compute use local", "%aml_compute use local --default")),
    ),
    Command(
        verb="edit",
        summary="Change settings of a target; they apply at once, also to queued runs.",
        run=_edit,
        flags=_edit_flags,
        json=True,
        examples=Examples(("%aml_compute edit desk --idle-shutdown 30m --schedule-stop 18:30",)),
    ),
    Command(
        verb="test",
        summary="Check whether a target can run jobs now.",
        run=_test,
        flags=_optional_target,
        json=True,
    ),
    QUOTA,
    _operation(
        "create",
        "Create a target.",
        _creation_flags("create"),
        Examples(
            ("%aml_compute create lab --kind fake --size gpu-v100 --max-nodes 4 --yes",),
            ("amltrain compute create lab --kind fake --size gpu-v100 --yes",),
        ),
    ),
    _operation("attach", "Use an existing machine as a target.", _creation_flags("attach")),
    _operation("start", "Start the machine of a target.", _change_flags),
    _operation("stop", "Stop the machine of a target; the runs on it end.", _change_flags),
    _operation("restart", "Restart the machine of a target; the runs on it end.", _change_flags),
    _operation(
        "scale",
        "Change the nodes and the idle time of a cluster.",
        _scale_flags,
        Examples(("%aml_compute scale lab --nodes 2 --yes --wait",)),
    ),
    _operation(
        "delete",
        "Delete a target with its machines.",
        _change_flags,
        Examples(("%aml_compute delete lab",)),
    ),
)


# ---- flags from the fields of the targets


def _add_fields(parser: Parser, kinds: Sequence[TargetKind]) -> None:
    """Add a flag for each field of any kind; whether the chosen kind has the field is checked with the values."""
    known = {flag for action in parser._actions for flag in action.option_strings}
    by_flag: dict[str, list[tuple[str, Field]]] = {}
    for kind in kinds:
        for field in kind.fields:
            if field.flag and field.flag not in known:
                by_flag.setdefault(field.flag, []).append((kind.kind, field))
    for fields in by_flag.values():
        _add_field(parser, *_merged(fields, len(kinds)))


def _merged(fields: Sequence[tuple[str, Field]], kinds: int) -> tuple[Field, str]:
    """Merge fields of one name of several kinds into one flag; its help names the kinds that have the field."""
    first = fields[0][1]
    texts: dict[str, list[str]] = {}
    for kind, field in fields:
        texts.setdefault(_field_help(field), []).append(kind)
    if len(fields) == kinds and len(texts) == 1:
        return first, _field_help(first)
    choices = tuple(dict.fromkeys(choice for _, field in fields for choice in field.choices))
    text = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
    return msgspec.structs.replace(first, choices=choices), text


def _field_help(field: Field) -> str:
    """Return the help of one kind's field, with its choices and default."""
    choices = [choice for choice in field.choices if choice]
    text = field.help + (f" ({', '.join(choices)})" if choices else "")
    if field.kind != "bool" and field.default not in (None, "", (), []):
        default = field.default
        text += f", default {f'{default:g}' if isinstance(default, float) else default}"
    return text


class _Joined(argparse.Action):
    """Joins the values of a flag that is given several times with commas."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, "")
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


def _minutes(text: str) -> str:
    """``1h`` -> ``60``; another text is judged as the field's value."""
    try:
        return text if text.isdecimal() else f"{flag_types.minutes(text):g}"
    except CommandError:
        return text


def _add_field(parser: Parser, field: Field, text: str = "") -> None:
    text = text or _field_help(field)
    options: dict[str, Any] = {"dest": VALUE_PREFIX + field.name, "default": argparse.SUPPRESS}
    flag = field.flag
    if field.kind == "bool":
        options |= {"action": "store_const", "const": not field.default}
        if field.default:
            flag, text = f"--no-{flag[2:]}", f"turns this off: {text}"
    else:
        options["metavar"] = field.metavar or field.name.upper()
        if field.metavar == "MINUTES":
            options["type"] = _minutes
        if field.kind == "list":
            options["action"] = "append"
        elif field.joined:
            options["action"] = _Joined
    offers = [choice for choice in field.choices if choice]
    parser.flag(flag, help=text.replace("%", "%%"), field=field.name, offers=offers, **options)


def fields_for(verb: str, kind: str) -> tuple[Field, ...]:
    """Return the fields that a verb takes."""
    if verb == "scale":
        return (*SCALE_FIELDS, _NODES)
    return next((form.fields for form in forms() if form.kind == kind and form.verb == verb), ())


def line_of(verb: str, target: str, kind: str = "", values: Mapping[str, Any] | None = None) -> str:
    """Return the magic line that does the same as a form or a click; values equal to the default are left out.

    Empty for an action without such a line.
    """
    if verb == "dismiss":
        return ""
    field_values = dict(values or {})
    words = ["%aml_compute", verb, target or str(field_values.get(NAME.name) or "")]
    if kind:
        words += ["--kind", kind]
    for field in fields_for(verb, kind):
        value = field_values.get(field.name)
        if not field.flag or value is None or value == "" or _same(value, field.default):
            continue
        if field.kind == "bool":
            words.append(field.flag if value else f"--no-{field.flag[2:]}")
            continue
        if field.joined and isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        for part in value if isinstance(value, (list, tuple)) else [value]:
            words += [field.flag, str(part).removesuffix(".0") if isinstance(part, float) else str(part)]
    return " ".join(shlex.quote(word) if i else word for i, word in enumerate(words) if word)


def _same(value: object, default: object) -> bool:
    return value == default and isinstance(value, bool) == isinstance(default, bool)


# ---- operations


def listing() -> list[dict[str, Any]]:
    """Return every target as a JSON-serializable row; one that does not respond in time has its last known state."""
    from jupyter_amltrain import api

    rows = []
    for row in api.compute_rows(LIST_TIMEOUT_S):
        fields = {"target": row.name, **msgspec.to_builtins(row)}
        del fields["name"], fields["acts"]
        rows.append(fields)
    return rows


def listing_text(rows: list[dict[str, Any]]) -> str:
    """Return the table of ``compute list``."""
    lines = []
    for row in rows:
        nodes, max_nodes = row["nodes"], row["max_nodes"]
        name = row["gpu_name"] or "GPU"
        lines.append(
            [
                "*" if row["current"] else "",
                row["target"],
                row["kind"],
                row["state"],
                row["size"],
                "" if nodes is None else f"{nodes} of {max_nodes}",
                "" if row["cpus"] is None else str(row["cpus"]),
                "" if row["memory"] is None else bytes_text(row["memory"]),
                "" if row["gpus"] is None else row["gpus_text"] or f"{row['gpus']} x {name}" if row["gpus"] else "none",
                _price(row),
                _now(row),
            ]
        )
    head = ["", "target", "kind", "state", "size", "nodes", "CPUs", "memory", "GPUs", "price", "now"]
    # Omit empty columns.
    used = [i for i in range(len(head)) if not i or any(line[i] for line in lines)]
    # The last column has errors with their remedy: do not truncate it.
    return table([head[i] for i in used], [[line[i] for i in used] for line in lines], whole_end=True)


def _price(row: dict[str, Any]) -> str:
    return "" if row["price"] is None else f"{row['price']:.2f} {row['currency']}/h"


def _now(row: dict[str, Any]) -> str:
    operation = row["work"] or {}
    if operation.get("error"):
        return f"{operation['verb']} failed {ago(operation['since'])}: {operation['error']}"
    if operation:
        return str(operation["detail"] or f"{operation['verb']} in progress")
    if row["state"] in ("unreachable", "failed"):
        return str(row["detail"])
    if row["state"] == "unknown":
        return "to check: %aml_compute test"
    runs = f"{row['running']} running, {row['queued']} queued"
    return f"{runs}; {row['quota']}" if row["quota"] else runs


def show(name: str | None = None, *, wait: bool = True) -> TargetInfo:
    """Check one target; default the one in use."""
    from jupyter_amltrain import api

    return api.compute(name, wait=wait)


def driver_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Return ``580.65.06, CUDA up to 13.0``; empty if it is unknown."""
    driver, cuda = (next((str(gpu[key]) for gpu in gpus if gpu.get(key)), "") for key in ("driver", "cuda"))
    return ", ".join(filter(None, (driver, cuda and f"CUDA up to {cuda}")))


#: How to install a program that a run can need, on Ubuntu first.
_INSTALL = {
    "uv": "for --env requirements.txt: python3 -m pip install uv",
    "conda": "for --env conda.yml: https://conda-forge.org/download",
    "docker": "for --env IMAGE: sudo apt-get install docker.io",
}


def _program_rows(programs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return rows such as ``uv: /usr/bin/uv`` and ``docker: not installed (...)``."""
    return [
        (name, path or " ".join(filter(None, ("not installed", f"({_INSTALL[name]})" if name in _INSTALL else ""))))
        for name, path in programs.items()
    ]


def show_text(info: TargetInfo) -> str:
    """Return the result of a check, as text."""
    facts = [
        ("target", f"{info.target} ({info.kind})"),
        ("state", "reachable" if info.reachable else "not reachable"),
        ("detail", info.detail),
        ("CPUs", "" if info.cpus is None else str(info.cpus)),
        ("memory", "" if info.memory is None else bytes_text(info.memory)),
        ("free disk", "" if info.disk_free is None else bytes_text(info.disk_free)),
        ("GPUs", ", ".join(filter(None, [gpus_text(info.gpus), lost_text(info.gpus_lost)])) or info.gpu_note or "none"),
    ]
    uses = dict(gpu_rows(info))
    for gpu in info.gpus:
        name = gpu_name(gpu)
        facts.append((f"  {name}", f"{gpu.get('name')}  {bytes_text(gpu.get('memory_total'))}  {gpu.get('uuid')}"))
        facts += [("", uses[name])] if name in uses else []
    facts += [
        (f"  {gpu_name(gpu)}", f"{gpu.get('name')}  lost: {gpu.get('reason')}  {gpu.get('uuid') or ''}".rstrip())
        for gpu in info.gpus_lost
    ]
    if driver := driver_text(info.gpus):
        facts.append(("driver", driver))
    for kind, slots in info.slots.items():
        reason = slots_reason(info) if kind == "gpu" and slots["free"] < slots["total"] else ""
        facts.append((f"{kind} slots", _slots_text(slots) + (f" ({reason})" if reason else "")))
    facts += [("GPU sharing", "allowed for every run (%aml_compute edit)" if info.share_gpus else "")]
    facts += [
        ("power", info.stops),
        ("runs", f"{info.running} running, {info.queued} queued"),
        ("Python", info.python),
        ("platform", info.platform),
        ("state folder", tilde(info.home)),
        *_program_rows(info.programs),
    ]
    lines = pairs(facts)
    if info.survives:
        lines += f"\n\nWill a run keep going?\n{pairs(_survival_rows(info.survives))}"
    return lines


#: Events that may end a run, as conditions.
_ENDS = {
    "kernel": "If the kernel stops",
    "server": "If Jupyter stops",
    "logout": "If you log out",
    "container": "If the container stops",
}


def _survival_rows(survives: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return rows such as ``If the kernel stops: yes (...)``."""
    rows = []
    for event, row in survives.items():
        reason = f" ({row['why']})" if row.get("why") else ""
        rows.append((f"{_ENDS.get(event, f'After the end of: {event}')}:", f"{row.get('answer', 'unknown')}{reason}"))
    return rows


def _slots_text(slots: Mapping[str, int]) -> str:
    """Return ``1 free of 2, 1 lost``."""
    lost = f", {slots['lost']} lost" if slots.get("lost") else ""
    return f"{slots['free']} free of {slots['total']}{lost}"


def _edit_text(name: str, settings: Mapping[str, Any]) -> str:
    """Return one sentence for each changed setting."""
    texts = []
    if settings.get("share_gpus"):
        texts.append(f"Runs on {name} may now share GPUs with other processes, including runs that are waiting.")
    elif "share_gpus" in settings:
        texts.append(f"Runs on {name} no longer get GPUs that other processes use, unless submitted with --share-gpus.")
    if settings.get("stops"):
        texts.append(f"{name} {settings['stops']}.")
    return " ".join(texts)


def use(name: str, *, default: bool = False) -> str:
    """Make a target the one of this notebook, or the default of all that have chosen none."""
    from jupyter_amltrain import api

    api.use(name, default=default)
    return use_text(name, default=default)


def run(args: argparse.Namespace, *, wait: bool, write: Callable[[str], Any]) -> str:
    """Create, start, stop, scale or delete a target according to parsed arguments; return one sentence.

    Parameters
    ----------
    write
        Takes lines about the progress while the call waits.

    Raises
    ------
    CommandError
        A value is invalid: `details` has every field with its error.
    ConfirmationNeeded
        ``--yes`` is missing: names the cost or the loss, and the line to type.
    """
    from jupyter_amltrain import api

    verb, kind, name = args.verb, getattr(args, "kind", ""), _name_of(args)
    values = {key[len(VALUE_PREFIX) :]: value for key, value in vars(args).items() if key.startswith(VALUE_PREFIX)}
    result = api.act(verb, name, kind=kind, values=values, confirmed=args.yes)
    if result.errors:
        raise _values_error(verb, kind, values, result.errors)
    if result.confirmation:
        line = line_of(verb, name, kind, values)
        raise ConfirmationNeeded(
            result.confirmation,
            hint=f"To go ahead, type: {line} --yes{' --wait' if getattr(args, 'wait', False) else ''}",
            code=f"confirm.{verb}",
        )
    if not result.begun:
        return result.message
    if not wait:
        progress = "To see the progress: %aml_compute list. To wait for the end, add --wait."
        return f"{name} is being {PARTICIPLES[verb]}. {progress}"
    return wait_for(name, write)


def _name_of(args: argparse.Namespace) -> str:
    return str(args.name if "name" in args else args.target)


def _values_error(verb: str, kind: str, values: Mapping[str, Any], errors: Mapping[str, str]) -> CommandError:
    """Return one error about all invalid fields; for a missing field it has the field's help."""
    fields = {field.name: field for field in fields_for(verb, kind)}
    flags = {name: field.flag for name, field in fields.items()} | {"kind": "--kind", "name": "NAME"}
    missing = {name for name, field in fields.items() if field.required and name != NAME.name and not values.get(name)}
    texts = [
        f"{flags.get(name) or name}: {text}" + (f" {fields[name].help}." if name in missing else "")
        for name, text in errors.items()
    ]
    return CommandError(
        " ".join(texts), code="compute.values", field=next(iter(errors)), details={"errors": dict(errors)}
    )


def abandoned_text(args: argparse.Namespace) -> str:
    """Return what happens to an operation when the process that waits for it ends."""
    from jupyter_amltrain import api
    from jupyter_amltrain.backends.provisioner import sending_text

    verb, name = args.verb, _name_of(args)
    try:
        text, detail = api.compute_progress(name, 0.0)
    except KeyError:
        return f"{name!r} has not changed."
    if text is not None:
        return text
    service = next((target.service for target in api.targets() if target.name == name), "")
    if not service:
        return f"{name!r} may be only partly {PARTICIPLES[verb]}. To check: %aml_compute list"
    if detail in ("", sending_text(service)):
        return f"{service} may or may not have received the request for {name!r}. To check: %aml_compute list"
    return f"{name!r} is still being {PARTICIPLES[verb]} in {service}. To see the progress: %aml_compute list"


def wait_for(name: str, write: Callable[[str], Any]) -> str:
    """Wait for the end of a target's operation; return its result in one sentence."""
    from jupyter_amltrain import api

    shown = ""
    while True:
        text, detail = api.compute_progress(name)
        if text is not None:
            return text
        if detail != shown:
            shown = detail
            write(detail)
