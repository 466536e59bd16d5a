"""The example: an order saga across four services that know each other's events and nothing else of each other.

Each folder is one service: `__init__.py` says what it does, `events.py` is generated from `contracts/`, the rest is its
own world (the bank, the carrier, the stock). `intake/` is beside the four: for orders that an application writes as
documents. `audit/` compares all their books when a run is over.
"""
