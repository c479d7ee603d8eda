"""Errors of the API, in the shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from wordloom.errors import WordloomError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

_MOST_SHOWN = 100

_FORMS = ("str", "int", "float", "bool", "none")


class ApiError(Exception):
    """An answer with an error.

    Attributes:
        status: the HTTP status.
        param: the field at fault.
        code: a word for programs.
        more: further keys of the error.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.more = status, message, param, code, more

    def body(self) -> dict[str, Any]:
        """Return the answer's body."""
        kind = self.more.get("type") or _TYPES.get(self.status, "server_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
                **{name: value for name, value in self.more.items() if name != "type"},
            }
        }

    def response(self) -> JSONResponse:
        """Return the answer."""
        headers = {"Retry-After": "1"} if self.status in (429, 503) else {}
        if self.status == 401:
            headers = {"WWW-Authenticate": "Bearer"}
        return JSONResponse(self.body(), self.status, headers)


def shown(name: str) -> str:
    """Return ``name`` in quotation marks, cut if it is long."""
    return repr(name if len(name) <= _MOST_SHOWN else name[:_MOST_SHOWN] + "…")


def add_handlers(app: FastAPI) -> None:
    """Let ``app`` answer every error in this shape."""

    async def own(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def mistake(_: Request, error: Exception) -> JSONResponse:
        return ApiError(400, str(error)).response()

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _explained(error.errors()).response()

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is no path {shown(request.url.path)}; see 'Serve a model' in the documentation"
        elif message == "There was an error parsing the body":  # FastAPI's
            message = "the body is not JSON: it is not UTF-8, too deeply nested, or has too long a number"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.url.path} is not for {request.method}" + (allowed and f"; use {allowed}")
        answer = ApiError(error.status_code, message).response()
        answer.headers.update(error.headers or {})
        return answer

    async def broken(_: Request, error: Exception) -> JSONResponse:
        return ApiError(500, "the server has failed on this request; its log has the reason").response()

    app.add_exception_handler(ApiError, own)
    app.add_exception_handler(WordloomError, mistake)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)


def _explained(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return an error of a body that does not have the form of a request.

    A field that may have several forms has an error for each form.  The form that the value comes closest to
    has an error that is not about the type, else the one that lies deepest and furthest.
    """

    def closeness(error: Mapping[str, Any]) -> tuple[bool, int, list[int]]:
        places = [part for part in error["loc"] if isinstance(part, int)]
        return not error["type"].endswith("_type"), len(_path(error)), places

    field = errors[0]["loc"][:2]
    of_field = [one for one in errors if one["loc"][:2] == field]
    first = max(of_field, key=closeness)
    name = shown(_named(first))[1:-1]
    if first["type"] == "json_invalid":
        return ApiError(
            400, f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}"
        )
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field '{name}'; leave it out", param=name, code="unknown_parameter")
    if first["type"] == "missing":
        wanted = f"'{name}' is missing" if name else "the request has no body; send JSON"
        return ApiError(400, wanted, param=name or None, code="missing_required_parameter")
    if first["type"] == "none_required":
        message = f"'{name}' is not supported; leave it out"
        return ApiError(400, message, param=name, code="unsupported_parameter")
    if not name and first["type"] != "value_error":
        return ApiError(400, "the body must be a JSON object, sent with content-type: application/json")
    alike = [one for one in of_field if closeness(one) == closeness(first) and one["loc"][0] == "body"]
    message = " or ".join(dict.fromkeys(_message(one) for one in alike)).replace(" or input should be", " or")
    if not name:
        return ApiError(400, message, code="invalid_value")
    return ApiError(400, f"'{name}': {message}", param=name, code="invalid_value")


def _message(error: Mapping[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _named(error: Mapping[str, Any]) -> str:
    """Return the value at fault as it is written in code, such as ``messages[0].content``."""
    parts = [f"[{part}]" if part.isdecimal() else f".{part}" for part in _path(error)]
    return "".join(parts).removeprefix(".")


def _path(error: Mapping[str, Any]) -> list[str]:
    """Return the path to the value at fault, without the names of the forms that pydantic tries."""
    parts = [str(part) for part in error["loc"] if part != "body"]
    return parts[:1] + [part for part in parts[1:] if part not in _FORMS and "[" not in part]
