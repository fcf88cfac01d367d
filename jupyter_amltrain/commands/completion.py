"""Tab completion of a command's unfinished line; independent of IPython.

Flags, verbs and their order come from the registry's parsers, and names (targets, runs, GPUs) from files of this
machine and from the process' controller, if it exists: completion makes no network calls.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import parser_of

#: Maximum wait for a read of the names: Tab must respond as fast as typing (seconds).
READ_TIMEOUT_S = 0.15
#: Maximum number of names of one kind that are offered.
MAX_NAMES = 200
#: Files that list packages.
_PACKAGE_FILES = (".yml", ".yaml", ".txt", ".toml")
_ENDED = frozenset({"completed", "failed", "canceled", "lost"})
_WORD = re.compile(r"""(?:\\.|"[^"]*"?|'[^']*'?|[^\s"'\\])+""")
_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=[^=]", re.MULTILINE)


class Offer(NamedTuple):
    """One completion: the text that replaces the fragment, and its kind."""

    text: str
    kind: str


class Offers(NamedTuple):
    """Completions in display order, and the end of the line that they replace."""

    fragment: str
    offers: list[Offer]


def complete(command: str, line: str, names: CompletionNames, cell: str = "", prog: str = "") -> Offers:
    """Return the completions at the end of `line`.

    Parameters
    ----------
    command
        A noun of :data:`~jupyter_amltrain.commands.registry.NOUNS`.
    line
        The text between the command's name and the cursor.
    names
        Refreshed (:meth:`CompletionNames.refresh`) only when a name is needed.
    cell
        The body of the cell below; its variables are offered for ``--out``.
    """
    words, fragment = _split(line)
    if "--" in words:
        return Offers(fragment, [])  # the script's own arguments
    parser = parser_of(command, prog or f"%aml_{command}")
    if parser.verbs:
        if not words and not fragment.startswith("-"):
            return _matching(fragment, [Offer(verb, "command") for verb in parser.verbs])
        verb = words.pop(0) if words and not words[0].startswith("-") else next(iter(parser.verbs))
        if verb not in parser.verbs:
            return Offers(fragment, [])
        parser = parser.verbs[verb]
    return _Line(parser, words, names, cell).complete(fragment)


def _split(line: str) -> tuple[list[str], str]:
    """Return the complete words of a line, and the unfinished word at its end as typed (may be empty)."""
    matches = list(_WORD.finditer(line))
    fragment = matches.pop()[0] if matches and matches[-1].end() == len(line) else ""
    return [_plain(match[0]) for match in matches], fragment


def _plain(word: str) -> str:
    return re.sub(r"""\\(.)|["']""", r"\1", word)


def _matching(fragment: str, offers: Iterable[Offer]) -> Offers:
    return Offers(fragment, [offer for offer in offers if offer.text.startswith(fragment)])


