"""Which environment a job runs in: curated ones, what a script imports, and what is chosen, with the reasons.

What the curated environments hold is from their public definitions:
github.com/Azure/azureml-assets, ``assets/training/general/environments``, commit 4b41f8c of 2026-07-23;
read on 2026-11-21. A name there is the service's name without ``AzureML-`` (so in the jobs of
github.com/Azure/azureml-examples, 085cd6e of 2026-07-31). The images are built anew every few weeks with the same
packages in newer versions. None of them has both PyTorch and scikit-learn.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from jupyter_amltrain.backends.azureml import mlflow_pins
from jupyter_amltrain.errors import AmlTrainError, EnvironmentFailed, PreflightError, SubmitError
from jupyter_amltrain.jobs import preflight, requirements
from jupyter_amltrain.jobs.flag_values import environment_of
from jupyter_amltrain.jobs.imports import local_modules
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec


class Curated(NamedTuple):
    """One environment.

    Attributes
    ----------
    python
        Its version.
    conda
        What conda installs, as conda writes it.
    pip
        What pip installs; without a version it is the newest at the time of the image's build.
    gpu
        Whether it is made for GPUs.
    """

    python: str
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    gpu: bool = False


_AZURE = ("azureml-core", "azureml-defaults", "azureml-mlflow")
_TOOLS = ("py-spy", "debugpy", "ipykernel", "tensorboard", "psutil", "matplotlib", "tqdm", "py-cpuinfo")
_PLAIN = ("pandas=1.5.3", "scipy=1.10.0", "numpy=1.22")
_OLD = ("pandas=1.3", "scipy=1.10", "numpy=1.22")
_ACPT = (
    *_AZURE, *_TOOLS, "torch-tb-profiler", "azureml-dataset-runtime", "azureml-contrib-services", "inference-schema",
    "regex", "pybind11",
)  # fmt: skip

#: In the order in which they are taken for a script that says nothing: the first without GPUs, then with.
KNOWN: Mapping[str, Curated] = {
    "sklearn-1.5": Curated(
        "3.10", _PLAIN, (*_AZURE, *_TOOLS, "scikit-learn~=1.5.0", "scikit-learn-intelex", "joblib~=1.2.0")
    ),
    # torch comes with the image; the file torch 2.10 takes the place of the 2.8 in its name.
    "acpt-pytorch-2.8-cuda12.6": Curated(
        "3.10",
        (),
        (*_ACPT, "torch==2.10.0", "torchvision==0.25.0", "torchaudio==2.10.0", "deepspeed", "transformers", "aiohttp"),
        gpu=True,
    ),
    "lightgbm-3.3": Curated(
        "3.10",
        _PLAIN,
        (*_AZURE, *_TOOLS, "scikit-learn~=1.5.1", "xgboost~=1.7.6", "lightgbm>=4.6.0", "distributed", "adlfs~=0.7.0"),
    ),
    "tensorflow-2.16-cuda12": Curated(
        "3.11",
        ("pandas=2.2.2", "numpy=1.23.5", "scipy=1.14"),
        (
            *_AZURE,
            "matplotlib~=3.5.0",
            "psutil",
            "tqdm",
            "ipykernel",
            "debugpy",
            "tensorboard~=2.16.0",
            "tensorflow==2.16.2",
            "tensorflow-datasets~=4.9.0",
            "keras>=3.13.2",
            "tf-keras==2.16.0",
            "pillow",
            "horovod==0.28.1",
            "flask-cors==6.0.0",
        ),
        gpu=True,
    ),  # fmt: skip
    "acpt-pytorch-2.2-cuda12.1": Curated(
        "3.10",
        (),
        (*_ACPT, "torch==2.10.0", "torchvision==0.25.0", "torchaudio==2.10.0", "deepspeed", "transformers", "onnx"),
        gpu=True,
    ),
    "sklearn-1.1": Curated("3.9", _OLD, (*_AZURE, *_TOOLS, "scikit-learn~=1.1.0", "scikit-learn-intelex", "joblib")),
    "sklearn-1.0": Curated("3.9", _OLD, (*_AZURE, *_TOOLS, "scikit-learn~=1.0.0", "joblib~=1.2.0")),
}
#: Those that are chosen by themselves; the others are older.
_CHOSEN = ("sklearn-1.5", "acpt-pytorch-2.8-cuda12.6", "lightgbm-3.3", "tensorflow-2.16-cuda12")

#: What a job gets that names none and imports nothing in particular, without and with GPUs.
DEFAULT_ENVIRONMENT = "AzureML-sklearn-1.5@latest"
DEFAULT_GPU_ENVIRONMENT = "AzureML-acpt-pytorch-2.8-cuda12.6@latest"

_NAME = re.compile(r"(?:azureml:)?(?:azureml-)?(?P<name>[\w.-]+)(?:[:@].*)?", re.I)
_REGISTRY = re.compile(r"azureml://registries/azureml/environments/(?P<name>[^/]+)/.*", re.I)
_ID = re.compile(r".*/environments/azureml-(?P<name>[^/]+)/versions/.*", re.I)


def is_curated(reference: str) -> bool:
    """Return whether a name is one of Azure's own environments (the SDK's ``CURATED_ENV_PREFIX``)."""
    return re.match(r"(azureml:)?azureml-", reference, re.I) is not None


def find(reference: str) -> Curated | None:
    """What is known of a named environment; ``None`` for one of the workspace's own."""
    match = _REGISTRY.fullmatch(reference) or _ID.fullmatch(reference)
    if match is None and is_curated(reference):
        match = _NAME.fullmatch(reference)
    return KNOWN.get(match["name"].lower()) if match else None


