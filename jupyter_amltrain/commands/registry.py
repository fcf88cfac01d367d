"""Registry of commands: nouns (``runs``) with their verbs (``logs``), for magics, command line, Tab and panel.

A noun is a row of :data:`NOUNS` and a module of this package with ``COMMANDS``; a verb is one
:class:`Command` in it. There is no other list of commands. ``%load_ext`` imports this module, so it does not
import the modules of the nouns.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.text import close_matches, did_you_mean

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.output.scaling_runs import ScalingRuns
    from jupyter_amltrain.run import TrackedRun


class Defaults(NamedTuple):
    """Values of flags that a submit line does not set; empty for no default."""

    target: str = ""
    experiment: str = ""
    timeout: float | None = None
    environment: str = ""
    isolated: bool = False
    tracking_uri: str = ""
    autolog: bool = False


# %load_ext executes this module, and each method that a dataclass generates costs it 0.1 ms.
@dataclasses.dataclass(eq=False, repr=False)
class Result:
    """Result of a command.

    Attributes
    ----------
    text
        The result for people.
    data
        The result for programs (``--json``): any value that msgspec can encode.
    html
        The result for the output of a notebook cell.
    value
        The value that the magic shows and returns: a run, or a view with a ``show`` method.
    notice
        A remark that is not part of the result.
    verbatim
        `text` is the output of a program: print it unchanged.
    shown
        `value` has been displayed already.
    exit_code
        Exit code of the command line.
    """

    text: str = ""
    data: Any = None
    html: str = ""
    value: Any = None
    notice: str = ""
    verbatim: bool = False
    shown: bool = False
    exit_code: int = 0


def _handle_only(run: TrackedRun, submission: Any) -> Result:
    return Result(run.handle, {"handle": run.handle}, value=run)


def _runs_only(runs: ScalingRuns, submission: Any) -> Result:
    return Result("\n".join(runs.handles), {"handles": list(runs.handles)}, value=runs)


@dataclasses.dataclass(eq=False, repr=False)
class Context:
    """Where a command runs (magic or command line), and the capabilities of that front end.

    Attributes
    ----------
    prog
        The command as typed: ``%aml_runs``, ``%%aml_submit``, ``amltrain runs``.
    cell
        Text of the cell below the line; ``None`` for a line.
    write
        Writes output as it arrives.
    notify
        Shows lines about the progress.
    rewrite_line
        Rewrites one line of an interactive terminal; ``None`` if there is no terminal.
    sign_in
        Takes ``{"kind": "progress" | "sign-in", "text", "url", "code"}``; a sign-in with an empty text has ended.
    submitted
        Called after a submit with the run and the :class:`~jupyter_amltrain.commands.submit.Submission`: shows the
        run, waits for it, assigns its values.
    measured
        The same after a submit with ``--scaling``: shows the runs of all widths.
    insert_cell
        Inserts a text as the next cell of a notebook; ``None`` if there is no notebook.
    charts
        Whether charts and links can be shown.
    interactive
        Whether escape sequences can overwrite output.
    log_lines
        Number of log lines to print without ``--tail``; 0 for all.
    namespace
        The variables of the notebook; ``None`` where there is none.
    history
        Returns the cells of the notebook that were run, oldest first.
    run_cell
        Runs a text as a cell of the notebook, and returns whether it succeeded.
    """

    prog: str
    cell: str | None = None
    defaults: Defaults = Defaults()
    write: Callable[[str], Any] = lambda text: sys.stdout.write(text)
    notify: Callable[[str], Any] = print
    rewrite_line: Callable[[str], Any] | None = None
    sign_in: Callable[[dict[str, Any]], None] = lambda _: None
    submitted: Callable[[TrackedRun, Any], Result] = _handle_only
    measured: Callable[[ScalingRuns, Any], Result] = _runs_only
    insert_cell: Callable[[str], Any] | None = None
    charts: bool = False
    interactive: bool = False
    log_lines: int = 0
    namespace: Mapping[str, Any] | None = None
    history: Callable[[], Sequence[str]] = tuple
    run_cell: Callable[[str], bool] | None = None

    @property
    def magic(self) -> bool:
        """Whether the command is a magic, as opposed to a shell command."""
        return self.prog.startswith("%")


class Examples(NamedTuple):
    """Example lines at the start of the help, for a cell and for a shell."""

    magic: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()

    def for_prog(self, prog: str) -> tuple[str, ...]:
        """Return the examples for the front end of `prog`."""
        return self.magic if prog.startswith("%") else self.shell


def _no_flags(parser: Parser) -> None:
    pass


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Command:
    """One verb of a noun.

    Attributes
    ----------
    verb
        Name of the verb; empty if the noun alone is the command.
    summary
        One sentence.
    run
        Runs the command with its parsed arguments; raises :class:`~jupyter_amltrain.errors.AmlTrainError`.
    flags
        Adds flags and arguments to its parser; :attr:`Parser.magic` says for which front end.
    json
        Whether the command line offers ``--json``.
    magic, shell
        Whether the command is available as a magic, and in a shell.
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
        """Whether the command is available in the front end of `prog`."""
        return self.magic if prog.startswith("%") else self.shell


