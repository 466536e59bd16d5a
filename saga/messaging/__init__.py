"""Messages and their envelopes, ids and names; timers, controls, operator commands and transition events."""
