"""The fields that several requests have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MOST_STOPS = 64  # strings; each token is compared with all of them
MOST_LOGPROBS = 20
MOST_FIELDS = 100
MOST_CHARACTERS = 200_000  # of a text that is not generated from


class Body(BaseModel):
    """A request's body: unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        """Refuse a body of so many fields that reporting each of them would take seconds."""
        if isinstance(given, dict) and len(given) > MOST_FIELDS:
            raise ValueError(f"an object has {len(given):,} fields, and {MOST_FIELDS} are the most")
        return given


def _without_surrogates(text: str) -> str:
    """Refuse text that has no UTF-8, such as half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text has half of a surrogate pair, which is no character") from None
    return text


Text = Annotated[str, AfterValidator(_without_surrogates)]
Stop = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_without_surrogates)]
Passage = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS), AfterValidator(_without_surrogates)]
MaybeEmptyPassage = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_without_surrogates)]
Word = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_without_surrogates)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]


class StreamOptions(Body):
    include_usage: bool = False


class SamplingFields(Body):
    """The settings of a text that is written; what is left out is the checkpoint's."""

    model: Text
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(None, max_length=1024)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    n: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Text | None = None
    return_settings: bool = False
    """Answer with the seed and every setting, and where each came from."""
    alternatives: int = Field(0, ge=0, le=MOST_LOGPROBS)
    """Report so many likely tokens of each token, with their probabilities before and after the settings."""
    continue_ids: Ids | None = None
    """Token ids with which the answer begins; they are not sent again."""

    @model_validator(mode="after")
    def _streams(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' need 'stream': true")
        return self

    def given(self) -> dict[str, Any]:
        """Return the settings that were given, by Wordloom's names."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "seed",
        )  # fmt: skip
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.stop:
            found["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.n is not None:
            found["samples"] = self.n
        if self.max_tokens is not None:
            found["max_new_tokens"] = self.max_tokens
        if self.logit_bias:
            found["logit_bias"] = tuple((_token_id(key), bias) for key, bias in self.logit_bias.items())
        return found


def _token_id(key: str) -> int:
    from wordloom.serve.errors import ApiError

    if not key.isascii() or not key.isdigit() or len(key) > 9:
        raise ApiError(400, f"logit_bias has {key[:20]!r}, and its keys are token ids", param="logit_bias")
    return int(key)


class Unsupported(Body):
    """Fields of OpenAI's API that this server does not have; they may be absent, or have no effect."""

    tools: list[Any] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: list[Any] | None = None
    function_call: Literal["none"] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None  # nothing is stored
    metadata: dict[Text, Text] | None = None

    def refuse(self) -> None:
        """Raise ApiError for a field that would change the answer."""
        from wordloom.serve.errors import ApiError

        for name in ("tools", "functions"):
            if getattr(self, name):
                raise ApiError(
                    400, f"'{name}' is not supported; leave it out", param=name, code="unsupported_parameter"
                )
        if self.response_format is not None and self.response_format != {"type": "text"}:
            raise ApiError(
                400,
                "'response_format' other than text is not supported; leave it out",
                param="response_format",
                code="unsupported_parameter",
            )
