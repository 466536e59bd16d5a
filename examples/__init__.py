"""Examples in other domains than the order saga of `services/`."""
