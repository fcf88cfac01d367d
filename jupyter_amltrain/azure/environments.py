"""Choice of a job's environment: contents of curated environments, imports of a script, and notes for the user.

The contents of the curated environments are from their public definitions:
github.com/Azure/azureml-assets, ``assets/training/general/environments``, commit 4b41f8c of 2026-07-23;
read on 2026-11-21. A name there is the service's name without ``AzureML-`` (so in the jobs of
github.com/Azure/azureml-examples, 085cd6e of 2026-07-31). The images are rebuilt every few weeks with the same
packages in newer versions. None of them has both PyTorch and scikit-learn.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.azure import mlflow_pins
from jupyter_amltrain.errors import EnvironmentFailed, PreflightError, SubmitError
from jupyter_amltrain.jobs import preflight, requirements
from jupyter_amltrain.jobs.flag_values import environment_of
from jupyter_amltrain.jobs.project import by_import, own_modules
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
from jupyter_amltrain.schema.job import JobSpec


class Curated(NamedTuple):
    """Contents of one curated environment.

    Attributes
    ----------
    python
        Version of Python.
    conda
        Packages that conda installs, in conda's syntax.
    pip
        Packages that pip installs; one without a version is the newest at the time of the image's build.
    gpu
        Whether the environment is made for GPUs.
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

