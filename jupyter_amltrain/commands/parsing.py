"""The parser class of all commands: help that begins with examples, errors that guess."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jupyter_amltrain.errors import CommandError

_NO_VALUE = "expected one argument"


class HelpWanted(Exception):
    """``--help`` was given; carries the text for the front door to print."""


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpWanted(parser.format_help())


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`CommandError` and names near matches."""

    def __init__(self, *, prog: str, description: str, examples: str = "", **rest: Any) -> None:
        rest.pop("formatter_class", None)
        super().__init__(
            prog=prog,
            usage=rest.pop("usage", None),
            # IPython shows it as the docstring: the sentence first, then what to copy.
            description=f"{description}\n\n{examples}" if examples else description,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28, width=92),
            add_help=False,
            allow_abbrev=False,
            **rest,
        )
        self.verbs: dict[str, Parser] = {}
        self.add_argument("-h", "--help", nargs=0, action=_Help, help="show this text")

    def add_repeated(self, flag: str, **rest: Any) -> argparse.Action:
        """A flag that may be given any number of times; its values are a list."""
        return self.add_argument(flag, action="append", default=[], **rest)

    def error(self, message: str) -> NoReturn:
        """Called by argparse: a missing value, a flag given wrongly."""
        for action in self._actions:
            if action.option_strings and message == f"argument {'/'.join(action.option_strings)}: {_NO_VALUE}":
                message = f"argument {action.option_strings[-1]}: {_NO_VALUE}, {action.metavar or 'a text'}"
        raise CommandError(f"{self.prog}: {message[:1].lower()}{message[1:]}.", hint=f"See: {self.help_call}")

    @property
    def help_call(self) -> str:
        """What to type for help."""
        magic = self.prog.startswith("%") and " " not in self.prog
        return f"{self.prog.replace('%%', '%')}?" if magic else f"{self.prog} --help"

    def parse(self, tokens: Sequence[str]) -> argparse.Namespace:
        """Parse all of `tokens`.

        Raises
        ------
        CommandError
            Something is unknown or missing; near matches are named.
        HelpWanted
            ``--help`` is among them.
        """
        tokens = list(tokens)
        if self.verbs:
            return self._parse_verb(tokens)
        found, left = self.parse_known_args(tokens)
        if left:
            self._unknown(left[0])
        return found

    def _parse_verb(self, tokens: list[str]) -> argparse.Namespace:
        if tokens[:1] in (["-h"], ["--help"]):
            raise HelpWanted(self.format_help())
        # Flags alone (or nothing) belong to the first verb, "list".
        verb = tokens.pop(0) if tokens and not tokens[0].startswith("-") else next(iter(self.verbs))
        if verb not in self.verbs:
            near = _near(verb, self.verbs)
            hint = f"Did you mean {near}?" if near else f"There are: {', '.join(self.verbs)}."
            if "show" in self.verbs and ("/" in verb or verb[-1:].isdigit()):
                hint = f"Did you mean: {self.prog} show {verb}"
            raise CommandError(f"{self.prog}: unknown command {verb!r}.", hint=hint)
        found = self.verbs[verb].parse(tokens)
        found.verb = verb
        return found

    def _unknown(self, token: str) -> NoReturn:
        if not token.startswith("-"):
            raise CommandError(
                f"{self.prog}: {token!r} is one argument too many.",
                hint=f"Quote a value with spaces; see: {self.help_call}",
            )
        flag = token.partition("=")[0]
        flags = [name for action in self._actions for name in action.option_strings]
        near = _near(flag, flags)
        hint = f"Did you mean {near}?" if near else f"See: {self.help_call}"
        raise CommandError(f"{self.prog}: unknown flag {flag}.", hint=hint)

    def verb(self, name: str, description: str, examples: str = "") -> Parser:
        """Add a sub-command."""
        parser = Parser(prog=f"{self.prog} {name}", description=description, examples=examples)
        self.verbs[name] = parser
        return parser

    def format_help(self) -> str:
        """The sentence and examples first; usage and flags after."""
        text = super().format_help()
        usage, _, rest = text.partition("\n\n")
        sentence, _, flags = rest.partition("\noptions:")
        if not flags:  # Python with another word there
            return text
        positional = ""
        if "\npositional arguments:" in sentence:
            sentence, _, positional = sentence.partition("\npositional arguments:")
            positional = "arguments:" + positional + "\n"
        if self.verbs:
            width = max(map(len, self.verbs))
            verbs = [
                f"  {name:<{width}}  {(parser.description or '').partition(chr(10))[0]}"
                for name, parser in self.verbs.items()
            ]
            flags = "\n" + "\n".join(verbs) + f"\n\n{self.prog} <command> --help tells more.\n"
            usage = f"usage: {self.prog} [{'|'.join(self.verbs)}] ..."
            if len(usage) > 96:  # they stand below
                usage = f"usage: {self.prog} [command] ..."
            return f"{sentence.strip()}\n\n{usage}\n\ncommands:{flags}"
        return f"{sentence.strip()}\n\n{usage}\n\n{positional}options:{flags}"


def examples(prog: str, *, cell: Sequence[str], line: Sequence[str]) -> str:
    """What to copy: into a cell, or into a shell."""
    return "Examples::\n\n" + "\n".join(f"    {x}" for x in (cell if prog.startswith("%") else line))


def _near(word: str, words: Iterable[str]) -> str:
    import difflib

    words = list(words)
    near = difflib.get_close_matches(word, words, 2, 0.6)
    if not near:  # --target-name, --timeout-seconds
        stem = word.lstrip("-").partition("-")[0].partition("_")[0]
        near = [w for w in words if stem and w.lstrip("-") and w.lstrip("-") == stem]
    else:
        stem = word.replace("_", "-")
        near = [w for w in near if stem.startswith(f"{w}-")] or near
    return " or ".join(near)
