"""Removal of records from an embedded log by another hand."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from saga.broker.embedded.log import row_checksum
from saga.messages import Partition
from saga.testing.conformance.broker_suite import Remove


def removal_from(log: Path) -> Remove:
    """Way to remove records: retention itself spares what a known group has not committed; a person with a database
    tool does not."""

    async def removed(before: Mapping[Partition, int]) -> None:
        with sqlite3.connect(log) as file:
            for (topic, number), offset in before.items():
                ((first,),) = file.execute("SELECT first_log FROM topics WHERE name = ?", (topic,)).fetchall()
                file.execute(f"DELETE FROM log_{first + number} WHERE offset < ?", (offset,))
                row = (offset, row_checksum(first + number, offset), first + number)
                file.execute("UPDATE logs SET oldest = ?, oldest_sum = ? WHERE id = ?", row)
        file.close()

    return removed
