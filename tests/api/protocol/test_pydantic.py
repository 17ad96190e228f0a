"""Types of pydantic's fields: the schema of each is taken as clients send it, and what comes validates with pydantic."""
import datetime
import decimal
import enum
import ipaddress
import os
import pathlib
import re
import typing
import uuid

import openai.lib._pydantic
import pydantic
import pytest
import typing_extensions
from annotated_types import Len

SEEDS = int(os.environ.get("RODIMUS_TEST_SEEDS", "2"))  # make test-schemas takes more


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"]
    lives: int = pydantic.Field(ge=1, le=9)


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"] = "dog"
    tricks: list[Color] = pydantic.Field(default=[], max_length=2)


class Node(pydantic.BaseModel):
    name: Color
    next: "Node | None" = None


class Pair(typing.NamedTuple):
    left: bool
    right: int


class Movie(typing_extensions.TypedDict):
    seen: bool
    year: typing_extensions.NotRequired[int]


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool]
    on: bool


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", json_schema_extra={"x-order": 3})
    on: bool = pydantic.Field(alias="is-on", json_schema_extra={"x-unit": "none"}, examples=[True], deprecated=True)


Bounded = typing.Annotated[str, Len(0, 8)]
TYPES = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": Bounded,
    "bytes": typing.Annotated[bytes, Len(0, 8)],
    "none": None,
    "any": typing.Any,
    "optional": int | None,
    "union": int | bool | None,
    "literal": typing.Literal["a", "b", 3],
    "enum": Color,
    "int enum": Size,
    "decimal": decimal.Decimal,
    "bounded decimal": typing.Annotated[decimal.Decimal, pydantic.Field(ge=0, le=100)],
    "decimal digits": typing.Annotated[decimal.Decimal, pydantic.Field(max_digits=5, decimal_places=2)],
    "list": typing.Annotated[list[bool], Len(0, 3)],
    "bare list": typing.Annotated[list, Len(0, 1)],
    "set": typing.Annotated[set[Size], Len(0, 3)],
    "set of numbers": typing.Annotated[set[int], Len(0, 3)],
    "frozenset": typing.Annotated[frozenset[Color], Len(1, 2)],
    "tuple": tuple[bool, Size, Color],
    "long tuple": typing.Annotated[tuple[Size, ...], Len(0, 3)],
    "named tuple": Pair,
    "typed dict": Movie,
    "dict of bool": typing.Annotated[dict[Bounded, bool], Len(1, 2)],
    "dict of literals": dict[typing.Literal["x", "y"], Size],
    "dict of patterns": typing.Annotated[dict[typing.Annotated[str, pydantic.Field(pattern="^[a-z]{1,3}$")], bool], Len(1, 2)],
    "datetime": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "uuid": uuid.UUID,
    "uuid4": pydantic.UUID4,
    "HttpUrl": pydantic.HttpUrl,
    "AnyUrl": pydantic.AnyUrl,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4 network": ipaddress.IPv4Network,
    "ip": pydantic.IPvAnyAddress,
    "path": pathlib.Path,
    "json": pydantic.Json[Size],
    "base64": pydantic.Base64Bytes,
    "secret": typing.Annotated[pydantic.SecretStr, Len(1, 6)],
    "pattern": typing.Annotated[str, pydantic.Field(pattern=r"^\d{3}-[A-F]+$", max_length=9)],
    "re.Pattern": re.Pattern,
    "pattern with length": typing.Annotated[str, pydantic.Field(pattern="^[a-z]+$", min_length=3, max_length=6)],
    "searched pattern": typing.Annotated[str, pydantic.Field(pattern="[0-9]{2}", max_length=12)],
    "positive int": pydantic.PositiveInt,
    "bounded float": typing.Annotated[float, pydantic.Field(gt=0, lt=1)],
    "multiple of": typing.Annotated[int, pydantic.Field(multiple_of=5, ge=10, le=200)],
    "cents": typing.Annotated[float, pydantic.Field(multiple_of=0.01)],
    "multiple of a tenth": typing.Annotated[float, pydantic.Field(multiple_of=0.1, ge=-1, lt=2.5)],
    "multiple of a half": typing.Annotated[float, pydantic.Field(multiple_of=0.5, ge=0, le=10)],
    "discriminated union": typing.Annotated[Cat | Dog, pydantic.Field(discriminator="kind")],
    "plain union of models": Cat | Dog,
    "recursive": Node,
    "list of models": typing.Annotated[list[Cat], Len(0, 2)],
    "extra": Extra,
    "closed, with x-keys": Closed,
    "ByteSize": pydantic.ByteSize,
    "color pattern": typing.Annotated[str, pydantic.StringConstraints(pattern="^#[0-9a-f]{6}$", to_lower=True)],
    "past date": pydantic.PastDate,
    "strict": pydantic.StrictBool,
}
# The schema does not say all that the type asks for: the answer follows the schema.
SAYS_LESS = {"past date", "decimal", "bounded decimal", "decimal digits", "ByteSize"}


def model_of(kind):
    return pydantic.create_model("Answer", value=(kind, ...))


def finished(server, schema, seeds):
    """What ends within its tokens: the model would not soon end a text without a limit, so it is drawn to marks that end it."""
    ends = {str(server.post("/tokenize", {"prompt": mark}).json["tokens"][-1]): bias for mark, bias in (('"', 4), ("}", 12), ("]", 5))}
    fmt = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    for seed in seeds:
        answer = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 120, "temperature": 1, "seed": seed, "response_format": fmt,
                                                    "logit_bias": ends})
        assert answer.status == 200, (schema, answer)
        choice = answer.json["choices"][0]
        if choice["finish_reason"] == "stop":
            yield choice["text"]


def test_there_are_49_pydantic_types():
    assert len(TYPES) >= 49


@pytest.mark.parametrize("name", TYPES)
def test_a_pydantic_type_is_taken_and_its_answers_validate(server, name):
    model = model_of(TYPES[name])
    schemas = {"plain": model.model_json_schema()}
    try:
        schemas["of openai"] = openai.lib._pydantic.to_strict_json_schema(model)
    except TypeError:  # openai's package refuses the type itself
        pass
    for made, schema in schemas.items():
        n = 0
        for text in finished(server, schema, range(20 * SEEDS)):
            n += 1
            try:
                model.model_validate_json(text)
            except pydantic.ValidationError as wrong:
                assert name in SAYS_LESS, f"{made} schema {schema} gave {text}: {wrong}"
            if n == SEEDS:
                break
        assert n == SEEDS, schema
