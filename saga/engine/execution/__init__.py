"""Carry out decisions: call handlers, replay recorded steps, handle failures, abort runs."""
