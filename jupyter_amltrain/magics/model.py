"""``%aml_model``."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced

from jupyter_amltrain.commands import lexing
from jupyter_amltrain.commands.parsers import HelpWanted, parser_of


@magics_class
class ModelMagics(Magics):
    """Models of runs."""

    shell: Any  # never None here

    @output_can_be_silenced
    @line_magic
    def aml_model(self, line: str) -> None:
        """Register what a run left as a model, list models, and copy one out."""
        tokens = lexing.split(line)
        lexing.check_expanded(tokens, self.shell.user_ns)
        try:
            asked = parser_of("model", "%aml_model").parse(tokens)
        except HelpWanted as wanted:
            print(wanted)
            return
        from jupyter_amltrain.commands.model import carry_out

        text, _ = carry_out(asked)
        print(text)


# IPython asks `getdoc` first: the help text is made when somebody wants to read it.
vars(ModelMagics)["aml_model"].getdoc = lambda: parser_of("model", "%aml_model").format_help()
