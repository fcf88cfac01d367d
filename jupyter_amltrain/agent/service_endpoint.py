"""The service's MLflow endpoint, by REST: batches of metrics, parameters and tags of one run.

The service's own names: ``azureml://<host>/mlflow/v1.0/subscriptions/...`` is the same place
as ``https://<host>/...``; https://mlflow.org/docs/latest/rest-api.html#log-batch.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Mapping, Optional

#: Seconds for one request, and the longest pause that an answer may ask for.
REQUEST_TIMEOUT_S, MAX_PAUSE_S = 10.0, 60.0
_VERSIONS = ("/mlflow/v1.0/", "/mlflow/v2.0/")
_LOCAL = ("127.0.0.1", "localhost", "::1")


class Later(Exception):
    """The endpoint cannot be reached or has no time; `pause`: seconds that it asked for, or 0."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


class Refused(Exception):
    """The endpoint does not take what was in the batch."""


class Closed(Exception):
    """The endpoint will take nothing from us any more."""


class Endpoint:
    """The run of the service that this job is.

    Parameters
    ----------
    uri
        ``$MLFLOW_TRACKING_URI`` as the service gave it.
    token
        Bearer token of the job; goes nowhere else.
    run_id
        The run's id at the service.
    """

    def __init__(self, uri: str, token: str, run_id: str) -> None:
        self.url = uri
        self.run_id = run_id
        self._token = token
        self._other_version = False
        self._opener: Optional[urllib.request.OpenerDirector] = None

    def log_batch(self, batch: Mapping[str, List[Dict[str, Any]]], timeout: float = REQUEST_TIMEOUT_S) -> None:
        """Send one batch.

        Raises
        ------
        Later, Refused, Closed
            It was not taken.
        """
        body = json.dumps(dict(batch, run_id=self.run_id), separators=(",", ":"), allow_nan=False).encode()
        request = urllib.request.Request(
            self.url + "/api/2.0/mlflow/runs/log-batch",
            body,
            {"Content-Type": "application/json", "Authorization": "Bearer " + self._token},
            method="POST",
        )
        if self._opener is None:  # not before the job was started: a trust store takes time to load
            trusted = urllib.request.HTTPSHandler(context=_trust(os.environ))
            self._opener = urllib.request.build_opener(_NoRedirect, trusted)
        try:
            with self._opener.open(request, timeout=max(0.1, timeout)) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                self._judge(error, _message(error))
            self.log_batch(batch, timeout)  # by the other door
        except http.client.HTTPException:
            raise Later("the connection was cut") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise Later(str(getattr(why, "strerror", None) or why or type(error).__name__)) from None

    def _judge(self, error: urllib.error.HTTPError, message: str) -> None:
        """Say what an error means; nothing where the same is to be sent again at once."""
        code = error.code
        if code in (401, 403):
            raise Closed("it does not accept the job's token (%d)" % code) from None
        if code in (408, 425, 429) or code >= 500:
            raise Later("it answers %d" % code, _retry_after(error.headers.get("Retry-After"))) from None
        if code == 404:
            # Both versions of the service's door are in use; the run is behind both.
            if not self._other_version and any(version in self.url for version in _VERSIONS):
                old, new = _VERSIONS if _VERSIONS[0] in self.url else _VERSIONS[::-1]
                self.url, self._other_version = self.url.replace(old, new), True
                return
            raise Closed("it does not know the run (404)") from None
        if 300 <= code < 400:
            raise Closed("it answers %d" % code) from None
        raise Refused(message or "it answers %d" % code) from None


def of(environ: Mapping[str, str]) -> Optional[Endpoint]:
    """The endpoint that the service names to its jobs; ``None`` where there is none.

    The job's token goes to the service only: not to a tracking server of the user's.
    """
    token = environ.get("MLFLOW_TRACKING_TOKEN") or environ.get("AZUREML_RUN_TOKEN")
    run_id = environ.get("MLFLOW_RUN_ID") or environ.get("AZUREML_RUN_ID")
    uri = service_uri(environ.get("MLFLOW_TRACKING_URI", ""))
    return Endpoint(uri, token, run_id) if uri and token and run_id else None


def service_uri(text: str) -> str:
    """``azureml://host/path?...`` -> ``https://host/path``; nothing for what is not the service's."""
    try:
        parts = urllib.parse.urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        return ""
    scheme = "https" if parts.scheme == "azureml" else parts.scheme
    secure = scheme == "https" or (scheme == "http" and host in _LOCAL)
    if not host or not secure or not any(version in parts.path + "/" for version in _VERSIONS):
        return ""
    return urllib.parse.urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the token to another host."""

    def redirect_request(self, *what: Any, **more: Any) -> None:
        return None


def _trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        path = environ.get(name, "")
        if path:  # as Azure's own clients do; the other two variables are Python's
            try:
                context.load_verify_locations(
                    path if os.path.isfile(path) else None, None if os.path.isfile(path) else path
                )
            except (OSError, ssl.SSLError):
                pass
    return context


def _message(error: urllib.error.HTTPError) -> str:
    """The first sentence of an error's body: MLflow's own, or the service's ``{"Error": {"Message"}}``."""
    try:
        body = json.loads(error.read(1 << 16).decode("utf-8", "replace"))
        inner = body.get("Error") or body.get("error") or body
        text = inner.get("Message") or inner.get("message") or ""
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return ""
    return " ".join(str(text).split())[:200]


def _retry_after(text: Optional[str]) -> float:
    try:
        return min(MAX_PAUSE_S, max(0.0, float(text or 0)))
    except ValueError:  # a date
        return 0.0
