"""Docker engine of this machine: whether it can run an image, and the pull of the image, by the program ``docker``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .. import protocol
from ..protocol import AgentError
from .build import BuildFailed, BuildLog, reason_in
from .environment_store import EnvironmentStore

Json = Dict[str, Any]

#: Seconds for the engine to answer a question about itself or an image.
ANSWER_TIMEOUT_S = 15.0
#: Shared memory of a container unless the job sets it, as services have it: Docker's 64 MB are too little.
SHM_SIZE = "2g"
#: Variables that the program ``docker`` itself reads, beside those that begin with ``DOCKER_``.
_CLIENT_NAMES = frozenset(("PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD"))
_CLIENT_PREFIX = "DOCKER_"
#: Fields of a container; see `check`.
_FIELDS: Dict[str, Any] = {"image": str, "shm_size": str, "args": list, "inputs": list}
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z")
#: Where Docker can be got.
_INSTALL = "Install Docker Engine there (https://docs.docker.com/engine/install), or name packages instead"


class Failure(NamedTuple):
    """Why the engine refuses something: code of the error, and a reason that says what to do, without a full stop."""

    code: str
    reason: str


#: Words in the output of ``docker`` (https://docs.docker.com/engine/daemon/troubleshoot), and what they mean.
_FAILURES: Tuple[Tuple[str, str, str], ...] = (
    (
        r"permission denied.*(?:docker\.sock|docker API|Docker daemon socket)",
        "docker.permission",
        "this user may not use the Docker engine there. Add the user to its group, then log in again:"
        " sudo usermod -aG docker $USER",
    ),
    (
        r"Cannot connect to the Docker daemon|Is the docker daemon running|error during connect"
        r"|failed to connect to the docker API",
        "docker.daemon",
        "the Docker engine does not answer there. Start it: sudo systemctl start docker",
    ),
    (
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia|nvidia\.com/gpu",
        "docker.gpus",
        "the Docker engine there cannot give GPUs to containers. Install the NVIDIA Container Toolkit there and restart"
        " Docker, or use --gpus 0",
    ),
    (
        r"no space left on device|disk quota exceeded",
        "docker.disk",
        "no space is left on the disk of the Docker engine. Free some there: docker system prune",
    ),
    (
        r"toomanyrequests|rate limit",
        "docker.rate_limit",
        "the registry allows no more downloads now. Sign in there (docker login), or wait",
    ),
    (
        r"bind source path does not exist|mounts denied|is not shared from",
        "docker.mount",
        "the Docker engine does not see the folders of this run. It must run on the same machine, and not outside of a"
        " container that this process runs in",
    ),
    (
        r'exec: "/bin/sh"|/bin/sh: no such file',
        "docker.shell",
        "the image has no /bin/sh, which starts the job. Use an image with a shell",
    ),
    (
        r"exec format error|does not match the (?:detected host|specified) platform|no matching manifest",
        "docker.platform",
        "the image is for another kind of processor. Choose a tag for this machine",
    ),
    (
        r"manifest unknown|manifest for .* not found|pull access denied|repository does not exist|No such image"
        r"|not found: (?:manifest|name) unknown|unauthorized|denied: requested access|: not found",
        "docker.image",
        "there is no such image, or reading it needs a sign-in. Correct its name, or sign in there: docker login",
    ),
)


def check(container: Mapping[str, Any]) -> Json:
    """Return the specification of a container with all its fields.

    Fields: ``image``, ``shm_size`` (as ``docker run`` takes it, empty for :data:`SHM_SIZE`), ``args`` (further options
    of ``docker run``), ``inputs`` (absolute paths that the job reads).

    Raises
    ------
    AgentError
        ``SubmitError`` that names the field.
    """
    for name, value in container.items():
        parts: List[Any] = value if isinstance(value, list) else [value]
        is_text = all(isinstance(part, str) and "\0" not in part and "\n" not in part for part in parts)
        if name not in _FIELDS or type(value) is not _FIELDS[name] or not is_text:
            raise AgentError("SubmitError", "Cannot submit the job: container.%s is not valid." % name)
    checked = {name: container.get(name, kind()) for name, kind in _FIELDS.items()}
    if not _IMAGE.match(checked["image"]):
        raise AgentError("SubmitError", "Cannot submit the job: %r is not a Docker image." % checked["image"][:80])
    return checked


def failure_in(output: str) -> Optional[Failure]:
    """Return what an output of ``docker`` means; ``None`` for an output of an unknown kind."""
    for pattern, code, reason in _FAILURES:
        if re.search(pattern, output, re.IGNORECASE | re.DOTALL):
            return Failure(code, reason)
    return None


def is_client_variable(name: str) -> bool:
    """Whether the program ``docker`` itself reads a variable."""
    return name in _CLIENT_NAMES or name.startswith(_CLIENT_PREFIX)


def client_environ(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of a submitter that the program ``docker`` needs."""
    return {name: value for name, value in environ.items() if is_client_variable(name)}


