"""Store on Couchbase Server, or Capella, through its own SDK: `pip install 'saga-choreography[couchbase]'`.

Reading order: `adapter` (addresses, settings, opening), `settings`, `store`, then what it is made of: `keys` (names of
documents), `errors` (meaning of each error), `driver` (all that is known here of the SDK), `calls` (answers from its
thread), `server_time` and `expiry` (how long documents stay), `opening` (questions before the first operation),
`listing` and `lister` (keys there are).
"""
