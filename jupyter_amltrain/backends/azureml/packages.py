"""Which of the modules that a script imports an environment's packages do not name. Pure.

What a package brings along is known for common ones only: what is missing here is a warning, never a refusal.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping

from jupyter_amltrain import requirements, syntax

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


def needs(text: bytes, own: Iterable[str] = ()) -> list[str]:
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
        tree = syntax.parse(text)
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
