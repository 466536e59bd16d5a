"""Policies as pure functions over frozen values, one file each: retries, circuit breaker, limits and turns."""