def curated_pins_of(known: Curated) -> list[str]:
    """Its packages, as pip writes them."""
    return [*(re.sub(r"=(.+)", r"==\1.*", one) for one in known.conda), *known.pip]


def conda_of(known: Curated) -> str:
    """A conda file (YAML) of the same packages."""
    lines = [f"python={known.python}", "pip", *known.conda]
    return "\n".join(
        [
            "channels: [conda-forge]",
            "dependencies:",
            *(f"- {line}" for line in lines),
            "- pip:",
            *(f"  - {line}" for line in known.pip),
            "",
        ]
    )


def default_image(gpus: bool) -> str:
    """The environment of a job of which nothing is known."""
    return DEFAULT_GPU_ENVIRONMENT if gpus else DEFAULT_ENVIRONMENT


def covering(needs: Iterable[str], gpus: bool) -> tuple[str, list[str]]:
    """The curated environment that has what a script imports, and what it lacks (see :func:`.packages.lacking`).

    Parameters
    ----------
    needs
        Modules, as they are imported.
    """
    needs = list(needs)
    order = sorted(_CHOSEN, key=lambda name: KNOWN[name].gpu != gpus)
    found = {name: lacking(needs, curated_pins_of(KNOWN[name])) for name in order}
    best = min(order, key=lambda name: len(found[name]))  # the first of several
    return f"AzureML-{best}@latest", found[best]


