"""Models that a job registers: known to the job at once, registered in the project when its record is imported.

A job may run where the project's registry cannot be reached. The versions that it sees count
from 1 within the job; the project's registry gives the final numbers.
"""

import re
from typing import Any, Callable, Dict, List, Optional

from . import registry_search, search
from .validation import NAME, REGISTRY_TAG_VALUE, Body, Refusal, invalid, missing

_TAG = ("registered-models/set-tag", "model-versions/set-tag")

#: Beginning of the source of a version that is a logged model.
_MODELS = "models:/"

#: Tag of a version of a prompt, with its text.
_PROMPT_TEXT = "mlflow.prompt.text"

_ALIAS = re.compile(r"[\w\-]{1,255}")
#: Aliases that MLflow gives itself: that of the newest version, and those of version numbers.
_LATEST, _NUMBER = "latest", re.compile(r"[vV]\d+")

#: Changes of the registry that a job may make.
CHANGES = (
    "registered-models/create",
    "registered-models/update",
    "registered-models/set-tag",
    "registered-models/delete-tag",
    "registered-models/alias",
    "registered-models/delete-alias",
    "model-versions/create",
    "model-versions/update",
    "model-versions/transition-stage",
    "model-versions/set-tag",
    "model-versions/delete-tag",
)


class RegisteredModel:
    """A name in the registry, with the versions that the job has created."""

    def __init__(self, name: str, description: str, tags: Dict[str, str], created: int) -> None:
        self.name = name
        self.description = description
        self.tags = tags
        self.created = self.updated = created
        self.versions: List[Body] = []
        self.aliases: Dict[str, str] = {}

    def view(self) -> Body:
        """Return MLflow's ``RegisteredModel`` message."""
        aliases = [{"alias": alias, "version": version} for alias, version in self.aliases.items()]
        return {
            "name": self.name,
            "creation_timestamp": self.created,
            "last_updated_timestamp": self.updated,
            "description": self.description,
            "latest_versions": [self.version_view(version) for version in self.latest([])],
            "tags": _pairs(self.tags),
            "aliases": aliases,
        }

    def latest(self, stages: List[str]) -> List[Body]:
        """Return the newest version of each stage, or of the given stages."""
        newest = {version["current_stage"]: version for version in self.versions}
        wanted = {stage.lower() for stage in stages}
        return [version for stage, version in newest.items() if not wanted or stage.lower() in wanted]

    def version(self, number: Any) -> Body:
        """Return a version of the model."""
        for version in self.versions:
            if version["version"] == str(number):
                return version
        if not str(number).isdecimal():
            raise invalid(f"Parameter 'version' must be an integer, got '{number}'.")
        raise missing(f"Model Version (name={self.name}, version={number}) not found", is_part=True)

    def version_view(self, version: Body) -> Body:
        """Return MLflow's ``ModelVersion`` message."""
        aliases = [alias for alias, number in self.aliases.items() if number == version["version"]]
        return dict(version, name=self.name, status="READY", tags=_pairs(version["tags"]), aliases=aliases)


