"""Store on Couchbase Server, or Capella, through its own SDK: `pip install 'saga-choreography[couchbase]'`.

Reading order: `adapter` (addresses, settings, opening), `store` (the port, and names of documents), then what it uses:
`errors` (meaning of each error), `driver` (everything that is known here of the SDK), `calls` (answers from its
thread), `expiry` (how long documents stay), `opening` (checks before the first operation), `listing` and `lister` (list
the keys, in a process of its own).
"""
