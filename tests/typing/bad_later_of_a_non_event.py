"""Waiting for something that is no event. Rejected by: mypy, basedpyright."""

from datetime import timedelta

from saga import Later
from services.payment.bank import Bank

wait: Later[Bank]  # bad
Later(until=Bank, within=timedelta(days=1))  # bad
