"""Login at a machine over SSH: options for asyncssh, the check of the machine's key, and errors in one sentence."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.base import ACCEPT, ACCEPT_QUESTION
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CommandError, TargetError, TargetUnreachable
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.secret_variables import value_of

if TYPE_CHECKING:
    import asyncssh

#: Machines of ``~/.ssh/config`` that a form offers.
_MAX_HOSTS = 100


class HostKeyCheck:
    """Accepts the key of a machine that ``known_hosts`` does not have, if its fingerprint is the accepted one.

    Attributes
    ----------
    fingerprint
        Of the key that the machine has shown; empty before.
    changed
        Whether ``known_hosts``, or the target, has another key for the machine.
    """

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self.fingerprint = ""
        self.changed = False

    def accept(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Return whether to trust a key that ``known_hosts`` does not have."""
        is_known = _is_known(host, addr, port)
        self.fingerprint = key.get_fingerprint()
        accepted = self._target.accepted_keys
        # Of several machines some keys may be accepted already.
        self.changed = is_known or (bool(accepted) and not self._target.is_node)
        return self.fingerprint in accepted and not is_known

    def client(self) -> asyncssh.SSHClient:
        """Return asyncssh's handler of a connection, which asks :meth:`accept`."""
        import asyncssh

        check = self

        class LoginClient(asyncssh.SSHClient):
            def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
                return check.accept(host, addr, port, key)

        return LoginClient()


def _is_known(host: str, addr: str, port: int) -> bool:
    """Whether ``known_hosts`` has a key for a machine."""
    import asyncssh

    file = Path("~/.ssh/known_hosts").expanduser()
    try:
        return bool(asyncssh.match_known_hosts(str(file), host, addr, port)[0])
    except (OSError, ValueError, asyncssh.Error):
        return False


def options_of(target: SshTarget, environ: Mapping[str, str] = os.environ) -> tuple[dict[str, Any], HostKeyCheck]:
    """Return keyword arguments of ``asyncssh.connect``, and the check of the machine's key. Reads files.

    Raises
    ------
    CommandError, AuthenticationError
        A file or variable that the target names cannot be used.
    """
    options: dict[str, Any] = {"login_timeout": 15}
    if target.user:
        options["username"] = target.user
    if target.port:
        options["port"] = target.port
    if target.jump:
        options["tunnel"] = target.jump
    passphrase = _variable(target, "passphrase_from", environ)
    if target.identity_file:
        options["client_keys"] = [_key(target, passphrase)]
        options["agent_path"] = None
    elif passphrase:
        options["passphrase"] = passphrase
    password = _variable(target, "password_from", environ)
    if password:
        options["password"] = password
    else:
        # Without a terminal, nobody could answer a question.
        options["preferred_auth"] = "publickey"
    config = Path("~/.ssh/config").expanduser()
    if config.exists():
        options["config"] = [str(config)]
    return options, HostKeyCheck(target)


def config_hosts() -> tuple[str, ...]:
    """Return the names of machines in ``~/.ssh/config``, without patterns. Blocks on the disk."""
    try:
        lines = Path("~/.ssh/config").expanduser().read_text(errors="replace").splitlines()
    except OSError:
        return ()
    words = (line.replace("=", " ", 1).split() for line in lines)
    names = [name for keyword, *names in filter(None, words) if keyword.lower() == "host" for name in names]
    return tuple(dict.fromkeys(name for name in names if not set(name) & set('*?!"')))[:_MAX_HOSTS]


def _variable(target: SshTarget, field: str, environ: Mapping[str, str]) -> str:
    name = getattr(target, field)
    if not name:
        return ""
    if value := value_of(name, environ):
        return value
    raise AuthenticationError(
        f"{target.name}: the variable {name} is not set in this kernel.",
        hint=f"Set it before the kernel starts, or here: import getpass, os; os.environ[{name!r}] = getpass.getpass()",
        code="ssh.variable",
        field=field,
    )


