"""A trip: seven services, several flights of one kind, and refunds that keep fees."""
