"""Argument parser of commands: help starts with examples, and errors name close matches."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.text import close_matches, did_you_mean

_NO_VALUE = "expected one argument"
#: Similarity from which an unknown flag is a misspelt one; below, it may be meant as a parameter of the script.
_SURE = 0.74


class HelpRequested(Exception):
    """Raised for ``--help``; carries the text to print."""


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpRequested(parser.format_help())


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`CommandError` and names close matches."""

    def __init__(self, *, prog: str, description: str, examples: Sequence[str] = (), **rest: Any) -> None:
        rest.pop("formatter_class", None)
        if examples:
            # IPython shows the description as the docstring: first the sentence, then lines to copy.
            description += "\n\nExamples::\n\n" + "\n".join(f"    {line}" for line in examples)
        super().__init__(
            prog=prog,
            usage=rest.pop("usage", None),
            description=description,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28, width=92),
            add_help=False,
            allow_abbrev=False,
            **rest,
        )
        self.verbs: dict[str, Parser] = {}
        self.takes_rest = False  #: words after ``--`` are not parsed but returned as ``rest``
        self.add_argument("-h", "--help", nargs=0, action=_Help, help="show this help")

    @property
    def magic(self) -> bool:
        """Whether it parses the line of a magic, as opposed to a shell."""
        return self.prog.startswith("%")

    def flag(
        self,
        *names: str,
        field: str = "",
        repeated: bool = False,
        offers: Sequence[str] = (),
        samples: Sequence[str] = (),
        **rest: Any,
    ) -> argparse.Action:
        """Add a flag or an argument.

        Parameters
        ----------
        field
            Field of an error about its value, if that is not its name: a field of a Struct.
        repeated
            The flag may be repeated; its values are a list.
        offers
            All values, for Tab completion.
        samples
            Examples of a value, for Tab completion.
        """
        if repeated:
            rest = {"action": "append", "default": [], **rest}
        action = self.add_argument(*names, **rest)
        action.field = field  # type: ignore[attr-defined]
        action.offers = tuple(offers)  # type: ignore[attr-defined]
        action.samples = tuple(samples)  # type: ignore[attr-defined]
        return action

    def verb(self, name: str, description: str, examples: Sequence[str] = ()) -> Parser:
        """Add a sub-command."""
        parser = Parser(prog=f"{self.prog} {name}", description=description, examples=examples)
        self.verbs[name] = parser
        return parser

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse, such as a missing value, as a :class:`CommandError`."""
        field = ""
        for action in self._actions:
            if action.option_strings and message.startswith(f"argument {'/'.join(action.option_strings)}: "):
                field = field_of(action)
                if message.endswith(f": {_NO_VALUE}"):
                    message = f"argument {action.option_strings[-1]}: {_NO_VALUE}, {action.metavar or 'a value'}"
        raise CommandError(
            f"{self.prog}: {message[:1].lower()}{message[1:]}.",
            hint=f"See: {self.help_call}",
            code="command.usage",
            field=field,
        )

    @property
    def help_call(self) -> str:
        """Command that shows the help."""
        magic = self.magic and " " not in self.prog
        return f"{self.prog.replace('%%', '%')}?" if magic else f"{self.prog} --help"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        return read_value(action, arg_string)

    def parse(self, tokens: Sequence[str]) -> argparse.Namespace:
        """Parse all of `tokens`; ``verb`` of the result is the sub-command, or empty.

        Raises
        ------
        CommandError
            A word is unknown or missing; the message names close matches.
        HelpRequested
            ``--help`` is among them.
        """
        tokens = list(tokens)
        if self.verbs:
            return self._parse_verb(tokens)
        rest: list[str] = []
        if self.takes_rest:
            at = self._end_of_own(tokens)
            tokens, rest = tokens[:at], tokens[at + (tokens[at : at + 1] == ["--"]) :]
        args, unknown = self.parse_known_args(tokens)
        if unknown:
            self._unknown(unknown[0])
        args.verb, args.rest = "", rest
        return args

    def _end_of_own(self, tokens: Sequence[str]) -> int:
        """Return where the arguments of the script begin: behind ``--``, or with the first word that is not ours.

        A word that is nearly one of our flags is ours, and an error.
        """
        at, has_script = 0, False
        flags = self._option_string_actions
        while at < len(tokens):
            word = tokens[at]
            flag, equals, _ = word.partition("=")
            if word == "--":
                return at
            if not word.startswith("-") or word == "-":
                if has_script:
                    return at
                has_script = True
            elif flag in flags or (flag[:2] in flags and not flag.startswith("--")):
                action = flags.get(flag) or flags[flag[:2]]
                takes = action.nargs is None and not equals and flag in flags
                has_script = has_script or action.dest == "module"
                optional = action.nargs == "?" and not equals and tokens[at + 1 : at + 2]
                at += takes or bool(optional and not tokens[at + 1].startswith("-"))
            elif has_script and not self._near_flags(flag):
                return at
            at += 1
        return at

    def _near_flags(self, flag: str) -> list[str]:
        """Return our flags that a word begins or nearly is."""
        flags = [name for name in self._option_string_actions if name.startswith("--")]
        return [name for name in flags if name.startswith(flag)] or close_matches(flag, flags, 1, _SURE)

    def _parse_verb(self, tokens: list[str]) -> argparse.Namespace:
        if tokens[:1] in (["-h"], ["--help"]):
            raise HelpRequested(self.format_help())
        # Flags alone (or nothing) belong to the first verb, "list".
        verb = tokens.pop(0) if tokens and not tokens[0].startswith("-") else next(iter(self.verbs))
        if verb not in self.verbs:
            hint = did_you_mean(_close(verb, self.verbs), f"Commands: {', '.join(self.verbs)}.")
            if "show" in self.verbs and ("/" in verb or verb[-1:].isdigit()):
                hint = f"Did you mean: {self.prog} show {verb}"
            raise CommandError(f"{self.prog}: unknown command {verb!r}.", hint=hint, code="command.unknown")
        args = self.verbs[verb].parse(tokens)
        args.verb = verb
        return args

    def _unknown(self, token: str) -> NoReturn:
        if not token.startswith("-"):
            raise CommandError(
                f"{self.prog}: unexpected argument {token!r}.",
                hint=f"Put values with spaces in quotes. See: {self.help_call}",
                code="command.unexpected_argument",
            )
        flag = token.partition("=")[0]
        flags = [name for action in self._actions for name in action.option_strings]
        name = flag.lstrip("-").replace("-", "_")
        if "--param" in flags and name.isidentifier() and not close_matches(flag, flags, 1, _SURE):
            hint = f"For a parameter of the script: --param {name}=VALUE. See: {self.help_call}"
        else:
            hint = did_you_mean(_close(flag, flags), f"See: {self.help_call}")
            if self.takes_rest:
                hint += " Words for the script stand behind --"
        raise CommandError(f"{self.prog}: unknown flag {flag}.", hint=hint, code="command.unknown_flag")

    def format_help(self) -> str:
        """Return the help: first the sentence and examples, then usage and flags."""
        text = super().format_help()
        usage, _, rest = text.partition("\n\n")
        sentence, _, flags = rest.partition("\noptions:")
        if not flags:  # a version of Python with another heading
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
            flags = "\n" + "\n".join(verbs) + f"\n\nHelp on a command: {self.prog} <command> --help\n"
            usage = f"usage: {self.prog} [{'|'.join(self.verbs)}] ..."
            if len(usage) > 96:  # the verbs are listed below
                usage = f"usage: {self.prog} [command] ..."
            return f"{sentence.strip()}\n\n{usage}\n\ncommands:{flags}"
        return f"{sentence.strip()}\n\n{usage}\n\n{positional}options:{flags}"


def flag_name(action: argparse.Action) -> str:
    """Return the flag, such as ``--gpus``, or the name of a positional argument."""
    return action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)


def field_of(action: argparse.Action) -> str:
    """Return the field of an error about the value of `action`."""
    return getattr(action, "field", "") or flag_name(action).lstrip("-")


def read_value(action: argparse.Action, text: str) -> Any:
    """Return the value of a flag from its text; an error names the flag and its field."""
    try:
        return action.type(text) if callable(action.type) else text
    except CommandError as error:
        if error.field:
            raise
        raise type(error)(
            f"{flag_name(action)}: {error.message}",
            hint=error.hint,
            code=error.code or "flag.value",
            field=field_of(action),
            details=error.details,
        ) from None


def _close(word: str, words: Iterable[str]) -> list[str]:
    words = list(words)
    matches = close_matches(word, words, 1, 0.85) or close_matches(word, words, 2, 0.6)
    if not matches:  # --target-name, --timeout-seconds
        stem = word.lstrip("-").partition("-")[0].partition("_")[0]
        return [w for w in words if stem and w.lstrip("-") and w.lstrip("-") == stem]
    stem = word.replace("_", "-")
    return [w for w in matches if stem.startswith(f"{w}-")] or matches


#: How a run is named on a line.
RUN = "handle, run id or prefix"


def run_flag(parser: Parser) -> None:
    """Add the argument ``run``, by default the newest run."""
    parser.flag("run", nargs="?", default="last", help=f"{RUN}; default last")
