"""Waiting for an event without a limit. Rejected by: mypy, basedpyright."""

from saga import Later
from services.payment.events import OrderConfirmed

Later(until=OrderConfirmed)  # bad
