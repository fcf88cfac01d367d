"""The commands' parsers: one sentence, examples to copy, flags, verbs.

They serve the magics (`%aml_submit`), the command line (`amltrain submit`) and the
completion of both; the texts differ only by the name in front.
"""

from __future__ import annotations

import functools

from jupyter_amltrain.commands import values
from jupyter_amltrain.commands.model_parser import model_parser
from jupyter_amltrain.commands.parsing import HelpWanted, Parser, examples

__all__ = ["COMMANDS", "HelpWanted", "Parser", "parser_of"]

COMMANDS = ("submit", "runs", "compute", "monitor", "model")


def submit_parser(prog: str = "%aml_submit") -> Parser:
    """The parser of ``submit``."""
    parser = Parser(
        prog=prog,
        description="Run this cell (or a script) as a supervised, tracked run, and return at once.",
        examples=examples(
            prog,
            cell=(
                "%%aml_submit --param lr=0.1 --out accuracy",
                "%%aml_submit --gpus 1 --require-gpu stop --timeout 2h --wait",
                "%aml_submit train.py --param epochs=5 -- --verbose",
                "run = %aml_submit train.py --source . --name digits",
                "%aml_submit job.yml --target gpu-cluster --param epochs=5",
                "%%aml_submit --target gpu-cluster --env AzureML-sklearn-1.5@latest --input data=azureml:digits:1",
                "%%aml_submit --target gpu-cluster --nodes 2 --processes 4 --env conda.yml",
            ),
            line=(
                "amltrain submit train.py --param epochs=5 --wait",
                "amltrain submit train.py --source . --gpus 1 --timeout 2h -- --verbose",
            ),
        ),
    )
    magic = prog.startswith("%")
    parser.add_argument(
        "script", nargs="?" if magic else None, help="a .py file, arguments after --; or a job.yml of az ml"
    )
    add, many = parser.add_argument, parser.add_repeated
    add("--target", metavar="NAME", help="where to run; default the target in use")
    add("--source", metavar="FOLDER", help="copy this folder along (.amlignore, .gitignore hold)")
    many(
        "--param", metavar="K=V", type=values.param,
        help="assigned before the first line; an argument --K V for a script; '${{inputs.data}}' is the path of"
        " --input data",
    )  # fmt: skip
    many(
        "--out", metavar="NAME", type=values.out,
        help="bring this variable's JSON value home at the script's normal end",
    )  # fmt: skip
    many(
        "--env-var", metavar="K=V", type=values.env_var,
        help="an environment variable of the run; no secrets here",
    )  # fmt: skip
    many(
        "--secret", metavar="NAME",
        help="an environment variable whose value is taken from here or from keyring and stored nowhere",
    )  # fmt: skip
    add("--gpus", metavar="N", type=values.count, help="GPUs; default 1 where there is one, 0 for none")
    add(
        "--require-gpu", metavar="|".join(values.require_gpu.choices), type=values.require_gpu,
        help="what to do when the run leaves its GPUs unused: say so only, or stop it",
    )  # fmt: skip
    add(
        "--gpu-grace", metavar="TIME", type=values.duration,
        help="time that a run has to begin to use its GPUs; default 60s",
    )  # fmt: skip
    add("--share-gpus", action="store_true", help="also GPUs that others use: this kernel, other people")
    add(
        "--gpu-ids", metavar="|".join(values.gpu_ids.choices), type=values.gpu_ids,
        help="what CUDA_VISIBLE_DEVICES of the run holds; index for tools that parse numbers",
    )  # fmt: skip
    add("--name", help="a name for people; default the notebook's or script's")
    add("--experiment", metavar="NAME", help="MLflow experiment; default the notebook's name")
    many("--tag", metavar="K=V", type=values.tag, help="MLflow tag")
    add("--timeout", metavar="TIME", type=values.duration, help="stop the run after 90, 30s, 15m, 2h, 1d")
    _job_flags(parser)
    add("--wait", action="store_true", help="wait for the end; an error if the run fails")
    add("--dry-run", action="store_true", help="print the request and send nothing")
    add("--yaml", action="store_true", help="with --dry-run: print it as a file for az ml job create")
    if magic:
        add("--as", dest="as_name", metavar="NAME", type=values.variable, help="assign the run to NAME")
    else:
        add("--json", action="store_true", help="print JSON")
    return parser


