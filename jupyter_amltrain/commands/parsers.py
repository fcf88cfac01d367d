"""The three commands' parsers: one sentence, examples to copy, and errors that guess.

They serve the magics (`%aml_submit`) and the command line (`amltrain submit`); the
texts differ only by the name in front.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jupyter_amltrain.commands import values
from jupyter_amltrain.errors import CommandError

COMMANDS = ("submit", "runs", "compute")


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

    def error(self, message: str) -> NoReturn:
        """Called by argparse: a missing value, a flag given wrongly."""
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
            return f"{sentence.strip()}\n\n{usage}\n\ncommands:{flags}"
        return f"{sentence.strip()}\n\n{usage}\n\n{positional}options:{flags}"


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


def submit_parser(prog: str = "%aml_submit") -> Parser:
    """The parser of ``submit``."""
    parser = Parser(
        prog=prog,
        description="Run this cell (or a script) as a supervised, tracked run, and return at once.",
        examples=_examples(
            prog,
            cell=(
                "%%aml_submit --param lr=0.1 --out accuracy",
                "%%aml_submit --gpus 1 --timeout 2h --wait",
                "%aml_submit train.py --param epochs=5 -- --verbose",
                "run = %aml_submit train.py --source . --name digits",
            ),
            line=(
                "amltrain submit train.py --param epochs=5 --wait",
                "amltrain submit train.py --source . --gpus 1 --timeout 2h -- --verbose",
            ),
        ),
    )
    magic = prog.startswith("%")
    parser.add_argument("script", nargs="?" if magic else None, help="a .py file; arguments after --")
    add = parser.add_argument
    add("--target", metavar="NAME", help="where to run; default the target in use")
    add("--source", metavar="FOLDER", help="copy this folder along (.amlignore, .gitignore hold)")
    add(
        "--param", metavar="K=V", action="append", default=[], type=values.param,
        help="assigned before the first line; an argument --K V for a script",
    )  # fmt: skip
    add(
        "--out", metavar="NAME", action="append", default=[], type=values.out,
        help="bring this variable's JSON value home at the script's normal end",
    )  # fmt: skip
    add(
        "--env-var", metavar="K=V", action="append", default=[], type=values.env_var,
        help="an environment variable of the run; no secrets here",
    )  # fmt: skip
    add(
        "--secret", metavar="NAME", action="append", default=[],
        help="an environment variable whose value is taken from here or from keyring and stored nowhere",
    )  # fmt: skip
    add("--gpus", metavar="N", type=values.count, help="GPUs; default 1 where there is one, 0 for none")
    add("--name", help="a name for people; default the notebook's or script's")
    add("--experiment", metavar="NAME", help="MLflow experiment; default the notebook's name")
    add(
        "--tag", metavar="K=V", action="append", default=[], type=values.tag,
        help="MLflow tag",
    )  # fmt: skip
    add("--timeout", metavar="TIME", type=values.duration, help="stop the run after 90, 30s, 15m, 2h, 1d")
    add("--wait", action="store_true", help="wait for the end; an error if the run fails")
    add("--dry-run", action="store_true", help="print the exact request and send nothing")
    if magic:
        add("--as", dest="as_name", metavar="NAME", type=values.variable, help="assign the run to NAME")
    else:
        add("--json", action="store_true", help="print JSON")
    return parser


def runs_parser(prog: str = "%aml_runs") -> Parser:
    """The parser of ``runs``."""
    parser = Parser(
        prog=prog,
        description="List, follow, attach and cancel runs, from any notebook.",
        examples=_examples(
            prog,
            cell=(
                "%aml_runs",
                "%aml_runs logs last --tail 50",
                "run = %aml_runs attach local/digits-k3f9x",
                "%aml_runs cancel digits-k3f9x",
            ),
            line=("amltrain runs", "amltrain runs logs last --follow"),
        ),
    )
    magic = prog.startswith("%")
    listing = parser.verb("list", "The newest runs as a table.")
    listing.add_argument("--target", metavar="NAME", help="only runs of this target")
    listing.add_argument("-n", "--limit", metavar="N", type=values.count, default=20, help="how many; 0 for all")
    verbs = {
        "show": "What is known of one run.",
        "logs": "A run's log.",
        "attach": "Show a run here again and return it.",
        "cancel": "Ask for the end of runs.",
        "wait": "Wait for the end; an error if the run failed.",
        "last": "Show the newest run and return it.",
        "delete": "Remove the folders of ended runs: log, outputs, files (MLflow's record stays).",
        "ui": "Open MLflow's own web page on this folder's runs.",
    }
    for name, description in verbs.items():
        verb = parser.verb(name, description)
        if name in ("cancel", "delete"):
            verb.add_argument("run", nargs="+", help="handle, run id, its beginning, or last")
        elif name not in ("last", "ui"):
            verb.add_argument("run", nargs="?", default="last", help="handle, run id, its beginning; default last")
        if name == "logs":
            verb.add_argument("--tail", metavar="N", type=values.count, help="only the last N lines")
            verb.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
        elif name == "wait":
            verb.add_argument("--timeout", metavar="TIME", type=values.duration, help="give up waiting after 30s, 15m")
        elif name == "delete":
            verb.add_argument("-f", "--force", action="store_true", help="really remove")
        if name in ("show", "attach", "last") and not magic:
            verb.add_argument("--json", action="store_true", help="print JSON")
    if not magic:
        listing.add_argument("--json", action="store_true", help="print JSON")
    return parser


def compute_parser(prog: str = "%aml_compute") -> Parser:
    """The parser of ``compute``."""
    parser = Parser(
        prog=prog,
        description="List, check and choose the places where runs can run.",
        examples=_examples(
            prog,
            cell=("%aml_compute", "%aml_compute show local", "%aml_compute use local"),
            line=("amltrain compute", "amltrain compute show local --json"),
        ),
    )
    magic = prog.startswith("%")
    for name, description in {
        "list": "The compute targets; * marks the one in use.",
        "show": "What a target has: processors, memory, GPUs, slots, and what a run survives there.",
        "use": "Make a target the default of every notebook.",
        "test": "Ask a target whether it can run jobs now.",
    }.items():
        verb = parser.verb(name, description)
        if name == "use":
            verb.add_argument("target", help="name of the target")
        elif name != "list":
            verb.add_argument("target", nargs="?", help="name of the target; default the one in use")
        if not magic:
            verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


@functools.lru_cache(maxsize=16)
def parser_of(command: str, prog: str) -> Parser:
    """The parser of one of :data:`COMMANDS`, made once."""
    makers = {"submit": submit_parser, "runs": runs_parser, "compute": compute_parser}
    return makers[command](prog)


def _examples(prog: str, *, cell: Sequence[str], line: Sequence[str]) -> str:
    return "Examples::\n\n" + "\n".join(f"    {x}" for x in (cell if prog.startswith("%") else line))
