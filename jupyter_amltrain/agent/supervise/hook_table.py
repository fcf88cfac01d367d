"""The hooks of a job: one row for each file of the agent that a job's Python gets.

``job_hooks.py`` writes the files and sets their variables, ``import_hook.py`` runs them in the job. A hook that a user
turns on names the field of the job, from which its flag, its variable and its limits on services follow.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from ..protocol import ASKS, DISPLAYS, FAILURE, LINES, PICTURES, STACK, TRACKER_NOTES

#: When a hook with a place in the run folder is on: with GPUs, for a job of one process, if its place exists.
GPUS, ALONE, EXISTS = "gpus", "alone", "exists"


class Switch(NamedTuple):
    """The flag of a hook, and the field of :class:`~jupyter_amltrain.schema.job.JobSpec` that it sets.

    Parameters
    ----------
    field
        Its value is that of the hook's variable, 1 for true; 0 where the flag turns the hook off.
    help
        One sentence about the flag.
    lacking
        Why a service that starts jobs itself does not honor it: a phrase after the name of the target. Empty if the
        flag is honored.
    is_off
        Whether the hook is on without the flag, which turns it off.
    metavar, samples
        Of a flag with a value.
    """

    field: str
    help: str
    lacking: str
    metavar: str = ""
    samples: Tuple[str, ...] = ()
    is_off: bool = False

    @property
    def flag(self) -> str:
        """As it is typed."""
        return "--" + self.field.replace("_", "-")


class Hook(NamedTuple):
    """A file in a job's Python.

    Parameters
    ----------
    module
        Its name there.
    source
        Its path in the agent.
    variable, place
        Variable of the job with a path, which is `place` in the run folder; 0 turns the hook off. Without a place, the
        variable has what the submit sets.
    on
        When the variable is set; always, unless the hook has a switch.
    starts
        Whether each Python of the job calls its ``start(value of the variable, load)``; `load` returns the names of
        another of these modules.
    after
        Libraries after whose import its function ``imported`` gets them.
    is_importable
        Whether scripts and other hooks import it.
    """

    module: str
    source: str
    variable: str = ""
    place: str = ""
    on: str = ""
    starts: bool = False
    after: Tuple[str, ...] = ()
    is_importable: bool = False
    switch: Optional[Switch] = None


_DEBUG = Switch(
    "debug", "wait for a debugger at breakpoint() and at an exception: runs debug RUN", "has no way to a job's debugger"
)
_LINES = Switch("no_lines", "do not sample in which lines the time of the run goes", "", is_off=True)
_STOP_ON_NAN = Switch(
    "stop_on_nan", "end the run where it logs NaN for this metric by MLflow; * for any metric",
    "has not been shown to end a job for a metric", "METRIC", ("loss", "*"),
)  # fmt: skip
#: Trackers, whose files are followed, and libraries for which MLflow can log.
_TRACKERS = ("tensorboard", "tensorboardX", "tensorflow", "lightning", "pytorch_lightning", "transformers", "wandb",
             "sklearn", "xgboost", "lightgbm", "keras", "statsmodels", "pyspark", "paddle")  # fmt: skip

#: Those that start with Python start in this order.
HOOKS = (
    Hook("sitecustomize", "supervise/import_hook.py"),  # written last: then all are there
    Hook("amltrain_stack_file", "distributed/stack_hook.py", "AMLTRAIN_STACK", STACK, ALONE, starts=True),
    Hook("amltrain_listen", "asking/listen_hook.py", "AMLTRAIN_ASKS", ASKS, EXISTS, starts=True),
    Hook("amltrain_asked", "asking/asked_hook.py"),
    Hook("amltrain_debugger", "debugging/debug_hook.py", "AMLTRAIN_DEBUG", "debug", starts=True, switch=_DEBUG,
         after=("IPython.core.interactiveshell",)),
    Hook("amltrain_lines", "lines/lines_hook.py", "AMLTRAIN_LINES", LINES, starts=True, switch=_LINES),
    Hook("amltrain_line_sampler", "lines/line_sampler.py"),
    Hook("amltrain_switch_interval", "lines/switch_interval.py"),
    Hook("amltrain_line_sums", "lines/line_sums.py"),
    Hook("amltrain_line_file", "lines/line_file.py"),
    Hook("amltrain_thread_figures", "lines/thread_figures.py"),
    Hook("amltrain_gpu_use", "lines/gpu_use.py"),
    Hook("amltrain_stacks", "lines/stacks.py"),
    Hook("amltrain_own_rank", "distributed/own_rank.py", is_importable=True),
    Hook("amltrain_warm", "supervise/warm_hook.py"),
    Hook("amltrain_values", "values.py", is_importable=True),
    Hook("amltrain_shared", "shared_objects.py", is_importable=True),
    Hook("amltrain_pretty", "pretty_text.py", is_importable=True),
    Hook("amltrain_secrets", "secret_values.py", is_importable=True),
    Hook("amltrain_kept", "kept_values.py", is_importable=True),
    Hook("amltrain_notebook", "supervise/notebook_runner.py", is_importable=True),
    Hook("amltrain_mlflow", "supervise/mlflow_hook.py", is_importable=True),
    Hook("amltrain_display", "displays/display_hook.py", "AMLTRAIN_DISPLAYS", DISPLAYS, is_importable=True,
         after=("IPython.core.display_functions",)),
    Hook("amltrain_forms", "displays/rich_forms.py", is_importable=True),
    Hook("amltrain_failure", "failures/failure_hook.py", "AMLTRAIN_FAILURE", FAILURE, is_importable=True),
    Hook("amltrain_failing_names", "failures/failing_names.py", is_importable=True),
    Hook("amltrain_memory_lines", "failures/memory_lines.py", is_importable=True),
    Hook("amltrain_value_facts", "failures/value_facts.py", is_importable=True),
    Hook("amltrain_array_facts", "failures/array_facts.py", is_importable=True),
    Hook("amltrain_safe_access", "failures/safe_access.py", is_importable=True),
    Hook("amltrain_nan", "failures/nan_hook.py", "AMLTRAIN_STOP_ON_NAN", after=("mlflow.tracking.client",),
         switch=_STOP_ON_NAN),
    Hook("amltrain_pictures", "pictures/matplotlib_hook.py", "AMLTRAIN_PICTURES", PICTURES, is_importable=True,
         after=("matplotlib",)),
    Hook("amltrain_torch", "telemetry/torch_hook.py", "AMLTRAIN_TORCH_MEMORY", "telemetry", GPUS, after=("torch",)),
    Hook("amltrain_trackers", "trackers/tracker_hook.py", "AMLTRAIN_TRACKERS", TRACKER_NOTES, after=_TRACKERS),
    Hook("amltrain_tqdm", "supervise/tqdm_hook.py", after=("tqdm.notebook",)),
    Hook("amltrain_rich", "supervise/rich_hook.py", after=("rich.console", "rich.live")),
    Hook("amltrain_pandas", "supervise/pandas_hook.py", after=("pandas",)),
    Hook("amltrain_spawn", "supervise/spawn_hook.py", after=("multiprocessing.spawn",)),
    Hook("amltrain_code_paths", "supervise/code_paths_hook.py", after=("mlflow.utils.model_utils",)),
)  # fmt: skip
#: Those with a flag.
SWITCHED = tuple((hook.variable, hook.switch) for hook in HOOKS if hook.switch)
