"""Removal of records from an embedded log by another hand."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from saga.broker.embedded.log import row_checksum
from saga.messages import Partition
from saga.testing.conformance.broker_suite import Remove


def remove_records(log: Path, before: Mapping[Partition, int]) -> None:
    """Remove all records before these offsets."""
    with closing(sqlite3.connect(log)) as file, file:
        for (topic, number), offset in before.items():
            ((first,),) = file.execute("SELECT first_log FROM topics WHERE name = ?", (topic,)).fetchall()
            file.execute(f"DELETE FROM log_{first + number} WHERE offset < ?", (offset,))
            row = (offset, row_checksum(first + number, offset), first + number)
            file.execute("UPDATE logs SET oldest = ?, oldest_sum = ? WHERE id = ?", row)


def removal_from(log: Path) -> Remove:
    """Way to remove records: retention itself spares what a known group has not committed; a person with a database
    tool does not."""

    async def removed(before: Mapping[Partition, int]) -> None:
        remove_records(log, before)

    return removed
