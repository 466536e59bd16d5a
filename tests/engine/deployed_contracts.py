"""Contracts as two teams deploy them: a newer version of a schema is at its producer first, and here later or never."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from saga import Event
from saga.contracts.codegen import make_event_class
from saga.contracts.library import Library, find_library
from services.payment.events import OrderPlaced
from tests.engine.real_worker import ROOT, SAGA, an_order

TOPICS = {
    "OrderPlaced": "orders",
    "OrderConfirmed": "orders",
    "OrderCancelled": "orders",
    "PaymentReserved": "payments",
}
"""Events that the services of these tests use. Only they are deployed: some tests load all contracts hundreds of
times."""


class Contracts:
    """Two folders of contracts: that of the producer, and the one that is deployed with the service."""

    def __init__(self, folder: Path) -> None:
        self.producers, self.here = folder / "producer" / "contracts", folder / "service" / "contracts"
        for place in (self.producers, self.here):
            for name, topic in TOPICS.items():
                (place / topic).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / "contracts" / topic / f"{name}.v1.avsc", place / topic)
        self.readings = 0
        self.newer: list[Path] = []

    def newer_class(self, name: str) -> type[Event]:
        """Class of a version that only the producer has: with one field more."""
        path = self.producers / TOPICS[name] / f"{name}.v1.avsc"
        schema = json.loads(path.read_text())
        schema["fields"].append({"name": "note", "type": "string", "default": ""})
        newer = path.with_name(f"{name}.v2.avsc")
        newer.write_text(json.dumps(schema))
        self.newer.append(newer)
        library = Library.load(self.producers)
        made = make_event_class(library.contracts[name], find_library(newer.parent))
        assert made.__contract__.endswith(".v2")
        return made

    def deploy(self) -> None:
        """Deploy here what the producer has."""
        for newer in self.newer:
            shutil.copy(newer, self.here / newer.parent.name / newer.name)

    async def read(self, library: Library) -> Library:
        """The way of the service to its contracts: see `saga.engine.known_schemas.ReloadContracts`."""
        self.readings += 1
        return replace(library, folder=self.here).reload()


def newer_order(made: type[Event], saga: str = SAGA) -> Event:
    """Order in the newer version."""
    old: OrderPlaced = an_order(saga)
    fields = {name: getattr(old, name) for name in OrderPlaced.__annotations__ if name != "__contract__"}
    return made(**fields, note="as a gift")  # type: ignore[call-arg] # of a class that is made while it runs
