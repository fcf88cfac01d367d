"""The agent as one file: a zipapp whose name is a hash of its content.

It contains the sources and the byte code of the interpreter that builds it: the same Python
version starts without compiling, any other one uses the sources. Parts of plug-ins travel with it; their imports of
``jupyter_amltrain.agent`` become those of the archive.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import tempfile
import threading
import zipfile
from pathlib import Path

import jupyter_amltrain.agent as agent
from jupyter_amltrain.agent import guests
from jupyter_amltrain.plugins import agent_parts

_PACKAGE = "amltrain_agent"
_MAIN = f"import sys\nfrom {_PACKAGE}.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
# The earliest date in a zip file; a constant, so that equal sources give equal bytes.
_DATE = (1980, 1, 1, 0, 0, 0)

_built: dict[Path, Path] = {}
_guard = threading.Lock()


def build(home: str | os.PathLike[str]) -> Path:
    """Return the path of the agent's zipapp in the state root `home`; build the file if it is absent.

    The file is ``<home>/agent/<first 16 hex digits of its content's sha256>.pyz``, mode 0600,
    and is created atomically.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    folder = Path(home) / "agent"
    with _guard:
        known = _built.get(folder)
        if known is not None and known.exists():
            return known
        sources = _sources()
        digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
        for name, data in sorted(sources.items()):
            digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
            digest.update(data)
        path = folder / f"{digest.hexdigest()[:16]}.pyz"
        if not path.exists():
            _write(path, _packed(sources))
        _built[folder] = path
        return path


def _sources() -> dict[str, bytes]:
    """Return the content by name in the archive."""
    sources = _files_of(Path(agent.__file__).parent, _PACKAGE)
    for name, module in agent_parts().items():
        found = importlib.util.find_spec(module)
        assert found is not None and found.origin is not None, module
        sources |= {f"{guests.PACKAGE}/__init__.py": b""}
        for path, data in _files_of(Path(found.origin).parent, f"{guests.PACKAGE}/{name}").items():
            sources[path] = data.replace(agent.__name__.encode(), _PACKAGE.encode())
    sources["__main__.py"] = _MAIN.encode()
    spec = importlib.util.find_spec("pynvml")
    if spec is not None and spec.origin is not None:
        sources["pynvml.py"] = Path(spec.origin).read_bytes()
    return sources


def _files_of(package: Path, name: str) -> dict[str, bytes]:
    return {f"{name}/{path.relative_to(package).as_posix()}": path.read_bytes() for path in package.rglob("*.py")}


def _packed(sources: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(sources.items()):
            entries = {name: data}
            if name != "__main__.py":  # it is run, not imported
                code = compile(data, name, "exec", dont_inherit=True, optimize=0)
                # PEP 552: flags 1 is a hash-based pyc that is not checked against the source.
                head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(data)
                entries[name + "c"] = head + marshal.dumps(code)
            for entry, content in entries.items():
                info = zipfile.ZipInfo(entry, _DATE)
                info.external_attr = 0o600 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, content)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        try:
            # Never replace an existing file: equal sources may compile to other bytes, and a running agent
            # reads further modules from the file later.
            os.link(temporary, path)
        except FileExistsError:  # of another process: the same code
            pass
        except OSError:  # a file system without hard links
            os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