class _Line:
    """The words before the cursor, as the parser of one command reads them."""

    def __init__(self, parser: Parser, words: Sequence[str], names: CompletionNames, cell: str) -> None:
        self.names, self.cell = names, cell
        self.verb = parser.prog.rpartition(" ")[2]
        self.flags: dict[str, argparse.Action] = {}
        self.arguments: list[argparse.Action] = []
        for action in parser._actions:
            self.flags.update(dict.fromkeys(action.option_strings, action))
            if not action.option_strings:
                self.arguments.append(action)
        self.used: list[argparse.Action] = []  #: flags before the cursor
        self.positionals: list[str] = []  #: words that are neither flags nor values of flags
        self.values: list[str] = []  #: values of flags
        self.pending: argparse.Action | None = None  #: the flag whose value is next
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if self.pending is not None:
            self.values.append(word)
            self.pending = None
            return
        name, equals, value = word.partition("=")
        action = self.flags.get(name)
        if action is None:
            if not word.startswith("-"):
                self.positionals.append(word)
            return
        self.used.append(action)
        if equals:
            self.values.append(value)
        elif action.nargs != 0:
            self.pending = action

    def complete(self, fragment: str) -> Offers:
        if self.pending is not None:
            return self._value(self.pending, fragment)
        if fragment.startswith("-"):
            name, equals, value = fragment.partition("=")
            if equals:
                action = self.flags.get(name)
                return self._value(action, value) if action is not None and action.nargs != 0 else Offers(value, [])
            return _matching(fragment, self._flags())
        argument = self._argument()
        offers = self._value(argument, fragment) if argument is not None else Offers(fragment, [])
        if offers.offers or fragment:
            return offers
        # Nothing is typed and no argument is needed: offer the flags.
        return Offers(fragment, [flag for flag in self._flags() if flag.text != "--help"])

    def _flags(self) -> Iterable[Offer]:
        used = [a for a in self.used if not isinstance(a, argparse._AppendAction)]
        flags = [f for f, a in self.flags.items() if a not in used and f.startswith("--")]
        return (Offer(flag, "flag") for flag in sorted(flags, key="--help".__eq__))

    def _argument(self) -> argparse.Action | None:
        """Return the next positional argument."""
        if len(self.positionals) < len(self.arguments):
            return self.arguments[len(self.positionals)]
        last = self.arguments[-1] if self.arguments else None
        return last if last is not None and last.nargs == "+" else None

    def _value(self, action: argparse.Action, fragment: str) -> Offers:
        if offers := getattr(action, "offers", ()):
            return _matching(fragment, [Offer(choice, "value") for choice in offers])
        if action.dest in ("script", "source", "file", "to"):
            suffixes = {"script": (".py",), "file": (".csv", ".parquet", ".png")}.get(action.dest, ())
            return Offers(fragment, list(_paths(fragment, suffixes)))
        if action.dest in ("env", "input", "environment"):
            # A path may follow the name of an input; only a service knows the other values.
            name, equals, path = fragment.partition("=") if action.dest == "input" else ("", "", fragment)
            if action.dest == "input" and not equals:
                return Offers(fragment, [])
            if action.dest == "input":
                return Offers(path, list(_paths(path, ("",))))
            named = [Offer(name, "value") for name in self.names.environments() if name.startswith(path)]
            return Offers(path, [*named, *_paths(path, _PACKAGE_FILES)])
        if action.dest == "gpus":
            return self._gpus(action, fragment)
        if action.dest == "out":
            # Names separated by commas: the last one is being typed.
            complete, _, typed = fragment.rpartition(",")
            used = {*complete.split(","), *(name for value in self.values for name in value.split(","))}
            names = dict.fromkeys(n for n in _ASSIGNED.findall(self.cell) if n not in used)
            return _matching(typed, [Offer(name, "variable") for name in reversed(names)])
        if action.dest == "target":
            targets = self.names.refresh().targets()
            if self.verb in ("start", "stop", "scale", "delete") and not action.option_strings:  # not for this machine
                targets.remove("local")
            return _matching(fragment, [Offer(name, "target") for name in targets])
        if action.dest == "run":
            return self._runs(fragment)
        if "|" in (choices := str(action.metavar or "")) and choices.islower():
            return _matching(fragment, [Offer(choice, "value") for choice in choices.split("|")])
        return _matching(fragment, [Offer(text, "value") for text in getattr(action, "samples", ())])

    def _runs(self, fragment: str) -> Offers:
        ended = {"cancel": False, "delete": True}.get(self.verb)
        handles = [h for h in self.names.refresh().runs(ended=ended) if h not in self.positionals]
        last = [] if ended is not None or self.positionals else ["last"]
        offers = _matching(fragment, [Offer(name, "run") for name in [*handles[:1], *last, *handles[1:]]])
        if offers.offers or "/" in fragment:
            return offers
        return _matching(fragment, [Offer(handle.partition("/")[2], "run") for handle in handles])

    def _gpus(self, action: argparse.Action, fragment: str) -> Offers:
        gpus = self.names.gpus()
        if action.metavar == "N":  # a number of GPUs, not their indices
            return _matching(fragment, [Offer(str(n), "value") for n in range(max(len(gpus), 1) + 1)])
        complete, _, typed = fragment.rpartition(",")
        return _matching(typed, [Offer(str(n), "GPU") for n in gpus if str(n) not in complete.split(",")])


