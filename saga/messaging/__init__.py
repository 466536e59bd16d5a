"""What travels: messages and their envelopes, ids and names, timers, operator commands and transition events."""