class Engine:
    """The Docker engine that the program ``docker`` on a user's PATH reaches.

    Parameters
    ----------
    environ
        Environment of the user; only the variables of the program are used.

    Attributes
    ----------
    program
        Path of the program; empty if it is not installed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = client_environ(environ)
        self.program = shutil.which("docker", path=environ.get("PATH", os.defpath)) or ""

    def refusal(self) -> Optional[Failure]:
        """Return why the engine cannot run jobs; ``None`` if it can."""
        if not self.program:
            return Failure("docker.missing", "docker is not installed there. " + _INSTALL)
        host = self.environ.get("DOCKER_HOST", "")
        if host and not host.startswith("unix://"):
            return Failure(
                "docker.mode",
                "DOCKER_HOST leads to an engine on another machine, which does not see the files of this one. Remove"
                " the variable, or add that machine as a target: %aml_compute attach",
            )
        try:
            code, output, errors = self.call("info", "--format", "{{json .}}")
        except OSError as error:
            return Failure("docker.daemon", "docker could not be started: %s" % (error.strerror or error))
        try:
            facts = json.loads(output)
            reported = " ".join(map(str, facts.get("ServerErrors") or ()))
            options = " ".join(map(str, facts.get("SecurityOptions") or ()))
            system = str(facts.get("OperatingSystem") or "")
        except (ValueError, AttributeError):
            facts, reported, options, system = {}, "", "", ""
        if code or reported or not facts:
            text = " ".join((errors, reported)).strip()
            known = failure_in(text)
            return known or Failure("docker.daemon", "docker info failed: %s" % (reason_in(text.splitlines()) or code))
        if "name=rootless" in options or "name=userns" in options or "Docker Desktop" in system:
            kind = "in rootless mode" if "rootless" in options else "with user namespaces"
            kind = "in a virtual machine (Docker Desktop)" if "Desktop" in system else kind
            return Failure(
                "docker.mode",
                "the Docker engine there runs %s: a container would reach neither this run's MLflow address (127.0.0.1)"
                " nor write its files as this user. Use an engine that runs as a system service, or name packages"
                % kind,
            )
        return None

    def image_id(self, image: str) -> str:
        """Return the id of an image that is stored on this machine; empty for none."""
        try:
            code, output, _ = self.call("image", "inspect", "--format", "{{.Id}}", image)
        except OSError:
            return ""
        return output.strip() if code == 0 else ""

    def call(self, *args: str) -> Tuple[int, str, str]:
        """Run ``docker`` with arguments; return its exit code, output, and errors.

        Raises
        ------
        OSError
            It cannot be started, or does not answer in time.
        """
        try:
            done = subprocess.run(
                [self.program, *args], env=self.environ, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=ANSWER_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise OSError("the Docker engine does not answer") from error
        return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def label_of(image: str) -> str:
    """Return the name under which the seconds of an image's pull are stored."""
    return "image " + image


def find(store: EnvironmentStore, container: Mapping[str, Any], environ: Mapping[str, str]) -> Json:
    """Return why an image cannot be run (``reason``, ``code``), its ``id``, and the seconds of the ``last`` pull."""
    engine = Engine(environ)
    refused = engine.refusal()
    return {
        "reason": refused.reason if refused else "",
        "code": refused.code if refused else "",
        "id": "" if refused else engine.image_id(container["image"]),
        "last": store.last_seconds(label_of(container["image"])),
    }


def pull(store: EnvironmentStore, engine: Engine, image: str, log: BuildLog) -> float:
    """Pull an image; return the seconds.

    Raises
    ------
    BuildFailed
        One line for the user.
    """
    began = protocol.mono()
    argv = [engine.program, "pull", image]
    log.whole("$ " + " ".join(argv))
    try:
        process = subprocess.Popen(
            argv, env=engine.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise BuildFailed("docker could not be started: %s" % (error.strerror or error)) from error
    assert process.stdout is not None
    lines: List[str] = []
    layers = Layers()
    for data in process.stdout:
        line = log.hidden(data.decode("utf-8", "replace").rstrip())
        log.whole(line)
        lines = [*lines[-200:], line]
        progress = layers.read(line)
        if progress:
            log.progress(progress)
        elif not layers.is_layer(line):
            log.shown(line)
    code = process.wait()
    if code:
        known = failure_in("\n".join(lines))
        raise BuildFailed(known.reason if known else reason_in(lines) or "docker pull ended with exit code %d" % code)
    seconds = protocol.mono() - began
    store.record_seconds(label_of(image), seconds)
    return seconds


class Layers:
    """Progress of a pull, from the lines that ``docker pull`` prints without a terminal."""

    _LINE = re.compile(r"(?P<layer>[0-9a-f]{12}): (?P<state>.+)")
    _ENDS = ("Pull complete", "Already exists")

    def __init__(self) -> None:
        self._states: Dict[str, str] = {}

    def is_layer(self, line: str) -> bool:
        """Whether a line is about a layer."""
        return self._LINE.match(line) is not None

    def read(self, line: str) -> str:
        """Return ``3 of 7 layers`` if a line changes these numbers; else an empty text."""
        match = self._LINE.match(line)
        if match is None:
            return ""
        before = self._text()
        self._states[match["layer"]] = match["state"]
        after = self._text()
        return after if after != before else ""

    def _text(self) -> str:
        ended = sum(state.startswith(self._ENDS) for state in self._states.values())
        return "%d of %d layers" % (ended, len(self._states)) if self._states else ""
