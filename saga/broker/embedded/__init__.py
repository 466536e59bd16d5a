"""The embedded broker: one SQLite file on a local disk, shared by the processes of one machine. Nothing to install.

Reading order: `adapter` (what it says of itself), `file` (what is in it), `log` (records), `transaction` (what goes
with each group commit of `saga.sqlite`), `groups` (who has which partition), `membership` (one member's life), `broker`
(all of it behind the port).
"""
