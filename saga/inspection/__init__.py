"""Reading: what services have written down of their sagas, from their stores and from the log. Nothing is changed.

`sources` finds and opens the stores, and opens the broker. One saga as one service has it: `histories`. All of
them: `listing` (newest first), `verifying` (whether they are as they were written), `attention` (sagas and messages
that need a person; `letters` reads them from the log). One saga as all services have it: `showing`, as it is, goes on,
or was; `event_fields` are the fields of its events. Pure: `timeline`, and `glance`, a progress of which only little is
read.
"""
