"""What must be true of every run of a choreography, whatever broke: pure checks of what the run left behind.

Reading order: `evidence` (what is judged, and what is found), `alone` (what one progress shows alone; the explorer
asks the same), `lives` (the history of one saga in one service), `cases` (all that is known of one saga), then the
invariants: `begun`, `outcomes`, `order`, `rest`, `markers`, `rerun`; `check` (all of them).
"""
