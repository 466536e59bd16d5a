"""Load and commit the progress, publish events from the outbox, and write dead letters."""