#: In order of preference for a script without particular imports: the first for CPUs, then the one for GPUs.
CURATED: Mapping[str, Curated] = {
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
#: Environments that are chosen automatically; the others are older.
_CHOSEN = ("sklearn-1.5", "acpt-pytorch-2.8-cuda12.6", "lightgbm-3.3", "tensorflow-2.16-cuda12")

#: Environments of a job that names none and imports nothing in particular, without and with GPUs.
DEFAULT_ENVIRONMENT = "AzureML-sklearn-1.5@latest"
DEFAULT_GPU_ENVIRONMENT = "AzureML-acpt-pytorch-2.8-cuda12.6@latest"

_NAME = re.compile(r"(?:azureml:)?(?:azureml-)?(?P<name>[\w.-]+)(?:[:@].*)?", re.I)
_REGISTRY = re.compile(r"azureml://registries/azureml/environments/(?P<name>[^/]+)/.*", re.I)
_ID = re.compile(r".*/environments/azureml-(?P<name>[^/]+)/versions/.*", re.I)


def is_curated(reference: str) -> bool:
    """Return whether a name is one of Azure's own environments (the SDK's ``CURATED_ENV_PREFIX``)."""
    return re.match(r"(azureml:)?azureml-", reference, re.I) is not None


def find_curated(reference: str) -> Curated | None:
    """Return the known contents of a named environment; ``None`` for one of the workspace's own."""
    match = _REGISTRY.fullmatch(reference) or _ID.fullmatch(reference)
    if match is None and is_curated(reference):
        match = _NAME.fullmatch(reference)
    return CURATED.get(match["name"].lower()) if match else None


def curated_pins_of(known: Curated) -> list[str]:
    """Return the packages of a curated environment as pip requirements."""
    return [*(re.sub(r"=(.+)", r"==\1.*", one) for one in known.conda), *known.pip]


def conda_of(known: Curated) -> str:
    """Return a conda file (YAML) with the same packages."""
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
    """Return the environment of a job without known imports."""
    return DEFAULT_GPU_ENVIRONMENT if gpus else DEFAULT_ENVIRONMENT


def best_curated(needs: Iterable[str], gpus: bool) -> tuple[str, list[str]]:
    """Return the curated environment with the fewest missing imports, and those (see :func:`lacking`).

    Parameters
    ----------
    needs
        Names of imported modules.
    """
    needs = list(needs)
    order = sorted(_CHOSEN, key=lambda name: CURATED[name].gpu != gpus)
    missing = {name: lacking(needs, curated_pins_of(CURATED[name])) for name in order}
    best = min(order, key=lambda name: len(missing[name]))  # the first of several
    return f"AzureML-{best}@latest", missing[best]


#: Module -> distributions that contain it, if the names differ.
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
#: Distribution -> its dependencies (`Requires-Dist` of its releases on PyPI, 2026-11; incomplete).
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
#: Calls that import a package which their own package does not depend on: ``log_model`` of scikit-learn's models uses
#: skops from MLflow 3.14 on, which mlflow-skinny (all that azureml-mlflow depends on) does not install.
_CALLS = {"mlflow.sklearn.log_model": "skops", "mlflow.sklearn.save_model": "skops"}


def required_modules(text: bytes, own: Iterable[str] = ()) -> list[str]:
    """Return the modules that a script requires: top-level names of its imports outside functions and ``try``.

    Parameters
    ----------
    own
        Modules that are copied with the script.
    """
    ours = {*sys.stdlib_module_names, "__main__", *own}
    tops = [one.name.partition(".")[0] for one in requirements.imports(text) if one.needed]
    return [top for top in dict.fromkeys([*tops, *_called(text)]) if top not in ours]


def lacking(modules: Iterable[str], pins: Iterable[str]) -> list[str]:
    """Return those of `modules` that no package of `pins` is known to contain."""
    included: set[str] = set()
    remaining = [package_name(pin) for pin in pins]
    while remaining:
        package = remaining.pop()
        if package not in included:
            included.add(package)
            remaining += _BRINGS.get(package, ())
    return [module for module in modules if not included.intersection(distributions(module))]


def distributions(module: str) -> tuple[str, ...]:
    """Return the names of packages that contain a module."""
    return _DISTRIBUTIONS.get(module) or (package_name(module),)


def package_name(pin: str) -> str:
    """Return the package's name in a requirement (PEP 503)."""
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


#: Base images for conda packages, without and with GPUs. Source: base images of the public definitions in
#: github.com/Azure/azureml-assets, commit 4b41f8c of 2026-07-23.
BASE_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
BASE_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi5.0-cuda12.4-ubuntu22.04:latest"


def environment_body(spec: JobSpec, gpus: int | None) -> dict[str, str]:
    """Return a job's environment as a dict: ``name``, ``image`` (``conda``, ``packages``), ``build``; ``derive``."""
    body = body_of(spec.environment, gpus) or {"name": default_image(bool(gpus))}
    if spec.environment.derive:
        body["derive"] = "yes"
    return body


def body_of(environment: Environment, gpus: int | None) -> dict[str, str]:
    """Return an environment as in :func:`environment_body`, without ``derive``; empty for one that names nothing."""
    name = (
        environment.name.removeprefix("azureml:") if not environment.name.startswith("azureml://") else environment.name
    )
    body = {"name": name, "image": environment.image, "conda": environment.conda, "build": environment.build}
    body = {key: value for key, value in body.items() if value}
    if environment.kernel or environment.conda_text:
        body["packages"] = json.dumps(environment.conda_file)
    if environment.conda or environment.kernel or environment.conda_text:
        body.setdefault("image", BASE_GPU_IMAGE if gpus else BASE_IMAGE)
    return body


def row_of(row: Mapping[str, Any], target: str) -> EnvironmentRow:
    """Return an environment of a workspace as the service process lists it."""
    conda = str(row.get("conda") or "")
    return EnvironmentRow(
        target=target,
        key=f"{row['name']}:{row['version']}",
        label=str(row.get("description") or ""),
        path="",
        names=(str(row["name"]),),
        requested=tuple(conda.splitlines()),
        built=float(row.get("created") or 0.0),
        version=str(row["version"]),
        versions=tuple(row.get("versions") or ()),
        image=str(row.get("image") or ""),
        curated=bool(row.get("curated")),
    )


def environment_shown(environment: Mapping[str, str]) -> str:
    """Return the ``environmentId`` of a printed request."""
    if name := environment.get("name"):
        return name if name.startswith(("azureml://", "/")) else f"azureml:{name}"
    if folder := environment.get("build"):
        return f"(environment built from {folder})"
    conda = f" with {environment['conda']}" if "conda" in environment else ""
    if "packages" in environment:
        python, _, *pip = json.loads(environment["packages"])["dependencies"]
        conda = f" with {', '.join([python, *(pip[0]['pip'] if pip else ())])}"
    return f"(environment from the image {environment['image']}{conda})"


#: Maximum number of modules that one sentence names.
_MAX_NAMED = 5


class ScriptImports(NamedTuple):
    """Imports of a script.

    Attributes
    ----------
    modules
        Modules that the script requires.
    what
        Subject of a sentence about the script: ``The cell``, or its file name.
    """

    modules: tuple[str, ...]
    what: str


def with_environment(spec: JobSpec, default: str, gpus: bool) -> JobSpec:
    """Return `spec` with its environment. Blocks on the disk; no network.

    A job that names none gets its target's environment, else the curated one with all imports of the script, else
    this kernel's packages (``--env kernel``), built by the service; if those cannot be determined, the curated
    environment with the fewest missing imports.

    Parameters
    ----------
    default
        The target's own environment, as in ``--env``.

    Raises
    ------
    PreflightError
        See :func:`.requirements.captured`.
    """
    requested = spec.environment
    if default and requested.chosen and not requested.python:  # a target's default overrides a notebook's
        requested = Environment()
    if spec.job_type or requested:
        return requirements.completed(spec)
    if default:
        try:
            return requirements.completed(_having(spec, environment_of(default)))
        except PreflightError as error:  # the line does not name the environment
            raise PreflightError(f"By default {error}") from None
    imports = imports_of(spec)
    name, missing = best_curated(imports.modules, gpus)
    if not missing:
        # A script without imports gets the default for its hardware.
        return _having(spec, Environment(name=name if imports.modules else default_image(gpus)))
    kernel = Environment(kernel=True, chosen=f"{name.partition('@')[0]} lacks {_listed(missing)}")
    try:
        return requirements.completed(_having(spec, kernel))
    except PreflightError:
        return _having(spec, Environment(name=name))


def _having(spec: JobSpec, environment: Environment) -> JobSpec:
    return msgspec.structs.replace(spec, environment=environment)


def imports_of(spec: JobSpec, snapshot: Snapshot | None = None) -> ScriptImports:
    """Return the imports of a job's script that are not among its own files. Blocks on the disk.

    Parameters
    ----------
    snapshot
        The job's files, if they are known.
    """
    what = "The cell" if spec.cell else spec.script_name
    root = Path(spec.code_root or ".").expanduser()
    beside = (root / spec.script_name).parent  # the first entry of sys.path
    try:
        text = requirements.with_notebook(spec, requirements.script_bytes(spec))
        files: dict[str, str | bytes | Path] = {
            **(by_import(snapshot.files, spec) if snapshot else own_modules(spec, text))
        }
        own = {name.partition("/")[0].removesuffix(".py") for name in files}
        if not snapshot and spec.source:
            own |= {one.stem for one in (*root.iterdir(), *beside.iterdir())}
        imports = [required_modules(content, own) for content in requirements.reached(text, files)]
    except (OSError, UnicodeError, SubmitError):
        return ScriptImports((), what)  # the snapshot raises the error
    modules = tuple(dict.fromkeys(module for needs in imports for module in needs))
    return ScriptImports(modules, what if len(modules) == len(imports[0]) else f"{what} with its modules")


# ---- notes


def pins_of(environment: Mapping[str, str], conda: str = "") -> list[str] | None:
    """Return the packages of an environment (see :func:`environment_body`); ``None`` if unknown. Blocks.

    Parameters
    ----------
    conda
        Its conda file, as reported by the service.
    """
    try:
        if path := environment.get("conda"):
            return mlflow_pins.pip_pins(Path(path).read_text(encoding="utf-8"))
        if conda:
            return mlflow_pins.pip_pins(conda)
    except (EnvironmentFailed, OSError, UnicodeError, ImportError):
        return None  # the creation of the environment raises the error
    known = find_curated(environment.get("name", ""))
    return curated_pins_of(known) if known else None


def notes(
    wanted: ScriptImports, environment: Environment, plain: Mapping[str, str], conda: str = ""
) -> tuple[str, ...]:
    """Return notes for the user about an environment before the submit, one sentence each.

    Parameters
    ----------
    environment, plain
        The job's environment, and the same from :func:`environment_body`.
    conda
        As in :func:`pins_of`.
    """
    if environment.kernel:
        return (_kernel_note(environment.chosen),) if environment.chosen else ()
    pins = pins_of(plain, conda)
    if pins is None:
        return ()
    name = name_of(plain)
    sentences: list[str] = []
    missing = lacking(wanted.modules, pins)
    if environment.derive:
        missing = [module for module in missing if module not in ("mlflow", "skops")]
    elif "mlflow" in wanted.modules:
        try:
            verdict = mlflow_pins.check_pins(pins, name)
        except ImportError:  # pragma: no cover - packaging comes with every kernel
            verdict = mlflow_pins.Verdict(None)
        if verdict.reason:
            sentences.append(verdict.reason)
            missing = [module for module in missing if module != "mlflow"]
    if "skops" in missing:
        missing.remove("skops")
        sentences.append(
            f"{wanted.what} saves a scikit-learn model, but {name} lacks skops, which MLflow 3.14 and later need for"
            " that. Use --env kernel, --derive-env, or serialization_format='cloudpickle'."
        )
    if missing:
        sentences.append(
            f"{wanted.what} imports {_listed(missing, modules=True)}, but {name} lacks {_listed(missing)}. Use"
            " --env kernel for the packages installed here, or --env conda.yml for your own list."
        )
    return tuple(sentences)


def is_unknown(plain: Mapping[str, str]) -> bool:
    """Return whether only the service knows the contents of an environment."""
    return bool(plain.get("name")) and find_curated(plain["name"]) is None


def name_of(plain: Mapping[str, str]) -> str:
    """Return an environment's name for a sentence."""
    if path := plain.get("conda"):
        return Path(path).name
    name = plain.get("name", "")
    named = re.fullmatch(r"azureml://registries/[^/]+/environments/([^/]+)/.*", name) or re.fullmatch(
        r"(?:azureml:)?([^/:@]+)(?:[:@].*)?", name
    )
    return named[1] if named else name


def _kernel_note(reason: str) -> str:
    return (
        f"Azure ML will build an environment from this kernel's packages, because {reason}. The first build takes a few"
        " minutes. To use another one: --env NAME"
    )


def _listed(found: Sequence[str], modules: bool = False) -> str:
    names = list(found) if modules else [distributions(module)[0] for module in found]
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
