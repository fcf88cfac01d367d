"""Conversion of Azure's reasons for not creating or changing a compute to errors. No I/O.

The texts are the service's, from issues of users (2019 to 2024) and from its documentation; a text that matches
no rule is passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from jupyter_amltrain.azure.catalog import MORE_QUOTA_URL
from jupyter_amltrain.errors import AmlTrainError, AuthenticationError, CapacityError, QuotaExceeded, TargetError
from jupyter_amltrain.text import counted

#: ``has a total vCPU quota of 0 and cannot accomodate for ... which maps to 2 vCPUs``.
_QUOTA = re.compile(
    r"has an? (?P<what>.+?) vCPU quota of (?P<limit>\d+) and .*?(?:at least (?P<nodes>\d+)|of (?P<count>\d+))"
    r".*?maps to (?P<cores>\d+) vCPUs?",
    re.IGNORECASE | re.DOTALL,
)
_ONLINE = re.compile(
    r"quota requested is (?P<cores>\d+).*?currently using (?P<used>\d+).*?maximum quota is (?P<limit>\d+)",
    re.IGNORECASE | re.DOTALL,
)
#: ``quota limits of Core. Maximum allowed: 24, Current in use: 18, Additional requested: 12``.
_CORES = re.compile(
    r"Maximum allowed: (?P<limit>\d+), Current in use: (?P<used>\d+), Additional requested: (?P<cores>\d+)",
    re.IGNORECASE,
)

#: Takes the text, and the requested size and region if they are known.
_Rule = Callable[[str, str, str], AmlTrainError | None]

_QUOTA_HINT = f"%aml_compute quota shows what is left. Use fewer or smaller machines, or ask for more: {MORE_QUOTA_URL}"


def error_of(texts: Iterable[str], who: str, *, size: str = "", region: str = "") -> AmlTrainError:
    """Return one error for the service's reasons; the first text that matches a rule decides.

    Parameters
    ----------
    who
        Name of the target.
    size, region
        Requested size and region, if known.
    """
    texts = [text for text in texts if text]
    for text in texts:
        for rule in _RULES:
            error = rule(text, size, region)
            if error is not None:
                return error.about(repr(who))
    reason = texts[0] if texts else "the service gives no reason"
    error = TargetError(
        f"Azure could not complete the operation: {reason[:400]}", hint="See the existing targets: %aml_compute list"
    )
    return error.about(repr(who))


def is_known(text: str) -> bool:
    """Return whether a rule matches the text."""
    return any(rule(text, "", "") is not None for rule in _RULES)


def _of(pattern: str, flags: int = 0) -> Callable[[Callable[[str, str, str], AmlTrainError]], _Rule]:
    """Decorate a rule for texts that contain `pattern`, in any case."""
    matcher = re.compile(pattern, flags | re.IGNORECASE)

    def rule_of(build: Callable[[str, str, str], AmlTrainError]) -> _Rule:
        return lambda text, *known: build(text, *known) if matcher.search(text) else None

    return rule_of


def _quota(text: str, size: str, region: str) -> AmlTrainError | None:
    if found := _QUOTA.search(text):
        what, limit, cores = found["what"], int(found["limit"]), int(found["cores"])
        nodes = int(found["nodes"] or found["count"] or 1)
        of = "all machines together" if what.lower() == "total" else what.removesuffix(" family")
        machines = f"{counted(nodes, 'machine')}{f' of {size}' if size else ''}"
        need = "needs" if nodes == 1 else "need"
        return QuotaExceeded(
            f"{machines} {need} {counted(cores, 'core')}, and the quota of {of} is {limit}.",
            hint=_QUOTA_HINT,
            code="azure.quota",
        )
    if found := _ONLINE.search(text) or _CORES.search(text):
        return QuotaExceeded(
            f"{found['cores']} more cores are needed; {found['used']} of {found['limit']} are used.",
            hint=_QUOTA_HINT,
            code="azure.quota",
        )
    if re.search(r"exceed\w* (the )?quota|quota (limit|exceeded)|CoreQuota|OutOfQuota|QuotaExceeded", text, re.I):
        return QuotaExceeded(
            f"the quota{f' for {size}' if size else ''} is used up.", hint=_QUOTA_HINT, code="azure.quota"
        )
    return None


@_of(r"AllocationFailed|(in)?sufficient capacity|out of capacity|OverconstrainedAllocation")
def _capacity(text: str, size: str, region: str) -> AmlTrainError:
    where = f" in {region}" if region else " in this region"
    return CapacityError(
        f"Azure has no free {size or 'machine of this size'}{where} at the moment.",
        hint="Try again later, or use another size (%aml_compute sizes), or another region.",
        code="azure.capacity",
    )


@_of(r"ForLowPriority|not (allowed|supported|available).{0,40}low.?priority")
def _low_priority(text: str, size: str, region: str) -> AmlTrainError:
    return CapacityError(
        f"the requested size{f' {size}' if size else ''} is not available as a low-priority machine.",
        hint="Leave out --low-priority, or use another size: %aml_compute sizes",
        code="azure.low_priority",
    )


@_of(
    r"(VmSize|Sku)\w*(Not(Available|Supported|Found)|Invalid)|Invalid\w*(VmSize|Sku)"
    r"|(vm ?size|sku).{0,80}(not (supported|available|valid|offered|found)|invalid)",
    re.DOTALL,
)
def _size(text: str, size: str, region: str) -> AmlTrainError:
    where = f"in {region}" if region else "in this region"
    return CapacityError(
        f"the requested size{f' {size}' if size else ''} is not available {where}.",
        hint=f"See the available sizes: %aml_compute sizes{f' --region {region}' if region else ''}",
        code="azure.size",
    )


@_of(r"RequestDisallowedByPolicy|disallowed by policy|policy assignment")
def _policy(text: str, size: str, region: str) -> AmlTrainError:
    found = re.search(r'policyAssignment"?\s*:\s*\{\s*"name"\s*:\s*"([^"]{3,80})"', text, re.IGNORECASE)
    named = f" ({found[1].strip()})" if found else ""
    return AuthenticationError(
        f"a policy of your organization does not allow it{named}.",
        hint="Ask the owner of the subscription what the policy requires.",
        code="azure.policy",
    )


@_of(r"\bsub-?net|virtual ?network|vnet\b")
def _subnet(text: str, size: str, region: str) -> AmlTrainError:
    if re.search(r"full|not enough|no (free|available) (ip|address)|exhaust|insufficient", text, re.IGNORECASE):
        reason, hint = "has no free addresses left", "Use another subnet, or fewer machines."
    elif re.search(r"region|location", text, re.IGNORECASE):
        reason, hint = "is not in the region of the machines", "Use a network in the same region."
    elif re.search(r"not ?(be )?found|does not exist|could not find", text, re.IGNORECASE):
        reason, hint = "does not exist", "Check --vnet and --subnet; another resource group needs the subnet's full id."
    else:
        reason, hint = "cannot be used", "Check --vnet and --subnet, and your role there."
    return TargetError(f"the subnet {reason}.", hint=hint, code="azure.subnet")


@_of(
    r"name.{0,60}(already (taken|exists?|in use|used)|not unique|unavailable|not available)"
    r"|already exists|NameNotAvailable|NameUnavailable",
    re.DOTALL,
)
def _taken(text: str, size: str, region: str) -> AmlTrainError:
    return TargetError(
        "this name is already taken (names of computes are unique within a region).",
        hint="Choose another name.",
        code="azure.name_taken",
    )


_RULES: tuple[_Rule, ...] = (
    _quota,
    _capacity,
    _policy,
    _subnet,
    _low_priority,
    _size,
    _taken,
)
