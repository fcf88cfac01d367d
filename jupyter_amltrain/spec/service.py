"""What only a cloud service offers a job: an identity, doors into it while it runs, its place in a queue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.spec import azure_terms

IDENTITIES = azure_terms.IDENTITIES.names
SERVICES = azure_terms.SERVICES.names
PRIORITIES = azure_terms.PRIORITIES.names
TIERS = azure_terms.TIERS.names
_CLIENT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PUBLIC_KEY = re.compile(r"(?:ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/]+=*(?: [^\r\n]*)?")


def check_service(identity: str, services: Sequence[str], priority: str, tier: str) -> None:
    """Raise :class:`SpecError` where one of them is no word of the service."""
    kind, colon, client = identity.partition(":")
    if identity and kind not in IDENTITIES:
        raise SpecError(
            f"--identity {identity[:80]!r}: it is user (yours), managed (the compute's) or aml (the workspace's).",
            hint="Try: --identity managed",
            code="spec.value",
            field="identity",
        )
    if colon and (kind != "managed" or not _CLIENT.fullmatch(client)):
        raise SpecError(
            f"--identity {identity[:80]!r}: what follows 'managed:' is a client id, and nothing follows the others.",
            hint="Try: --identity managed:00000000-0000-0000-0000-000000000000",
            code="spec.value",
            field="identity",
        )
    kinds = [service.partition(":")[0] for service in services]
    for service, of in zip(services, kinds, strict=True):
        _check_door(of, service.partition(":")[2])
    if twice := [of for of in kinds if kinds.count(of) > 1]:
        raise SpecError(
            f"--service {twice[0]} is given twice.", hint="Give it once.", code="spec.value", field="services"
        )
    if priority not in ("", *PRIORITIES):
        raise SpecError(
            f"--priority {priority[:80]!r}: it is one of {', '.join(PRIORITIES)}.",
            hint="Try: --priority low",
            code="spec.value",
            field="priority",
        )
    if tier not in ("", *TIERS):
        raise SpecError(
            f"--tier {tier[:80]!r}: it is one of {', '.join(TIERS)}; spot is low priority.",
            hint="Try: --tier spot",
            code="spec.value",
            field="tier",
        )


def _check_door(kind: str, rest: str) -> None:
    if kind not in SERVICES:
        raise SpecError(
            f"--service {kind[:80]!r}: it is one of {', '.join(SERVICES)}.",
            hint="Try: --service jupyterlab",
            code="spec.value",
            field="services",
        )
    if kind == "ssh" and not _PUBLIC_KEY.fullmatch(rest):
        # What stands there may be a private key: it is not repeated.
        raise SpecError(
            "--service ssh: what follows 'ssh:' is no public key.",
            hint="Try: --service ssh:~/.ssh/id_ed25519.pub",
            code="spec.value",
            field="services",
        )
    if kind in ("jupyterlab", "vscode") and rest:
        raise SpecError(
            f"--service {kind}: nothing follows it.", hint=f"Try: --service {kind}", code="spec.value", field="services"
        )
    if kind == "tensorboard" and ("\n" in rest or ".." in rest.split("/")):
        raise SpecError(
            "--service tensorboard: what follows is the folder of its logs.",
            hint="Try: --service tensorboard:logs",
            code="spec.value",
            field="services",
        )
