"""What a running service does: one message at a time for each saga, all sagas at once.

Reading order: `turn` (the heart: one message), `beginning` (how it is taken in hand), `handling` (one run of a
handler), `saga` (what the handler sees), `documents` (business documents), `persistence` (load, write, publish),
`participant` (what all of them work with); then `worker`, `lanes`, `offsets`, `lifecycle` (many messages, and when
they are done).
"""
