"""What may stand at the end of a command's unfinished line; no IPython here.

Flags, commands and their order come from the parsers, so that nothing is offered that
would be refused, and nothing new needs a second list.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jupyter_amltrain.commands.known import Known
from jupyter_amltrain.commands.parsers import parser_of
from jupyter_amltrain.commands.parsing import Parser

_WORD = re.compile(r"""(?:\\.|"[^"]*"?|'[^']*'?|[^\s"'\\])+""")
_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=[^=]", re.MULTILINE)
#: Values that show how such a value is written.
_SAMPLES = {
    "timeout": ("30m", "2h", "1d"),
    "gpu_grace": ("60s", "5m"),
    "window": ("10m", "1h", "all"),
    "rate": ("0.5", "1", "2"),
    "tail": ("50", "200"),
    "limit": ("20", "100", "0"),
    "nodes": ("2", "4"),
    "shm_size": ("2g", "8g"),
}


class Offer(NamedTuple):
    """One continuation: the text that replaces the fragment, and what it is."""

    text: str
    kind: str


class Offers(NamedTuple):
    """Continuations in the order to show them, and the end of the line that they replace."""

    fragment: str
    offers: list[Offer]


def complete(command: str, line: str, known: Known, cell: str = "", prog: str = "") -> Offers:
    """What may come at the end of `line`.

    Parameters
    ----------
    command
        One of :data:`~jupyter_amltrain.commands.parsers.COMMANDS`.
    line
        What stands between the command's name and the cursor.
    known
        Asked (:meth:`Known.look`) only when a name is wanted.
    cell
        The body of the cell below; its variables are offered for ``--out``.
    """
    words, fragment = _split(line)
    if "--" in words:
        return Offers(fragment, [])  # the script's own
    parser = parser_of(command, prog or f"%aml_{command}")
    if parser.verbs:
        if not words and not fragment.startswith("-"):
            return _matching(fragment, [Offer(verb, "command") for verb in parser.verbs])
        verb = words.pop(0) if words and not words[0].startswith("-") else next(iter(parser.verbs))
        if verb not in parser.verbs:
            return Offers(fragment, [])
        parser = parser.verbs[verb]
    return _Place(parser, words, known, cell).complete(fragment)


def _split(line: str) -> tuple[list[str], str]:
    """Whole words of a line, and the word at its end as it is written (perhaps empty)."""
    found = list(_WORD.finditer(line))
    fragment = found.pop()[0] if found and found[-1].end() == len(line) else ""
    return [_plain(match[0]) for match in found], fragment


def _plain(word: str) -> str:
    return re.sub(r"""\\(.)|["']""", r"\1", word)


def _matching(fragment: str, offers: Iterable[Offer]) -> Offers:
    return Offers(fragment, [offer for offer in offers if offer.text.startswith(fragment)])


