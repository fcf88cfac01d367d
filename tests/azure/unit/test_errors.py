# ruff: noqa: E501 (the texts are those of Azure)
"""Refusals of Azure, recorded or as documented, in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_amltrain import errors
from jupyter_amltrain.azure import errors as azure_errors

RECORDED = Path(__file__).parents[3] / "azureml_emulator" / "data" / "recordings"
SCOPE = "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"


#: Of the storage service, whose detail may say what was signed.
XML = (
    b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><Error><Code>CODE</Code><Message>This is not so.\n'
    b"RequestId:1234\nTime:2026-01-01T00:00:00Z</Message><AuthenticationErrorDetail>Signed: r 2026</Error>"
)


def body(code, message, **more):
    return json.dumps({"error": {"code": code, "message": message, **more}}).encode()


def recorded(name, status):
    entries = json.loads((RECORDED / f"{name}.json").read_text())["entries"]
    one = next(entry for entry in entries if entry["status"] == status)
    return json.dumps(one["response"]).encode() if one["response"] else b""


# ---- envelopes


def test_error_code_in_additional_info_is_read():
    details = azure_errors.read_details(400, {}, recorded("11a_ray_job_unknown_compute_400", 400))
    assert details.codes == ("UserError", "BadArgument", "UnknownTargetType")
    assert (details.code, details.message) == ("UnknownTargetType", "Unknown compute target 'testCompute'.")


def test_error_with_null_fields_is_read():
    answer = {
        "error": {"code": "UserError", "severity": None, "message": "No.", "details": [], "innerError": None},
        "correlation": {"operation": "a"},
        "environment": "eastus",
    }
    details = azure_errors.read_details(400, {"X-Ms-Correlation-Request-Id": "c"}, json.dumps(answer).encode())
    assert (details.code, details.message, details.correlation) == ("UserError", "No.", "c")


def test_error_of_gateway_is_read():
    details = azure_errors.read_details(
        404, {"x-ms-failure-cause": "gateway"}, body("ResourceNotFound", "The Resource 'w' was not found.")
    )
    assert details.codes == ("ResourceNotFound",)


def test_error_detail_code_overrides_outer():
    details = azure_errors.read_details(
        400, {}, body("BadRequest", "Outer", details=[{"code": "ClusterMinNodesExceedCoreQuota", "message": "x"}])
    )
    assert details.code == "ClusterMinNodesExceedCoreQuota" and details.message == "Outer"


def test_error_in_pascal_case_is_read():
    answer = {"Error": {"Code": "ValidationError", "Message": "Limit=250, Size=699", "Details": [], "InnerError": None}}
    details = azure_errors.read_details(400, {}, json.dumps(answer).encode())
    assert (details.code, details.message) == ("ValidationError", "Limit=250, Size=699")


@pytest.mark.parametrize(
    "empty", [b"", b"  ", b"null", b"[]", b'"text"', b"<html>\n<h1>Bad  gateway</h1></html>", b"\xff\xfe"]
)
def test_error_with_empty_body_is_mapped(empty):
    error = azure_errors.error_of_answer(404, {}, empty, act="GET computes/x", where="w")
    assert "in w" in str(error) and "GET computes/x" in str(error)
    assert azure_errors.details_of(error).status == 404


# ---- messages


@pytest.mark.parametrize(
    ("status", "headers", "answer", "kind", "text"),
    [
        (401, {}, body("InvalidAuthenticationToken", "The access token expiry UTC time is earlier than now."), errors.AuthenticationError, "UTC time is earlier than now. Sign in again: %aml_compute connect --name w"),
        (403, {}, body("AuthorizationFailed", f"The client 'a@b' with object id 'x' does not have authorization to perform action 'Microsoft.MachineLearningServices/workspaces/computes/write' over scope '{SCOPE}' or the scope is invalid."), errors.AuthenticationError, "'AzureML Compute Operator'"),
        (403, {}, b"", errors.AuthenticationError, "(PUT x)"),
        (403, {}, body("Forbidden", "Public access is not allowed. Use a private endpoint."), errors.TargetUnreachable, "private network only"),
        (403, {}, XML.replace(b"CODE", b"AuthorizationPermissionMismatch"), errors.AuthenticationError, "'Storage Blob Data Contributor'"),
        (403, {}, XML.replace(b"CODE", b"AuthenticationFailed"), errors.AuthenticationError, "This is not so"),
        (404, {}, b"", errors.TargetError, "not found"),
        (409, {}, body("Conflict", "Resource is being updated."), errors.TargetError, "Resource is being updated"),
        (429, {"Retry-After": "37"}, body("TooManyRequests", "x"), errors.TargetUnreachable, "37 s"),
        (429, {}, b"", errors.TargetUnreachable, "throttling"),
        (500, {}, b"", errors.TargetUnreachable, "(500)"),
        (503, {"retry-after": "5"}, body("ServiceUnavailable", "Busy."), errors.TargetUnreachable, "Busy. Try again in 5 s"),
        (400, {}, body("BadRequest", "The specified subscription has a Standard NC family vCPU quota of 0 and cannot accomodate for at least 1 requested managed compute nodes which maps to 12 vCPUs."), errors.QuotaExceeded, "%aml_compute quota"),
        (400, {}, body("SkuNotAvailable", "No NC6 in eastus."), errors.CapacityError, "%aml_compute sizes"),
        (418, {}, b"", errors.TargetError, "418"),
    ],
)  # fmt: skip
def test_error_status_maps_to_class_and_one_line(status, headers, answer, kind, text):
    error = azure_errors.error_of_answer(status, headers, answer, act="PUT x", where="w", user="ada")
    assert type(error) is kind
    assert text in str(error) and "\n" not in str(error) and ".." not in str(error)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("AADSTS7000215: Invalid client secret provided. Ensure ... Trace ID: 1\nCorrelation ID: 2", "AZURE_CLIENT_SECRET"),
        ("AADSTS50076: Due to a configuration change you must use multi-factor authentication", "a second factor"),
        ("AADSTS700016: Application with identifier 'x' was not found", "no application with that id"),
        ("AADSTS90002: Tenant 'x' not found.", "directory does not exist"),
        ("Couldn't begin authentication: AADSTS90002: Tenant 'x' not found.", "directory does not exist"),
        ("AADSTS70020: The provided value for the input parameter 'device_code' is not valid.", "the code has expired"),
        ("Authentication failed: expired_token", "expired"),
        ("Timed out waiting for user to authenticate", "expired"),
        ("authorization_declined", "was declined"),
        ("AADSTS999999: Something new. Trace ID: 1 Correlation ID: 2", "AADSTS999999: Something new."),
    ],
)  # fmt: skip
def test_sign_in_error_is_one_line(text, word):
    error = azure_errors.signin_failed(text, how="az login")
    assert isinstance(error, errors.AuthenticationError)
    assert word in str(error) and "Trace ID" not in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("HTTPSConnectionPool(host='management.azure.com', port=443): Max retries exceeded with url: /x (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain')))", "(management.azure.com) is not trusted"),
        ("HTTPSConnectionPool(host='management.azure.com', port=443): Max retries exceeded (Caused by ProxyError('Unable to connect to proxy', OSError('Tunnel connection failed: 403 Forbidden')))", "proxy"),
        ("ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy Authentication Required'))", "password"),
        ("HTTPSConnection(host='management.azure.com', port=443): Failed to resolve 'management.azure.com' ([Errno -2] Name or service not known)", "cannot be resolved"),
        ("<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno 111] Connection refused", "No connection to Azure"),
        ("HTTPSConnectionPool(host='a.b', port=443): Read timed out. (read timeout=60)", "(a.b) did not respond in time"),
        ("('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))", "was cut"),
        ("Connection broken: IncompleteRead(10 bytes read, 5 more expected)", "was cut"),
        ("something else", "something else"),
    ],
)  # fmt: skip
def test_connection_error_is_one_line(text, word):
    error = azure_errors.unreachable(text)
    assert isinstance(error, errors.TargetUnreachable)
    assert word in str(error) and "0x7f" not in str(error)


def test_error_text_redacts_secrets():
    answer = body(
        "BadRequest",
        "Cannot read https://x/y?sv=1&sig=S3cr3t%3D&se=2 with Bearer abcdefghijk.lmnop and eyJabcdefghi.abcdef.xyz"
        " from https%3A%2F%2Fx%2Fy%3Fsv%3D1%26sig%3DS3cr3t%252B by SharedKey me:S3cr3t/+= or sig%253DS3cr3t",
    )
    text = str(azure_errors.error_of_answer(400, {}, answer)) + str(azure_errors.unreachable("at ?sig=S3cr3t"))
    for secret in ("S3cr3t", "abcdefghijk", "eyJ"):
        assert secret not in text


def test_unexpected_exception_is_not_mapped():
    assert azure_errors.error_of_exception(KeyError("x")) is None
    assert azure_errors.details_of(KeyError("x")).status == 0
    missing = azure_errors.error_of_exception(ModuleNotFoundError("no", name="azure.ai"))
    assert isinstance(missing, errors.MissingDependency) and "pip install" in missing.hint
