"""Event classes that tests declare from source, as a user writes them."""

import itertools
import sys
import textwrap
import types
from typing import Any

from saga.contracts.contract import Contract
from saga.contracts.event_classes import declared_contract
from saga.messages import Event

HEAD = """
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, ClassVar
from uuid import UUID

from saga import Avro, Event, enum_type, event, record, sensitive


class Colour(StrEnum):
    red = "red"
    blue = "blue"


@record
class Address:
    street: str
"""
_numbers = itertools.count(1)


def run(source: str) -> types.ModuleType:
    """The module of this source, behind `HEAD`."""
    module = types.ModuleType(f"declared_for_a_test_{next(_numbers)}")
    sys.modules[module.__name__] = module
    exec(compile(HEAD + textwrap.dedent(source), f"<{module.__name__}>", "exec"), module.__dict__)
    return module


def declare_class(name: str, *lines: str, above: str = "", **attributes: Any) -> type[Event]:
    """The class of an event with an `order_id` and these lines, `above` being the source above it."""
    given = {"topic": "orders", "key": "order_id", "owner": "order", **attributes}
    keywords = ", ".join(f"{key}={value!r}" for key, value in given.items())
    body = "".join(f"    {line}\n" for line in ("order_id: str", *lines))
    module = run(f"{textwrap.dedent(above)}\n\n@event({keywords})\nclass {name}(Event):\n{body}")
    made: type[Event] = getattr(module, name)
    return made


def declare(name: str, *lines: str, above: str = "", **attributes: Any) -> Contract:
    """The contract that such a class declares."""
    contract = declared_contract(declare_class(name, *lines, above=above, **attributes))
    assert contract is not None
    return contract