def _job_flags(parser: Parser) -> None:
    """Flags of what a target may or may not be able to do; it says so before anything is sent."""
    from jupyter_amltrain import job_words  # with msgspec, which loading us must not import
    from jupyter_amltrain.spec.resources import DISTRIBUTIONS
    from jupyter_amltrain.spec.service import IDENTITIES, SERVICES

    add, many = parser.add_argument, parser.add_repeated
    add("--nodes", metavar="N", type=values.count, help="machines that it runs on at the same time; default 1")
    add("--processes", metavar="N", type=values.count, help="processes on each node; default one for each GPU")
    add(
        "--distribution",
        metavar="KIND",
        type=job_words.distribution_word,
        help="how processes find each other: pytorch (default of several), mpi, tensorflow or tensorflow:N with"
        " N parameter servers",
    ).offers = DISTRIBUTIONS  # type: ignore[attr-defined]  # for the completion
    add("--instance-type", metavar="SIZE", help="size of machine, where the target finds one for the run")
    add("--shm-size", metavar="SIZE", help="shared memory of the container: 512m, 8g")
    add(
        "--docker-args",
        metavar="ARGS",
        help="further arguments of docker run; write --docker-args=--ipc=host",
    )
    add(
        "--env",
        metavar="ENV",
        type=job_words.environment_word,
        help="packages: kernel (what the script imports, as installed here), NAME:3 or NAME@latest, conda.yml,"
        " an image, conda.yml,IMAGE, or a folder with a Dockerfile",
    )
    add(
        "--derive-env",
        action="store_true",
        help="where MLflow of the named environment cannot log, use one made of it that can",
    )
    many(
        "--input",
        metavar="NAME=URI",
        type=job_words.input_pair,
        help="data: its place is in $AML_INPUT_NAME; after commas a mode (download, ro_mount) and a type",
    )
    many(
        "--output",
        metavar="NAME[=URI]",
        type=job_words.output_pair,
        help="a folder to write to, in $AML_OUTPUT_NAME; after commas a mode (upload, rw_mount) and a type",
    )
    add(
        "--identity",
        metavar="WHO",
        help="who reads the data: user (you), managed or managed:CLIENT-ID (the compute), aml (the workspace)",
    ).offers = IDENTITIES  # type: ignore[attr-defined]
    many(
        "--service",
        metavar="NAME",
        type=job_words.door,
        help="open while it runs: jupyterlab, vscode, tensorboard:FOLDER, ssh:PUBLIC-KEY-FILE",
    ).offers = SERVICES  # type: ignore[attr-defined]
    add("--priority", metavar="|".join(values.priority.choices), type=values.priority, help="place in the queue")
    add(
        "--tier",
        metavar="|".join(values.tier.choices),
        type=values.tier,
        help="machines that the service finds by itself; spot is low priority",
    )


def runs_parser(prog: str = "%aml_runs") -> Parser:
    """The parser of ``runs``."""
    parser = Parser(
        prog=prog,
        description="List, follow, attach and cancel runs, from any notebook.",
        examples=examples(
            prog,
            cell=(
                "%aml_runs",
                "%aml_runs logs last --tail 50",
                "run = %aml_runs attach local/digits-k3f9x",
                "%aml_runs dashboard last --window 30m",
                "%aml_runs cancel digits-k3f9x",
            ),
            line=(
                "amltrain runs",
                "amltrain runs logs last --follow",
                "amltrain runs export last telemetry.csv",
            ),
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
        "dashboard": "Charts of a run's GPUs, host and metrics, live or after its end.",
        "export": "Write a run's telemetry to a .csv, .parquet or .png file.",
        "delete": "Remove the folders of ended runs: log, outputs, files (MLflow's record stays).",
        "ui": "Open MLflow's own web page on this folder's runs.",
    }
    if not magic:
        del verbs["dashboard"]  # its charts need a page
    for name, description in verbs.items():
        verb = parser.verb(name, description)
        if name in ("cancel", "delete"):
            verb.add_argument("run", nargs="+", help="handle, run id, its beginning, or last")
        elif name == "export":
            verb.add_argument("run", help="handle, run id, its beginning, or last")
            verb.add_argument("file", help="where to; its ending says which format")
        elif name not in ("last", "ui"):
            verb.add_argument("run", nargs="?", default="last", help="handle, run id, its beginning; default last")
        if name == "logs":
            verb.add_argument("--tail", metavar="N", type=values.count, help="only the last N lines")
            verb.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
            verb.add_argument("--step", metavar="NAME", help="log of one step or trial, by its name or id")
        elif name == "wait":
            verb.add_argument("--timeout", metavar="TIME", type=values.duration, help="give up waiting after 30s, 15m")
        elif name == "dashboard":
            _window(verb)
        elif name == "delete":
            verb.add_argument("-f", "--force", "-y", "--yes", action="store_true", help="really remove")
            verb.add_argument(
                "--without-mlflow", action="store_true", help="also a run that could not be written to MLflow's store"
            )
        if name in ("show", "attach", "last") and not magic:
            verb.add_argument("--json", action="store_true", help="print JSON")
    if not magic:
        listing.add_argument("--json", action="store_true", help="print JSON")
    return parser


def compute_parser(prog: str = "%aml_compute") -> Parser:
    """The parser of ``compute``."""
    from jupyter_amltrain.commands import compute_parser  # it knows the targets' fields, and loading us must be quick

    return compute_parser.compute_parser(prog)


def monitor_parser(prog: str = "%aml_monitor") -> Parser:
    """The parser of ``monitor``."""
    parser = Parser(
        prog=prog,
        description="Watch the GPUs, processors and memory of a target, without a run.",
        examples=examples(
            prog,
            cell=("%aml_monitor", "%aml_monitor local --gpus 0,1 --window 30m --rate 2"),
            line=("amltrain monitor", "amltrain monitor local --gpus 0,1", "amltrain monitor --once --json"),
        ),
    )
    parser.add_argument("target", nargs="?", help="name of the target; default the one in use")
    parser.add_argument("--gpus", metavar="N,N", type=values.indices, help="only these GPUs; default all")
    if prog.startswith("%"):
        _window(parser)
    parser.add_argument(
        "--rate", metavar="HZ", type=values.rate, default=1.0, help="measurements a second, 0.1 to 10; default 1"
    )
    if not prog.startswith("%"):
        parser.add_argument("--once", action="store_true", help="print one table and end")
        parser.add_argument("--json", action="store_true", help="print JSON, one line for each measurement")
    return parser


def _window(parser: Parser) -> None:
    parser.add_argument(
        "--window", metavar="TIME|all", type=values.window, default=600.0, help="how much the charts show; default 10m"
    )


@functools.lru_cache(maxsize=16)
def parser_of(command: str, prog: str) -> Parser:
    """The parser of one of :data:`COMMANDS`, made once."""
    makers = {
        "submit": submit_parser,
        "runs": runs_parser,
        "compute": compute_parser,
        "monitor": monitor_parser,
        "model": model_parser,
    }
    return makers[command](prog)
