"""What all compute targets of Azure Machine Learning have in common.

Never a secret: where the service wants a password or a token, a field names the environment
variable that holds it, which is read at the moment of the act.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import msgspec

from jupyter_amltrain.spec.azure_names import compute_name_error
from jupyter_amltrain.spec.target import ComputeTarget

ADVANCED = msgspec.Meta(extra={"advanced": True})
RESOURCE_ID = re.compile(r"/subscriptions/[^/]+/resource[gG]roups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+/?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


def named(metavar: str, *, advanced: bool = False) -> msgspec.Meta:
    """How a form shows a text's field."""
    return msgspec.Meta(extra={"metavar": metavar, "advanced": advanced})


class AzureTarget(ComputeTarget, frozen=True, kw_only=True):
    """A compute of an Azure ML workspace.

    Attributes
    ----------
    workspace
        Name of a connected workspace; empty takes the current one.
    compute
        What it is called in the workspace, where that is not the target's name.
    """

    #: The service's word for it (`computeType` of the ARM schema); empty where nothing is created there.
    compute_type: ClassVar[str] = ""
    #: Whether removing it only detaches it.
    attached: ClassVar[bool] = False
    #: What it is called within a sentence; empty for its title.
    noun: ClassVar[str] = ""
    #: ARM provider and type that `resource_id` must name; empty for any.
    resource_type: ClassVar[str] = ""

    workspace: Annotated[str, named("WORKSPACE")] = ""
    compute: Annotated[str, named("NAME", advanced=True)] = ""

    @property
    def compute_name(self) -> str:
        """What it is called in the workspace."""
        return self.compute or self.name

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        if not self.compute_type:
            return {}
        sentence = compute_name_error(self.compute_name, instance=self.compute_type == "ComputeInstance")
        return {"compute" if self.compute else "name": sentence} if sentence else {}

    def _wrong_variables(self, *names: str) -> dict[str, str]:
        """Fields that should name environment variables and do not; what stands there is not repeated."""
        return {
            name: "This is no name of an environment variable. Put the secret into one, and give its name here."
            for name in names
            if getattr(self, name) and not _VARIABLE.fullmatch(getattr(self, name))
        }

    def _wrong_resource(self) -> dict[str, str]:
        resource_id = str(getattr(self, "resource_id", ""))
        example = (
            f"/subscriptions/<subscription>/resourceGroups/<group>/providers/{self.resource_type or '<type>'}/<name>"
        )
        if not RESOURCE_ID.fullmatch(resource_id):
            return {"resource_id": f"{resource_id[:80]!r} is not a resource id. It looks like {example}."}
        if self.resource_type and self._type_of(resource_id) not in self.resource_type.lower().split(" or "):
            return {"resource_id": f"This resource is not a {self.noun or self.title}. Its id looks like {example}."}
        return {}

    @staticmethod
    def _type_of(resource_id: str) -> str:
        parts = resource_id.lower().rstrip("/").rpartition("/providers/")[2].split("/")
        return "/".join([parts[0], *parts[1::2]])


#: The field of those that run scripts.
Env = Annotated[str, named("ENV", advanced=True)]


def wrong_env(env: str) -> dict[str, str]:
    """What is wrong with a target's own environment; the rest is said at the submit."""
    if not env or (env.isprintable() and not env.startswith("-") and " " not in env.strip()):
        return {}
    return {"env": f"{env[:80]!r} is no environment. Write kernel, NAME@latest, a conda file or an image."}


def wrong_identity(identity: str) -> dict[str, str]:
    """What is wrong with a managed identity."""
    if identity in ("", "system") or (RESOURCE_ID.fullmatch(identity) and "userassignedidentities" in identity.lower()):
        return {}
    return {"identity": f"{identity[:80]!r} is neither system nor the resource id of a user-assigned identity."}
