"""Store on Couchbase Server, or Capella, through its own SDK: `pip install 'saga-choreography[couchbase]'`.

Reading order: `adapter` (what it says of itself), `settings`, `store`, then what it is made of: `keys` (which document
a key means), `errors` (which error means what), `driver` (all that is known here of the SDK), `times` and `expiry` (how
long documents stay), `opening` (what is asked before the first operation), `listing` and `lister` (which keys there
are).
"""
