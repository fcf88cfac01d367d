"""MLflow's plugin for ``azureml://`` in environments that have azureml-mlflow, as far as scripts log by it.

On the path of jobs alone (PYTHONPATH), found by MLflow through the entry points beside it.
"""

from __future__ import annotations

import json
import os
import posixpath
import urllib.parse
import urllib.request
from typing import Any

from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.model_registry.rest_store import RestStore as Registry
from mlflow.store.tracking.rest_store import RestStore
from mlflow.utils.rest_utils import MlflowHostCreds


def _https(uri: str) -> str:
    return "https" + uri.removeprefix("azureml").partition("?")[0]


def _credentials(uri: str) -> MlflowHostCreds:
    return MlflowHostCreds(_https(uri), token=os.environ["MLFLOW_TRACKING_TOKEN"])


def tracking_store(store_uri: str, artifact_uri: str | None = None, **_: Any) -> RestStore:
    """The workspace's tracking endpoint."""
    return RestStore(lambda: _credentials(store_uri))


def registry_store(store_uri: str, **_: Any) -> Registry:
    """Its models."""
    return Registry(lambda: _credentials(store_uri))


class Artifacts(ArtifactRepository):
    """Artifacts of the run: registered at run history, which says where their bytes go."""

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """Send one file."""
        path = posixpath.join(artifact_path or "", os.path.basename(local_file))
        with open(local_file, "rb") as file:
            self._send(path, file.read())

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Send a folder."""
        for folder, _, names in os.walk(local_dir):
            below = os.path.relpath(folder, local_dir)
            for name in names:
                place = posixpath.normpath(posixpath.join(artifact_path or "", "" if below == "." else below))
                self.log_artifact(os.path.join(folder, name), "" if place == "." else place)

    def list_artifacts(self, path: str | None = None) -> list[Any]:
        """Nothing is read back in a job."""
        return []

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        raise FileNotFoundError(remote_file_path)

    def _send(self, path: str, data: bytes) -> None:
        parts = urllib.parse.urlsplit(_https(self.artifact_uri))
        workspace, _, rest = parts.path.removeprefix("/artifact/v2.0").partition("/artifacts/")
        run = rest.rstrip("/").rpartition("dcid.")[2]
        experiment = urllib.parse.quote(os.environ["AZUREML_EXPERIMENT_NAME"], safe="")
        url = f"https://{parts.netloc}/history/v1.0{workspace}/experiments/{experiment}/runs/{run}"
        body = json.dumps({"paths": [{"path": path}]}).encode()
        headers = {"Authorization": f"Bearer {os.environ['MLFLOW_TRACKING_TOKEN']}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/artifacts/batch/metadata", body, headers)
        with urllib.request.urlopen(request) as answer:
            place = json.load(answer)["artifactContentInformation"][path]["contentUri"]
        blob = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(place, data, blob, method="PUT")).close()
