"""A schema registry in memory, which may be away: an adapter of `saga.registry.port`, for tests without a server."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

from saga.contracts.foreign_values import to_registered_schema
from saga.errors import RegistryUnavailable
from saga.registry.port import RegisteredSchema


class FakeRegistry:
    """Registry whose ids begin with 1, and which counts what it was asked."""

    address = "http://registry:8081"

    def __init__(self) -> None:
        self.subjects: dict[str, list[RegisteredSchema]] = {}
        self.by_id: dict[int, str] = {}
        self.asked: list[str] = []
        self.is_away = False
        self.is_back = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def schema(self, id_: int) -> str:
        await self._answers(f"schema {id_}")
        return self.by_id.get(id_, "")

    async def versions(self, subject: str) -> Sequence[int]:
        await self._answers(f"versions {subject}")
        return range(1, len(self.subjects.get(subject, ())) + 1)

    async def version(self, subject: str, number: int) -> RegisteredSchema:
        await self._answers(f"version {subject} {number}")
        return self.subjects[subject][number - 1]

    async def register(self, subject: str, schema: str) -> int:
        await self._answers(f"register {subject}")
        return self.put(subject, json.loads(schema))

    def put(self, subject: str, schema: Any) -> int:
        """Have a schema under a subject, which gives its id."""
        text = json.dumps(to_registered_schema(schema))
        id_ = next((id_ for id_, known in self.by_id.items() if known == text), len(self.by_id) + 1)
        self.by_id[id_] = text
        there = self.subjects.setdefault(subject, [])
        if RegisteredSchema(id_, text) not in there:
            there.append(RegisteredSchema(id_, text))
        return id_

    async def _answers(self, asked: str) -> None:
        self.asked.append(asked)
        await asyncio.sleep(0)  # noqa: TID251 - others run meanwhile, as on a network
        if self.is_away:
            raise RegistryUnavailable(f"the schema registry at {self.address} cannot be used: it is away")
