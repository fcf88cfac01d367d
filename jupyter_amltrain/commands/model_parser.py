"""The parser of ``model``."""

from __future__ import annotations

from jupyter_amltrain.commands import values
from jupyter_amltrain.commands.parsing import Parser, examples


def model_parser(prog: str = "%aml_model") -> Parser:
    """The parser of ``model``."""
    parser = Parser(
        prog=prog,
        description="Register what a run left as a model, list models, and copy one out.",
        examples=examples(
            prog,
            cell=(
                "%aml_model register digits",
                "%aml_model register digits --run last --path outputs/model --tag stage=trial",
                "%aml_model",
                "%aml_model download digits:1 --to digits-1",
            ),
            line=(
                "amltrain model register digits --run local/digits-k3f9x",
                "amltrain model list --json",
                "amltrain model download digits --to digits-model",
            ),
        ),
    )
    line = not prog.startswith("%")
    where = "its registry: a connected workspace, or local; default where the target in use is"
    listing = parser.verb("list", "The models, newest version first.")
    listing.add_argument("--workspace", metavar="NAME", default="", help=where)
    register = parser.verb("register", "Make a version of a model of files that a run left.")
    register.add_argument("name", help="the model's name; a further version where there is one")
    register.add_argument("--run", metavar="HANDLE", default="last", help="handle, run id, its beginning; default last")
    register.add_argument(
        "--path", metavar="PATH", default="", help="within the run: outputs/model; default the only model that it left"
    )
    register.add_argument(
        "--type", metavar="|".join(model_type.choices), type=model_type,
        help="default mlflow_model where there is an MLmodel file",
    )  # fmt: skip
    register.add_argument("--description", metavar="TEXT", default="", help="a sentence about it")
    register.add_repeated("--tag", metavar="K=V", type=values.tag, help="what to find it by")
    download = parser.verb("download", "Copy the files of a model into a new folder.")
    download.add_argument("model", help="NAME or NAME:VERSION; default the newest version")
    download.add_argument("--to", metavar="FOLDER", default="", help="new or empty; default NAME-VERSION here")
    download.add_argument("--workspace", metavar="NAME", default="", help=where)
    if line:
        for verb in parser.verbs.values():
            verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


model_type = values.OneOf("--type", custom_model="", mlflow_model="")