class Noun(NamedTuple):
    """A group of commands: a magic ``%aml_<name>``, and ``amltrain <name>``.

    Attributes
    ----------
    summary
        One sentence.
    takes_cell
        Whether the magic is also a cell magic: ``%%aml_<name>``.
    shell
        Whether the command line has it.
    of_plugins
        Whether only plug-ins have commands for it: no module of this folder has any.
    """

    name: str
    summary: str
    takes_cell: bool = False
    shell: bool = True
    of_plugins: bool = False

    @property
    def commands(self) -> tuple[Command, ...]:
        """Commands of the noun, the default one first; imports their modules."""
        more = (command for commands in parts(f"commands.{self.name}") for command in commands)
        if self.of_plugins:
            return tuple(more)
        module = importlib.import_module(f"jupyter_amltrain.commands.{self.name}")
        return (*module.COMMANDS, *more)


#: Every noun by its name, in the order of the help.
NOUNS: Mapping[str, Noun] = {
    noun.name: noun
    for noun in (
        Noun("submit", "Run this cell (or a script) as a supervised, tracked run, and return at once.", True),
        Noun("sweep", "Search values of parameters with many runs of a cell or script, on any target.", True),
        Noun("automl", "Search the best model for a column of a table, as one run, here or over SSH.", of_plugins=True),
        Noun("step", "Make this cell (or a script) a step of pipelines.", True, False, of_plugins=True),
        Noun("pipeline", "Run steps in the order of their data, and only those that have changed.", of_plugins=True),
        Noun("cell", "Run this cell here as usual, and name it, so that --with NAME sends it with a job.", True, False),
        Noun("runs", "List, follow, attach and cancel runs, from any notebook."),
        Noun("compute", "List, check, choose, create and delete compute targets."),
        Noun("monitor", "Watch the GPUs, processors and memory of a target, without a run."),
        Noun("env", "List, create, build and remove the environments (packages) that runs use."),
        Noun("data", "Upload files as data of a workspace, list and show data.", of_plugins=True),
        Noun("model", "Register files of a run as a model, list models, and download one."),
    )
}

#: Those of the command line.
SHELL_NOUNS: Mapping[str, Noun] = {name: noun for name, noun in NOUNS.items() if noun.shell}


def noun_of(name: str) -> Noun:
    """Return the noun of that name on the command line.

    Raises
    ------
    CommandError
        There is no such noun; the message names close matches.
    """
    if name not in SHELL_NOUNS:
        matches = close_matches(name, SHELL_NOUNS, 1)
        hint = did_you_mean(matches, f"Commands: {', '.join(SHELL_NOUNS)}.", prefix="amltrain ")
        raise CommandError(f"unknown command {name!r}.", hint=hint, code="command.unknown")
    return SHELL_NOUNS[name]


@functools.lru_cache(maxsize=32)
def parser_of(name: str, prog: str) -> Parser:
    """Return the parser of a noun; `prog` is the command as typed."""
    noun = NOUNS[name]
    commands = [command for command in noun.commands if command.on(prog)]
    examples = [line for command in commands for line in command.examples.for_prog(prog)]
    parser = Parser(prog=prog, description=noun.summary, examples=examples)
    for command in commands:
        verb = parser
        if command.verb:
            verb = parser.verb(command.verb, command.summary, command.examples.for_prog(prog))
        command.flags(verb)
        if command.json and not verb.magic:
            verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(name: str, words: Sequence[str], context: Context) -> Result:
    """Parse the words of a line and run the command.

    Raises
    ------
    AmlTrainError
        The command failed; :class:`CommandError` if the line is invalid.
    HelpRequested
        The line has ``--help``.
    """
    args = parser_of(name, context.prog).parse(words)
    command = next(command for command in NOUNS[name].commands if command.verb == args.verb)
    return command.run(args, context)


#: Messages of other layers, and of agents of other versions, name commands as magics.
_COMMAND = re.compile(rf"(?<!%)%(?:aml_({'|'.join(SHELL_NOUNS)})|pip)\b")


def shell_text(text: str) -> str:
    """Return `text` with magics replaced by shell commands; cell magics have no such counterpart and stay."""
    return _COMMAND.sub(lambda match: f"amltrain {match[1]}" if match[1] else "pip", text)