#: Module -> distributions of which any has it, where the names differ.
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "Crypto": ("pycryptodome",),
    "IPython": ("ipython",),
    "PIL": ("pillow", "pillow-simd"),
    "attr": ("attrs",),
    "azureml": ("azureml-core", "azureml-mlflow", "azureml-defaults"),
    "bs4": ("beautifulsoup4",),
    "cv2": ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv"),
    "dateutil": ("python-dateutil",),
    "dotenv": ("python-dotenv",),
    "faiss": ("faiss-cpu", "faiss-gpu"),
    "git": ("gitpython",),
    "google": ("protobuf", "google-cloud-storage"),
    "lightning": ("lightning", "pytorch-lightning"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "mpl_toolkits": ("matplotlib",),
    "pkg_resources": ("setuptools",),
    "pythonjsonlogger": ("python-json-logger",),
    "pytorch_lightning": ("pytorch-lightning",),
    "serial": ("pyserial",),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "sklearnex": ("scikit-learn-intelex",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
    "torch": ("torch", "pytorch"),
    "umap": ("umap-learn",),
    "yaml": ("pyyaml",),
}
#: Distribution -> what it brings along by itself (`Requires-Dist` of its releases on PyPI, 2026-11; not all of it).
_BRINGS: Mapping[str, tuple[str, ...]] = {
    "accelerate": ("torch", "numpy", "pyyaml", "psutil", "huggingface-hub", "safetensors"),
    "azure-identity": ("azure-core", "cryptography", "msal"),
    "azureml-core": ("azure-identity", "requests", "python-dateutil", "pytz", "msrest", "pyyaml", "urllib3"),
    "azureml-dataset-runtime": ("pyarrow", "numpy"),
    "azureml-defaults": ("azureml-core", "azureml-dataset-runtime"),
    "azureml-mlflow": ("mlflow-skinny", "azure-identity", "azure-storage-blob", "python-dateutil", "pytz"),
    "datasets": ("numpy", "pandas", "pyarrow", "requests", "tqdm", "huggingface-hub", "pyyaml", "fsspec"),
    "deepspeed": ("torch", "numpy", "psutil", "tqdm", "einops", "pydantic"),
    "distributed": ("dask", "msgpack", "pyyaml", "tornado"),
    "ipykernel": ("ipython", "tornado", "pyzmq", "psutil"),
    "lightgbm": ("numpy", "scipy"),
    "lightning": ("torch", "torchmetrics", "pytorch-lightning", "numpy", "tqdm", "pyyaml", "fsspec"),
    "matplotlib": ("numpy", "pillow", "python-dateutil", "packaging", "pyparsing"),
    "mlflow": (
        "mlflow-skinny", "numpy", "pandas", "scipy", "scikit-learn", "matplotlib", "pyarrow", "skops", "flask",
        "sqlalchemy", "aiohttp", "docker",
    ),
    "mlflow-skinny": ("pyyaml", "requests", "gitpython", "cloudpickle", "pydantic", "protobuf", "packaging", "click"),
    "pandas": ("numpy", "python-dateutil", "pytz"),
    "pytorch-lightning": ("torch", "torchmetrics", "numpy", "tqdm", "pyyaml", "fsspec"),
    "scikit-image": ("numpy", "scipy", "pillow", "networkx", "imageio"),
    "scikit-learn": ("numpy", "scipy", "joblib", "threadpoolctl"),
    "seaborn": ("numpy", "pandas", "matplotlib"),
    "sentence-transformers": ("torch", "transformers", "scikit-learn", "scipy", "numpy", "tqdm", "huggingface-hub"),
    "skops": ("scikit-learn", "numpy", "scipy", "packaging"),
    "tensorboard": ("numpy", "protobuf", "pillow", "packaging"),
    "tensorflow": ("numpy", "keras", "h5py", "protobuf", "requests", "tensorboard", "absl-py"),
    "torch": ("numpy", "networkx", "jinja2", "sympy", "filelock", "fsspec", "typing-extensions"),
    "torchvision": ("torch", "numpy", "pillow"),
    "transformers": (
        "numpy", "requests", "tqdm", "pyyaml", "regex", "huggingface-hub", "tokenizers", "safetensors", "packaging",
        "filelock",
    ),
    "xgboost": ("numpy", "scipy"),
}  # fmt: skip
#: Calls that import a package which their own one does not bring: ``log_model`` of scikit-learn's models saves them
#: by skops from MLflow 3.14 on, which mlflow-skinny (all that azureml-mlflow brings) does not install.
_CALLS = {"mlflow.sklearn.log_model": "skops", "mlflow.sklearn.save_model": "skops"}


def required_modules(text: bytes, own: Iterable[str] = ()) -> list[str]:
    """The modules without which a script ends: what it imports outside functions and ``try``, the first names.

    Parameters
    ----------
    own
        Modules that travel with the script.
    """
    ours = {*sys.stdlib_module_names, "__main__", *own}
    tops = [one.name.partition(".")[0] for one in requirements.imports(text) if one.needed]
    return [top for top in dict.fromkeys([*tops, *_called(text)]) if top not in ours]


def lacking(modules: Iterable[str], pins: Iterable[str]) -> list[str]:
    """Those of `modules` that no package of `pins` is known to have."""
    there: set[str] = set()
    left = [name(pin) for pin in pins]
    while left:
        one = left.pop()
        if one not in there:
            there.add(one)
            left += _BRINGS.get(one, ())
    return [module for module in modules if not there.intersection(distributions(module))]


def distributions(module: str) -> tuple[str, ...]:
    """Names of packages of which any has the module."""
    return _DISTRIBUTIONS.get(module) or (name(module),)


def name(pin: str) -> str:
    """The package's name in a requirement (PEP 503)."""
    match = re.match(r"\s*(?:[\w.-]+::)?([A-Za-z0-9][A-Za-z0-9._-]*)", pin)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def _called(text: bytes) -> list[str]:
    if not any(call.rpartition(".")[2].encode() in text for call in _CALLS):
        return []
    try:
        tree = preflight.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [
        module
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and not any(word.arg == "serialization_format" for word in node.keywords)
        for module in [_CALLS.get(_dotted(node.func))]
        if module
    ]


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


#: What conda packages are built on, without and with GPUs. Source: base images of the public definitions in
#: github.com/Azure/azureml-assets, commit 4b41f8c of 2026-07-23.
BASE_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
BASE_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04:latest"


def environment_body(spec: JobSpec, gpus: int | None) -> dict[str, str]:
    """Where its Python comes from, plain: ``name``, ``image`` (with ``conda``, ``packages``), ``build``; ``derive``."""
    given: Environment = spec.environment
    name = given.name.removeprefix("azureml:") if not given.name.startswith("azureml://") else given.name
    found = {"name": name, "image": given.image, "conda": given.conda, "build": given.build}
    found = {key: value for key, value in found.items() if value}
    if given.kernel:
        found["packages"] = json.dumps(given.conda_file)
    if given.conda or given.kernel:
        found.setdefault("image", BASE_GPU_IMAGE if gpus else BASE_IMAGE)
    if not found:
        found = {"name": default_image(bool(gpus))}
    if given.derive:
        found["derive"] = "yes"
    return found


def environment_shown(environment: Mapping[str, str]) -> str:
    """``environmentId`` in a printed request."""
    if name := environment.get("name"):
        return name if name.startswith(("azureml://", "/")) else f"azureml:{name}"
    if folder := environment.get("build"):
        return f"(environment built of {folder})"
    conda = f" with {environment['conda']}" if "conda" in environment else ""
    if "packages" in environment:
        python, _, *pip = json.loads(environment["packages"])["dependencies"]
        conda = f" with {', '.join([python, *(pip[0]['pip'] if pip else ())])}"
    return f"(environment of the image {environment['image']}{conda})"


#: Modules that one sentence names.
_MAX_NAMED = 5


class Wanted(NamedTuple):
    """What a script imports.

    Attributes
    ----------
    modules
        Those without which it ends.
    what
        What it is, for a sentence.
    """

    modules: tuple[str, ...]
    what: str


def completed(spec: JobSpec, default: str, gpus: bool) -> JobSpec:
    """`spec` with its environment. Blocks on the disk; asks nobody.

    One that names none gets its target's, else the curated one that has what the script imports, else what
    this kernel has of it (``--env kernel``), built by the service; where that cannot be said, the curated one that
    lacks least.

    Parameters
    ----------
    default
        The target's own, as ``--env`` takes it.

    Raises
    ------
    PreflightError
        See :func:`.requirements.captured`.
    """
    given = spec.environment
    if default and given.chosen and not given.python:  # a target's own is nearer than a notebook's
        given = Environment()
    if spec.job_type or given:
        return requirements.completed(spec)
    if default:
        try:
            return requirements.completed(_having(spec, environment_of(default)))
        except PreflightError as error:  # the line does not name it
            raise PreflightError(f"By default {error}") from None
    wanted = wanted_of(spec)
    name, lacking = covering(wanted.modules, gpus)
    if not lacking:
        # What imports nothing is as well off in either.
        return _having(spec, Environment(name=name if wanted.modules else default_image(gpus)))
    kernel = Environment(kernel=True, chosen=f"{name.partition('@')[0]} does not name {_listed(lacking)}")
    try:
        return requirements.completed(_having(spec, kernel))
    except PreflightError:
        return _having(spec, Environment(name=name))


def _having(spec: JobSpec, environment: Environment) -> JobSpec:
    return msgspec.structs.replace(spec, environment=environment)


def wanted_of(spec: JobSpec, snapshot: Snapshot | None = None) -> Wanted:
    """What the script of a job imports and does not bring along. Blocks on the disk.

    Parameters
    ----------
    snapshot
        The job's files, where they are known.
    """
    what = "The cell" if spec.cell else spec.script_name
    root = Path(spec.source or spec.notebook_dir or ".").expanduser()
    beside = (root / spec.script_name).parent  # the first place where Python looks
    try:
        text = spec.script.encode() or (root / spec.script_name).read_bytes()
        files: dict[str, str | bytes | Path] = {**(snapshot.files if snapshot else local_modules(text, root))}
        if snapshot:
            above = f"{PurePosixPath(spec.script_name).parent}/"
            files |= {name.removeprefix(above): each for name, each in files.items() if name.startswith(above)}
        elif beside != root:
            files |= local_modules(text, beside)
        own = {name.partition("/")[0].removesuffix(".py") for name in files}
        if not snapshot and spec.source:
            own |= {one.stem for one in (*root.iterdir(), *beside.iterdir())}
        found = [required_modules(each, own) for each in requirements.reached(text, files)]
    except (OSError, UnicodeError, SubmitError):
        return Wanted((), what)  # the snapshot says it, with its words
    modules = tuple(dict.fromkeys(module for needs in found for module in needs))
    return Wanted(modules, what if len(modules) == len(found[0]) else f"{what} with its modules")


# ---- judging


def pins_of(environment: Mapping[str, str], conda: str = "") -> list[str] | None:
    """Packages of an environment (see :func:`.environments.environment_body`); ``None`` where nobody knows. Blocks.

    Parameters
    ----------
    conda
        Its conda file, as the service tells it.
    """
    try:
        if path := environment.get("conda"):
            return mlflow_pins.pip_pins(Path(path).read_text(encoding="utf-8"))
        if conda:
            return mlflow_pins.pip_pins(conda)
    except (EnvironmentFailed, OSError, UnicodeError, ImportError):
        return None  # who makes the environment says it, with his words
    known = find(environment.get("name", ""))
    return curated_pins_of(known) if known else None


def notes(wanted: Wanted, environment: Environment, plain: Mapping[str, str], conda: str = "") -> tuple[str, ...]:
    """What a person should know of an environment before a machine is paid for, one sentence each.

    Parameters
    ----------
    environment, plain
        The job's, and as :func:`.environments.environment_body` says it.
    conda
        As in :func:`pins_of`.
    """
    if environment.kernel:
        return (_of_the_kernel(environment.chosen),) if environment.chosen else ()
    pins = pins_of(plain, conda)
    if pins is None:
        return ()
    name = shown(plain)
    said: list[str] = []
    missing = lacking(wanted.modules, pins)
    if environment.derive:
        missing = [module for module in missing if module not in ("mlflow", "skops")]
    elif "mlflow" in wanted.modules:
        try:
            verdict = mlflow_pins.judged(pins, name)
        except ImportError:  # pragma: no cover - packaging comes with every kernel
            verdict = mlflow_pins.Verdict(None)
        if verdict.sentence:
            said.append(verdict.sentence)
            missing = [module for module in missing if module != "mlflow"]
    if "skops" in missing:
        missing.remove("skops")
        said.append(
            f"{wanted.what} saves a model of scikit-learn, and {name} does not name skops, which MLflow 3.14 and later"
            " need for that: --env kernel, --derive-env, or serialization_format='cloudpickle'."
        )
    if missing:
        said.append(
            f"{wanted.what} imports {_listed(missing, modules=True)}; {name} does not name {_listed(missing)}:"
            " --env kernel takes what is installed here, --env conda.yml what you list."
        )
    return tuple(said)


def unjudged(plain: Mapping[str, str]) -> bool:
    """Whether only the service can say what is in it."""
    return bool(plain.get("name")) and find(plain["name"]) is None


def shown(plain: Mapping[str, str]) -> str:
    """An environment's name in a sentence."""
    if path := plain.get("conda"):
        return Path(path).name
    name = plain.get("name", "")
    named = re.fullmatch(r"azureml://registries/[^/]+/environments/([^/]+)/.*", name) or re.fullmatch(
        r"(?:azureml:)?([^/:@]+)(?:[:@].*)?", name
    )
    return named[1] if named else name


def _of_the_kernel(why: str) -> str:
    return (
        f"Its environment is made of this kernel's packages ({why}): built once by the service, which takes some"
        " minutes. Another: --env NAME"
    )


def _listed(found: Sequence[str], modules: bool = False) -> str:
    names = list(found) if modules else [distributions(module)[0] for module in found]
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def of_target(text: str) -> dict[str, str]:
    """What is wrong with a target's own environment, by field."""
    try:
        from jupyter_amltrain.schema.environment import check_environment

        check_environment(environment_of(text))
    except AmlTrainError as error:
        return {"environment": str(error)}
    return {}


def joined(*parts: Iterable[str]) -> tuple[str, ...]:
    """Sentences, each once."""
    return tuple(dict.fromkeys(sentence for part in parts for sentence in part))
