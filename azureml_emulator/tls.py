"""A test authority, one certificate for every host name of the emulator, and a bundle that clients are given."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "management.azure.com",
    "login.microsoftonline.com",
    "login.microsoft.com",
    "login.windows.net",
    "*.api.azureml.ms",
    "*.blob.core.windows.net",
    "localhost",
    "127.0.0.1",
)


@dataclass(frozen=True)
class Certificates:
    """Where the files lie: `bundle` (certifi's and ours, for clients), `cert` and `key` (for servers)."""

    bundle: Path
    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(self.cert, self.key)
        return made

    def client(self) -> ssl.SSLContext:
        """Return the TLS context of the emulator's own clients."""
        return ssl.create_default_context(cafile=str(self.bundle))


def make(folder: Path) -> Certificates:
    """New authority and certificate in `folder`; valid for as long as the process needs, trusted by nobody else."""
    import certifi
    import trustme

    authority = trustme.CA(organization_name="jupyter-amltrain tests")
    leaf = authority.issue_cert(*NAMES)
    made = Certificates(folder / "bundle.pem", folder / "leaf.pem", folder / "leaf.key")
    made.bundle.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + authority.cert_pem.bytes())
    made.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    made.key.write_bytes(leaf.private_key_pem.bytes())
    made.key.chmod(0o600)
    return made
