"""Ignore files of a source folder: ``.amlignore`` at its top, else ``.gitignore`` at any level."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jupyter_amltrain.agent.protocol import read_regular
from jupyter_amltrain.errors import SubmitError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

#: A longer file is no list of patterns.
MAX_IGNORE_BYTES = 4 << 20


class IgnoreRules:
    """What holds in one folder: its own rules before those of the folders above.

    ``.amlignore`` of the top folder takes the place of every ``.gitignore``, as in
    the tools of Azure ML.
    """

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...], nested: bool) -> None:
        self._specs = specs  # (folder's prefix, rules), innermost first
        self._nested = nested

    @classmethod
    def of(cls, root: str) -> IgnoreRules:
        """Rules of the top folder `root`."""
        own = _spec(os.path.join(root, ".amlignore"))
        if own is not None:
            return cls((("", own),), nested=False)
        return cls((), nested=True).below(root, "")

    def below(self, folder: str, name: str) -> IgnoreRules:
        """Rules of a folder below, whose path inside the top folder is `name`."""
        if not self._nested:
            return self
        own = _spec(os.path.join(folder, ".gitignore"))
        if own is None:
            return self
        prefix = name + "/" if name else ""
        return IgnoreRules(((prefix, own), *self._specs), nested=True)

    def ignores(self, name: str, is_dir: bool) -> bool:
        """Whether the file or folder `name` (posix, inside the top folder) is left out."""
        for prefix, spec in self._specs:
            path = name[len(prefix) :] + ("/" if is_dir else "")
            include = spec.check_file(path).include
            if include is not None:
                return include
        return False


def _spec(path: str) -> GitIgnoreSpec | None:
    try:
        lines = read_regular(path, MAX_IGNORE_BYTES).decode("utf-8").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise SubmitError(f"Cannot read {path}: {error}.", hint="Save it as UTF-8 text.") from error
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(f"Cannot read {path}: {why}.", hint="Replace it by a text file, or remove it.") from error
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise SubmitError(f"{path}: {error}.", hint="Correct the pattern.") from error
