"""``compute quota``: what a target, or a service without one, lets this user have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.plugins import parts

if TYPE_CHECKING:
    import argparse


class ServiceQuota(NamedTuple):
    """Part ``quota`` of a plug-in: the quota of a service, where no target is named.

    Attributes
    ----------
    flags
        Adds the flags that choose what of the service is read.
    names
        Their names in the parsed arguments.
    read
        Returns tables for people, and rows for programs.
    """

    flags: Callable[[Parser], None]
    names: tuple[str, ...]
    read: Callable[[argparse.Namespace], tuple[str, Any]]


def _flags(parser: Parser) -> None:
    parser.flag("target", nargs="?", help="name of the target; default the one in use, or else the connected service")
    parser.flag("--all", action="store_true", help="also what allows nothing")
    for service in parts("quota"):
        service.flags(parser)


def _quota(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    services: tuple[ServiceQuota, ...] = parts("quota")
    chosen = [service for service in services if any(getattr(args, name) for name in service.names)]
    if not chosen and (found := api.target_quota(args.target, everything=args.all)) is not None:
        return Result(*found)
    service = next(iter(chosen or (services if not args.target else ())), None)
    if service is not None:
        return Result(*service.read(args))
    name = args.target or api.current_target()
    raise CommandError(
        f"{name!r} has no quota: its runs share its processors and GPUs.",
        hint=f"See them: %aml_compute show {name}",
        code="compute.quota",
    )


QUOTA = Command(
    verb="quota",
    summary="Your limits on a target, and what is used: shares of a cluster, cores of a service.",
    run=_quota,
    flags=_flags,
    json=True,
    examples=Examples(("%aml_compute quota", "%aml_compute quota cluster")),
)
