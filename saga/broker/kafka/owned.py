"""Partition in the hands of a member: how far it is read and committed."""

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class Owned:
    """Partition that is ours in this assignment; the next assignment makes another one."""

    next: int
    """Offset after the last record that was handed out."""
    committed: int
    over: asyncio.Future[None]
    """Future that is done when the assignment is over."""
