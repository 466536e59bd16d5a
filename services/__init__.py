"""The example: an order saga in four services. Each service knows the events of the others, and nothing else about
them.

Each folder is one service: `__init__.py` declares its handlers, `events.py` is generated from `contracts/`, and the
other modules are clients of external systems (the bank, the carrier) or hold business documents (the stock). `intake/`
is an optional fifth service, for orders that an application writes as documents. `audit/` compares the data of all
services when a run is over.
"""