class Registry:
    """The models that a job has registered.

    Parameters
    ----------
    run_of
        Returns the run that has logged a model; an empty text for a model that is not the job's.
    """

    def __init__(self, run_of: Callable[[str], str]) -> None:
        self._run_of = run_of
        self.models: Dict[str, RegisteredModel] = {}
        #: URIs of the job's versions, with the URIs of their files.
        self._places: Dict[str, str] = {}
        self._fold: Dict[str, Callable[[Body, Body], None]] = {
            "registered-models/create": self._create,
            "registered-models/update": self._update,
            "registered-models/set-tag": lambda b, a: _set(self.model(b).tags, b),
            "registered-models/delete-tag": lambda b, a: _delete(self.model(b).tags, b),
            "registered-models/alias": lambda b, a: self.model(b).aliases.update({b["alias"]: str(b["version"])}),
            "registered-models/delete-alias": lambda b, a: _forget(self.model(b).aliases, b.get("alias")),
            "model-versions/create": self._create_version,
            "model-versions/update": self._update_version,
            "model-versions/transition-stage": self._move,
            "model-versions/set-tag": lambda b, a: _set(self.version(b)["tags"], b),
            "model-versions/delete-tag": lambda b, a: _delete(self.version(b)["tags"], b),
        }

    def model(self, body: Body) -> RegisteredModel:
        """Return the registered model that a request names."""
        name = body.get("name")
        if name not in self.models:
            raise missing(f"Registered Model with name={name} not found")
        return self.models[str(name)]

    def version(self, body: Body) -> Body:
        """Return the model version that a request names."""
        return self.model(body).version(body.get("version"))

    def check(self, op: str, body: Body) -> None:
        """Refuse a change that MLflow would refuse; changes nothing."""
        name = body.get("name")
        if op == "registered-models/create":
            if not isinstance(name, str) or not name.strip() or any(sign in name for sign in "/:"):
                raise invalid(f"Invalid model name: {name!r}. A name is not empty and has no '/' and no ':'.")
            if len(name) > NAME:
                raise invalid(f"'name' exceeds the maximum length of {NAME} characters")
            if name in self.models:
                raise Refusal("RESOURCE_ALREADY_EXISTS", f"Registered Model (name={name}) already exists.")
            _check_tags(body.get("tags") or [])
            return
        self.model(body)
        if op.startswith("model-versions/"):
            if op == "model-versions/create":
                if not isinstance(body.get("source"), str) or not body["source"]:
                    raise invalid("Missing value for required parameter 'source'.")
                _check_tags(body.get("tags") or [])
            else:
                self.version(body)
        if op in _TAG:
            _check_tags([body])
        if op == "registered-models/alias":
            self.version(body)
            _check_alias(body.get("alias"))

    def apply(self, op: str, body: Body, added: Body) -> None:
        """Apply one journal record."""
        self._fold[op](body, added)

    def _create(self, body: Body, added: Body) -> None:
        tags = {tag["key"]: tag.get("value") or "" for tag in body.get("tags") or []}
        name = body["name"]
        self.models[name] = RegisteredModel(name, body.get("description") or "", tags, added.get("t") or 0)

    def _update(self, body: Body, added: Body) -> None:
        model = self.model(body)
        model.description = body.get("description") or ""
        model.updated = added.get("t") or model.updated

    def _create_version(self, body: Body, added: Body) -> None:
        model = self.model(body)
        added.setdefault("version", str(len(model.versions) + 1))  # here, as two ranks may register at the same time
        version: Body = {
            "version": added["version"],
            "creation_timestamp": added["t"],
            "last_updated_timestamp": added["t"],
        }
        version.update(current_stage="None", description=body.get("description") or "", source=body["source"])
        version.update(run_id=body.get("run_id") or self._run_of_source(body), model_id=body.get("model_id") or "")
        version["tags"] = {tag["key"]: tag.get("value") or "" for tag in body.get("tags") or []}
        model.versions.append(version)
        self._places["models:/%s/%s" % (model.name, version["version"])] = self._place(body["source"])
        model.updated = added["t"]

    def _update_version(self, body: Body, added: Body) -> None:
        version = self.version(body)
        version["description"] = body.get("description") or ""
        version["last_updated_timestamp"] = added.get("t") or version["last_updated_timestamp"]

    def _run_of_source(self, body: Body) -> str:
        source = body["source"]
        logged = source[len(_MODELS) :].partition("/")[0] if source.startswith(_MODELS) else ""
        return self._run_of(logged) or self._run_of(str(body.get("model_id") or ""))

    def _move(self, body: Body, added: Body) -> None:
        version, stage = self.version(body), str(body.get("stage") or "None")
        moved = [version]
        if body.get("archive_existing_versions"):
            for other in self.model(body).versions:
                if other is not version and other["current_stage"].lower() == stage.lower():
                    other["current_stage"] = "Archived"
                    moved.append(other)
        version["current_stage"] = stage.capitalize()
        if added.get("t"):
            self.model(body).updated = added["t"]
            for one in moved:
                one["last_updated_timestamp"] = added["t"]

    # -- answers

    def read(self, op: str, body: Body) -> Optional[Body]:
        """Return the response to a read; ``None`` for a call that is none."""
        read = _READS.get(op)
        return None if read is None else read(self, body)

    def found(self, body: Body) -> Body:
        """Return the registered models that match a filter, in order."""
        views = [model.view() for model in self.models.values()]
        return {"registered_models": registry_search.matching_models(views, body)}

    def found_versions(self, body: Body) -> Body:
        """Return the versions that match a filter, in order."""
        views = [model.version_view(version) for model in self.models.values() for version in model.versions]
        return {"model_versions": registry_search.matching_versions(views, body)}

    def _place(self, source: str) -> str:
        """Return the place of a source: of a copy of a version of the job that of the version."""
        return self._places.get(source, source)

    def by_alias(self, body: Body) -> Body:
        """Return the version that has an alias."""
        model = self.model(body)
        if str(body.get("alias")).lower() == _LATEST and model.versions:
            return {"model_version": model.version_view(model.versions[-1])}
        if body.get("alias") not in model.aliases:
            raise invalid(f"Registered model alias {body.get('alias')} not found.")
        return {"model_version": model.version_view(model.version(model.aliases[str(body["alias"])]))}

    def answer(self, op: str, body: Body, added: Body) -> Body:
        """Return the response to a change."""
        if op.startswith("registered-models/"):
            return {"registered_model": self.model(body).view()} if op.endswith(("create", "update")) else {}
        if op.endswith("-tag"):
            return {}
        model = self.model(body)
        return {"model_version": model.version_view(model.version(added.get("version") or body.get("version")))}


