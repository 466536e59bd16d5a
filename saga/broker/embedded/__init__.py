"""Embedded broker: one SQLite file on a local disk, shared by the processes of one machine. Nothing to install.

Reading order: `adapter` (addresses and opening), `file` (tables), `log` (records), `transaction` (each group commit of
`saga.store.sqlite_files`), `seats` (a lock for each member, and who is alive), `groups` (who has which partition),
`membership` (one member's life), `broker` (all of it behind the port). Then for tools: `administration`.
"""
