"""Store on Couchbase Server, or Capella, through its own SDK: `pip install 'saga-choreography[couchbase]'`.

Suggested reading order: `adapter` (addresses and settings), `errors` (meaning of each error), `driver` (everything that
uses the SDK, and how its calls are made), `opening` (checks before the first operation), `listing` (keys, listed by a
process of its own), `store` (the port, stored keys, and how long documents stay).
"""
