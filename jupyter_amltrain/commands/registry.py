"""Every command: nouns (``runs``) with their verbs (``logs``), for the magics, the command line, Tab and the panel.

A noun is a row of :data:`NOUNS` and a module of this package that has ``COMMANDS``; a verb is one
:class:`Command` in it. Nothing else lists them. Importing this module imports none of theirs, because
``%load_ext`` does.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.text import close_matches, did_you_mean

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.run import TrackedRun


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What a submit takes where its line says nothing; empty for no default."""

    target: str = ""
    experiment: str = ""
    timeout: float | None = None
    environment: str = ""


@dataclasses.dataclass
class Result:
    """What a command answers.

    Attributes
    ----------
    text
        For people.
    data
        The same for programs (``--json``): what msgspec can encode.
    html
        The same for a notebook's cell.
    value
        What the magic shows and returns: a run, or a view with a ``show`` method.
    notice
        A remark that is no part of the answer.
    verbatim
        `text` is a program's output: printed as it is.
    shown
        `value` is on the screen already.
    exit_code
        Of the command line.
    """

    text: str = ""
    data: Any = None
    html: str = ""
    value: Any = None
    notice: str = ""
    verbatim: bool = False
    shown: bool = False
    exit_code: int = 0


def _no_run_shown(run: TrackedRun, submission: Any) -> Result:
    return Result(run.handle, {"handle": run.handle}, value=run)


@dataclasses.dataclass
class Context:
    """Where a command is typed, and what that place offers.

    Attributes
    ----------
    prog
        The command as it is typed: ``%aml_runs``, ``%%aml_submit``, ``amltrain runs``.
    cell
        Text of the cell below the line; ``None`` without one.
    write
        Takes output while it comes.
    notify
        Takes lines about the progress.
    rewrite_line
        Rewrites one line of an interactive terminal; ``None`` without one.
    sign_in
        Takes ``{"kind": "progress" | "sign-in", "text", "url", "code"}``; a sign-in without text has ended.
    submitted
        What follows a submit here: show the run, wait for it, take its values. Takes the run and the
        :class:`~jupyter_amltrain.commands.submit.Submission`.
    charts
        Whether a page shows charts and links here.
    interactive
        Whether output can be written over with escape sequences.
    log_lines
        Lines of a log to print when none are asked for; 0 for all.
    """

    prog: str
    cell: str | None = None
    defaults: Defaults = Defaults()
    write: Callable[[str], Any] = lambda text: sys.stdout.write(text)
    notify: Callable[[str], Any] = print
    rewrite_line: Callable[[str], Any] | None = None
    sign_in: Callable[[dict[str, Any]], None] = lambda _: None
    submitted: Callable[[TrackedRun, Any], Result] = _no_run_shown
    charts: bool = False
    interactive: bool = False
    log_lines: int = 0

    @property
    def magic(self) -> bool:
        """Whether it is a magic's line, not a shell's."""
        return self.prog.startswith("%")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Lines to copy at the head of the help, whole as they are typed into a cell and into a shell."""

    magic: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()

    def of(self, prog: str) -> tuple[str, ...]:
        """Those for the place of `prog`."""
        return self.magic if prog.startswith("%") else self.shell


def _no_flags(parser: Parser) -> None:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One verb of a noun.

    Attributes
    ----------
    verb
        Empty where the noun alone is the command.
    summary
        One sentence.
    run
        Carries out a parsed line; raises :class:`~jupyter_amltrain.errors.AmlTrainError`.
    flags
        Adds flags and arguments to its parser, whose :attr:`Parser.magic` says for which place.
    json
        Whether the command line offers ``--json``.
    magic, shell
        Where it can be typed.
    """

    verb: str = ""
    summary: str
    run: Callable[[argparse.Namespace, Context], Result]
    flags: Callable[[Parser], Any] = _no_flags
    examples: Examples = Examples()
    json: bool = False
    magic: bool = True
    shell: bool = True

    def on(self, prog: str) -> bool:
        """Whether it can be typed in the place of `prog`."""
        return self.magic if prog.startswith("%") else self.shell


@dataclasses.dataclass(frozen=True)
class Noun:
    """A group of commands: a magic ``%aml_<name>``, and ``amltrain <name>``.

    Attributes
    ----------
    summary
        One sentence.
    takes_cell
        Whether the magic is also a cell's: ``%%aml_<name>``.
    """

    name: str
    summary: str
    takes_cell: bool = False

    @property
    def commands(self) -> tuple[Command, ...]:
        """Its commands, the one that flags alone belong to first; imports their module."""
        module = importlib.import_module(f"jupyter_amltrain.commands.{self.name}")
        commands: tuple[Command, ...] = module.COMMANDS
        return commands


#: Every noun by its name, in the order of the help.
NOUNS: Mapping[str, Noun] = {
    noun.name: noun
    for noun in (
        Noun("submit", "Run this cell (or a script) as a supervised, tracked run, and return at once.", True),
        Noun("runs", "List, follow, attach and cancel runs, from any notebook."),
        Noun("compute", "List, check, choose, create and delete the places where runs can run."),
        Noun("monitor", "Watch the GPUs, processors and memory of a target, without a run."),
        Noun("model", "Register what a run left as a model, list models, and copy one out."),
    )
}


def noun_of(name: str) -> Noun:
    """The noun of that name.

    Raises
    ------
    CommandError
        There is none; close matches are named.
    """
    if name not in NOUNS:
        near = close_matches(name, NOUNS, 1)
        hint = did_you_mean(near, f"Commands: {', '.join(NOUNS)}.", prefix="amltrain ")
        raise CommandError(f"unknown command {name!r}.", hint=hint, code="command.unknown")
    return NOUNS[name]


@functools.lru_cache(maxsize=32)
def parser_of(name: str, prog: str) -> Parser:
    """The parser of a noun, as it is typed after `prog`."""
    noun = NOUNS[name]
    commands = [command for command in noun.commands if command.on(prog)]
    shown = [line for command in commands for line in command.examples.of(prog)]
    parser = Parser(prog=prog, description=noun.summary, examples=shown)
    for command in commands:
        verb = parser
        if command.verb:
            verb = parser.verb(command.verb, command.summary, command.examples.of(prog))
        command.flags(verb)
        if command.json and not verb.magic:
            verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(name: str, words: Sequence[str], context: Context) -> Result:
    """Carry out the words of a line.

    Raises
    ------
    AmlTrainError
        It cannot be done; a :class:`CommandError` where the line is wrong.
    HelpRequested
        It asks for help.
    """
    args = parser_of(name, context.prog).parse(words)
    command = next(command for command in NOUNS[name].commands if command.verb == args.verb)
    return command.run(args, context)


#: In sentences from below, and from agents of other versions, a command is written as its magic.
_COMMAND = re.compile(rf"(?<!%)%(?:aml_({'|'.join(NOUNS)})|pip)\b")


def shell_text(text: str) -> str:
    """`text` with the commands that it names as one types them in a shell; a cell's magic has no counterpart there."""
    return _COMMAND.sub(lambda match: f"amltrain {match[1]}" if match[1] else "pip", text)