def _paths(fragment: str, suffixes: Sequence[str]) -> Iterable[Offer]:
    """Yield folders, and files with one of `suffixes` (none: folders only), quoted as the line needs them."""
    quote = fragment[:1] if fragment[:1] in ("'", '"') else ""
    text = fragment.removeprefix(quote)
    folder, slash, prefix = (text if quote else _plain(text)).rpartition("/")
    typed = text[: text.rfind("/") + 1] if slash else ""
    directory = os.path.expanduser(folder + slash) if slash else "."
    try:
        with os.scandir(directory) as entries:
            names = sorted((not e.is_dir(), e.name) for e in entries if e.name.startswith(prefix))
    except OSError:
        return
    for is_file, name in names[:500]:
        if name.startswith(".") and not prefix.startswith("."):
            continue
        if is_file and not name.endswith(tuple(suffixes)):
            continue
        escaped = name if quote else re.sub(r"""([\s"'\\$(){}\[\]])""", r"\\\1", name)
        yield Offer(quote + typed + escaped + ("" if is_file else "/"), "path")


class CompletionNames:
    """Names of targets, runs (newest first) and GPUs; read by one background thread.

    Never creates a controller, starts a process or contacts a target.
    """

    def __init__(self) -> None:
        self._targets: list[str] = ["local"]
        self._runs: dict[str, tuple[float, str]] = {}  # handle -> (unix seconds of the submission, state or "")
        self._reader: threading.Thread | None = None

    def targets(self) -> list[str]:
        """Return the names of compute targets, ``local`` first."""
        return list(self._targets)

    def runs(self, *, ended: bool | None = None) -> list[str]:
        """Return handles, newest first; `ended` leaves out those whose known state differs."""
        rows = sorted(self._runs.items(), key=lambda row: row[1][0], reverse=True)
        return [h for h, (_, state) in rows if ended is None or not state or (state in _ENDED) is ended][:MAX_NAMES]

    def environments(self) -> list[str]:
        """Return the names that the user has given to environments, read at once: it is one small file."""
        from jupyter_amltrain.state_dir import default_path

        try:
            return sorted(json.loads((default_path() / "environments.json").read_bytes())["environments"])[:MAX_NAMES]
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def gpus(self) -> list[int]:
        """Return the GPUs of this machine, from their device files, without the driver."""
        names = [os.path.basename(path) for path in glob.glob("/dev/nvidia[0-9]*")]
        return sorted(int(name[6:]) for name in names if re.fullmatch(r"nvidia\d+", name))

    def refresh(self, deadline: float = READ_TIMEOUT_S) -> CompletionNames:
        """Read the names again, waiting at most `deadline` seconds; the result of a slower read is used next time."""
        reader = self._reader
        if reader is None or not reader.is_alive():
            reader = self._reader = threading.Thread(target=self._read, name="amltrain-completion", daemon=True)
            reader.start()
        reader.join(deadline)
        return self

    def _read(self) -> None:
        runs: dict[str, tuple[float, str]] = {}
        # A damaged file or another user's folder: only its names are missing.
        with contextlib.suppress(Exception):
            from jupyter_amltrain.state_dir import default_path

            home = default_path()
            self._targets = _targets(home)
            self._runs = runs = _on_disk(home)
        with contextlib.suppress(Exception):  # Tab must never show an error: the runs of this kernel are missing
            self._runs = runs | _of_controller()


def _targets(home: Path) -> list[str]:
    try:
        targets = json.loads((home / "targets.json").read_bytes())["targets"]
        return ["local", *(name for name in dict(targets) if name != "local")]
    except (OSError, ValueError, TypeError, KeyError):
        return ["local"]


def _on_disk(home: Path) -> dict[str, tuple[float, str]]:
    """Return the runs of the target ``local``, from their folders."""
    rows: list[tuple[float, str]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(home / "runs") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                rows.append((os.stat(os.path.join(entry.path, "job.json")).st_mtime, entry.name))
    rows.sort(reverse=True)
    return {f"local/{name}": (created, _state(home / "runs" / name)) for created, name in rows[:MAX_NAMES]}


def _state(folder: Path) -> str:
    try:
        return str(json.loads((folder / "state.json").read_bytes())["state"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _of_controller() -> dict[str, tuple[float, str]]:
    """Return the runs of the process' controller, on any target; does not create a controller."""
    session = sys.modules.get("jupyter_amltrain.kernel.session")
    controller = None if session is None else session.existing()
    if controller is None:
        return {}

    async def read() -> dict[str, tuple[float, str]]:
        # A past run that has not been read yet has ended.
        return {
            entry.handle: (entry.created, "completed" if entry.unread else entry.run.status.state.value)
            for entry in controller.store.entries()
        }

    return dict(controller.loop.call(read(), READ_TIMEOUT_S))
