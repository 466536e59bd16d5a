"""Options that do not exist. Rejected by: mypy, basedpyright."""

from saga import Retry, Service

Retry(attempts=3)  # bad
Service("order", durable=True)  # bad