def _key(target: SshTarget, passphrase: str) -> asyncssh.SSHKey:
    import asyncssh

    path = Path(target.identity_file).expanduser()
    try:
        return asyncssh.read_private_key(str(path), passphrase or None)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "Check --identity-file."
    except asyncssh.KeyEncryptionError:
        reason = "the passphrase is wrong" if passphrase else "it has a passphrase"
        hint = "Name the variable that has it: --passphrase-from VAR, or add the key to your SSH agent: ssh-add"
    except asyncssh.KeyImportError as error:
        if "passphrase" in str(error).lower():
            reason, hint = "it has a passphrase", "Name the variable that has it: --passphrase-from VAR, or: ssh-add"
        else:
            reason, hint = "it is not a private key", "Give the private key, not the file that ends in .pub."
    raise AuthenticationError(
        f"Cannot use the key {target.identity_file}: {reason}.", hint=hint, code="ssh.key", field="identity_file"
    )


def explained(error: BaseException, target: SshTarget, known: HostKeyCheck) -> AmlTrainError:
    """Return the error of a connection in one sentence."""
    import asyncssh

    user, port = f"{target.user}@" if target.user else "", f":{target.port}" if target.port else ""
    place = f"{target.name!r} ({user}{target.destination}{port})"
    if isinstance(error, asyncssh.HostKeyNotVerifiable) or (
        known.fingerprint and isinstance(error, asyncssh.KeyExchangeFailed)
    ):
        return _unknown_key(target, known, place)
    if isinstance(error, asyncssh.PermissionDenied):
        wrong = "the password was not" if target.password_from else "no key was"
        return AuthenticationError(
            f"{place} refused the login: {wrong} accepted.",
            hint="Check --user and --identity-file, or name a password: --password-from VAR",
            code="ssh.login",
        )
    if isinstance(error, asyncssh.ConfigParseError):
        return CommandError(f"~/.ssh/config cannot be read: {error}.", hint="Correct the line.", code="ssh.config")
    # Through a machine in between, the system's own errors are about that machine.
    host, flag = (target.jump, "--jump") if target.jump else (target.destination, "--host")
    if isinstance(error, socket.gaierror):
        why, hint = f"the name {host!r} is not known", f"Check {flag}."
    elif isinstance(error, ConnectionRefusedError):
        by = f"{target.jump!r} refused the connection" if target.jump else "the connection was refused"
        why, hint = by, f"Check {flag if target.jump else '--port'}, and that an SSH server runs there."
    elif isinstance(error, asyncio.TimeoutError):
        why, hint = "no answer in time", "Check --host and the network."
    elif isinstance(error, OSError):
        why, hint = error.strerror or str(error) or type(error).__name__, "Check --host and the network."
    elif isinstance(error, asyncssh.Error):
        why, hint = (error.reason or type(error).__name__).rstrip("."), f"Try: ssh {target.destination}"
    else:
        return TargetError(f"Cannot connect to {place}: {error}.", hint=f"Try: ssh {target.destination}")
    return TargetUnreachable(f"Cannot reach {place}: {why}.", hint=hint, code="ssh.unreachable")


def _unknown_key(target: SshTarget, known: HostKeyCheck, place: str) -> AmlTrainError:
    if known.changed:
        return AuthenticationError(
            f"The key of {place} has changed to {known.fingerprint}: it may be another machine.",
            hint="If the machine was installed again, remove the old key (ssh-keygen -R) and attach the target again.",
            code="ssh.host_key_changed",
            details={"fingerprint": known.fingerprint},
        )
    return AuthenticationError(
        f"The key of {place} is not known: {known.fingerprint}.",
        hint=f"Compare it with the machine's own (ssh-keygen -lf), then add: --accept-host-key {known.fingerprint}",
        code="ssh.host_key",
        field="accept_host_key",
        details={
            "fingerprint": known.fingerprint,
            ACCEPT: {"accept_host_key": ",".join([*target.accepted_keys, known.fingerprint])},
            ACCEPT_QUESTION: f"The key of {place} is {known.fingerprint}. Accept it only if the machine shows the same:"
            " ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        },
    )