#: Calls that would make what is recorded of a job's own models unfindable for its import.
_AFTER_THE_RUN = ("registered-models/rename", "registered-models/delete", "model-versions/delete")


def refuse_own(registry: "Registry", op: str, body: Body) -> None:
    """Refuse a call that is possible only after the run, for a model that the job has registered."""
    if op in _AFTER_THE_RUN and body.get("name") in registry.models:
        raise Refusal(
            "INVALID_STATE",
            f"The model {body['name']!r} is of this job, and registered in the project when the run is recorded. Rename"
            " or delete it from the notebook after the run.",
        )


def change_of(method: str, op: str) -> str:
    """Return the change that a call makes, by its name in the journal; empty for a call that changes nothing."""
    if op == "registered-models/alias":
        return {"POST": op, "DELETE": "registered-models/delete-alias"}.get(method, "")
    return op if method != "GET" and op in CHANGES else ""


def _check_tags(tags: List[Body]) -> None:
    for tag in tags:
        key, value = tag.get("key"), str(tag.get("value") or "")
        if key == _PROMPT_TEXT and len(value) > REGISTRY_TAG_VALUE:
            raise invalid(f"Prompt text exceeds max length of {REGISTRY_TAG_VALUE} characters.")
        if not key or len(value) > REGISTRY_TAG_VALUE:
            raise invalid(f"A tag needs a key, and a value of at most {REGISTRY_TAG_VALUE} characters.")


def _check_alias(alias: Any) -> None:
    if not alias:
        raise invalid("Missing value for required parameter 'alias'.")
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        raise invalid(
            f"Invalid alias name: {alias!r}. Names may only contain alphanumerics, underscores (_), and dashes (-), and"
            " have at most 255 characters."
        )
    if alias.lower() == _LATEST or _NUMBER.fullmatch(alias):
        raise invalid(f"The alias {alias!r} is reserved.")


def _pairs(values: Dict[str, str]) -> List[Body]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _set(tags: Dict[str, str], body: Body) -> None:
    tags[body["key"]] = body.get("value") or ""


def _delete(tags: Dict[str, str], body: Body) -> None:
    _forget(tags, body.get("key"))


def _forget(values: Dict[str, str], key: Any) -> None:
    values.pop(str(key), None)


_READS: Dict[str, Callable[[Registry, Body], Body]] = {
    "registered-models/get": lambda registry, body: {"registered_model": registry.model(body).view()},
    "registered-models/search": Registry.found,
    "registered-models/alias": Registry.by_alias,
    "registered-models/get-latest-versions": lambda registry, body: {
        "model_versions": [
            registry.model(body).version_view(v) for v in registry.model(body).latest(search.texts(body.get("stages")))
        ]
    },
    "model-versions/get": lambda registry, body: {
        "model_version": registry.model(body).version_view(registry.version(body))
    },
    "model-versions/search": Registry.found_versions,
    "model-versions/get-download-uri": lambda registry, body: {
        "artifact_uri": registry._place(registry.version(body)["source"])
    },
}