class _Place:
    """The words before the cursor, as one parser understands them."""

    def __init__(self, parser: Parser, words: Sequence[str], known: Known, cell: str) -> None:
        self.known, self.cell = known, cell
        self.verb = parser.prog.rpartition(" ")[2]
        self.flags: dict[str, argparse.Action] = {}
        self.arguments: list[argparse.Action] = []
        for action in parser._actions:
            self.flags.update(dict.fromkeys(action.option_strings, action))
            if not action.option_strings:
                self.arguments.append(action)
        self.used: list[argparse.Action] = []  #: flags that have been given
        self.given: list[str] = []  #: words that are no flags and no flag's value
        self.values: list[str] = []  #: values of flags
        self.pending: argparse.Action | None = None  #: the flag whose value comes next
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
                self.given.append(word)
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
        found = self._value(argument, fragment) if argument is not None else Offers(fragment, [])
        if found.offers or fragment:
            return found
        # Nothing has been typed and no name is needed: then the flags are what one looks for.
        return Offers(fragment, [flag for flag in self._flags() if flag.text != "--help"])

    def _flags(self) -> Iterable[Offer]:
        again = [a for a in self.used if not isinstance(a, argparse._AppendAction)]
        flags = [f for f, a in self.flags.items() if a not in again and f.startswith("--")]
        return (Offer(flag, "flag") for flag in sorted(flags, key="--help".__eq__))

    def _argument(self) -> argparse.Action | None:
        """The argument without a flag that comes next."""
        if len(self.given) < len(self.arguments):
            return self.arguments[len(self.given)]
        last = self.arguments[-1] if self.arguments else None
        return last if last is not None and last.nargs == "+" else None

    def _value(self, action: argparse.Action, fragment: str) -> Offers:
        if offers := getattr(action, "offers", ()):
            return _matching(fragment, [Offer(choice, "value") for choice in offers])
        if action.dest in ("script", "source", "file", "to"):
            endings = {"script": (".py",), "file": (".csv", ".parquet", ".png")}.get(action.dest, ())
            return Offers(fragment, list(_paths(fragment, endings)))
        if action.dest in ("env", "input"):
            # A path may follow the name of an input; the other words are a service's own.
            name, equals, path = fragment.partition("=") if action.dest == "input" else ("", "", fragment)
            if action.dest == "input" and not equals:
                return Offers(fragment, [])
            return Offers(path, list(_paths(path, (".yml", ".yaml") if action.dest == "env" else ("",))))
        if action.dest == "gpus":
            return self._gpus(action, fragment)
        if action.dest == "out":
            # Names with commas: the one at the end is being typed.
            done, _, typed = fragment.rpartition(",")
            taken = {*done.split(","), *(name for value in self.values for name in value.split(","))}
            names = dict.fromkeys(n for n in _ASSIGNED.findall(self.cell) if n not in taken)
            return _matching(typed, [Offer(name, "variable") for name in reversed(names)])
        if action.dest == "target":
            there = self.known.look().targets()
            if self.verb in ("start", "stop", "scale", "delete"):  # this machine stays as it is
                there.remove("local")
            return _matching(fragment, [Offer(name, "target") for name in there])
        if action.dest == "run":
            return self._runs(fragment)
        if "|" in (choices := str(action.metavar or "")) and choices.islower():
            return _matching(fragment, [Offer(choice, "value") for choice in choices.split("|")])
        return _matching(fragment, [Offer(text, "value") for text in _SAMPLES.get(action.dest, ())])

    def _runs(self, fragment: str) -> Offers:
        ended = {"cancel": False, "delete": True}.get(self.verb)
        handles = [h for h in self.known.look().runs(ended=ended) if h not in self.given]
        last = [] if ended is not None or self.given else ["last"]
        found = _matching(fragment, [Offer(name, "run") for name in [*handles[:1], *last, *handles[1:]]])
        if found.offers or "/" in fragment:
            return found
        return _matching(fragment, [Offer(handle.partition("/")[2], "run") for handle in handles])

    def _gpus(self, action: argparse.Action, fragment: str) -> Offers:
        there = self.known.gpus()
        if action.metavar == "N":  # how many, not which
            return _matching(fragment, [Offer(str(n), "value") for n in range(max(len(there), 1) + 1)])
        done, _, typed = fragment.rpartition(",")
        return _matching(typed, [Offer(str(n), "GPU") for n in there if str(n) not in done.split(",")])


def _paths(fragment: str, endings: Sequence[str]) -> Iterable[Offer]:
    """Folders, and files with one of `endings` (none: folders only), as they are to be typed."""
    opened = fragment[:1] if fragment[:1] in ("'", '"') else ""
    written = fragment.removeprefix(opened)
    folder, slash, begun = (written if opened else _plain(written)).rpartition("/")
    typed = written[: written.rfind("/") + 1] if slash else ""
    place = os.path.expanduser(folder + slash) if slash else "."
    try:
        with os.scandir(place) as entries:
            found = sorted((not e.is_dir(), e.name) for e in entries if e.name.startswith(begun))
    except OSError:
        return
    for is_file, name in found[:500]:
        if name.startswith(".") and not begun.startswith("."):
            continue
        if is_file and not name.endswith(tuple(endings)):
            continue
        shown = name if opened else re.sub(r"""([\s"'\\$(){}\[\]])""", r"\\\1", name)
        yield Offer(opened + typed + shown + ("" if is_file else "/"), "path")
