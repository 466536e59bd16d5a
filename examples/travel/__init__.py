"""A trip: seven services, several flights of one kind, and refunds from which fees are deducted."""
