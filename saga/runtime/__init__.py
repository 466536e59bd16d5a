"""Work of a running service: one message at a time for each saga, all sagas at once.

Reading order: `turn` (the heart: one message), `beginning` (how it is taken in hand), `handling` (one run of a
handler), `saga` (what the handler sees), `documents` (business documents), `persistence` (load, write, publish),
`participant` (what all of them work with). Then many messages: `intake` (what a record is to a service), `polling`
(whence they come, by `sources`), `lanes`, `delivery` (a message to its end), `offsets` and `commits` (when they are
done), `partitions` (whose they are), `worker` (all of these), `lifecycle`.
"""
