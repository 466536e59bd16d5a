"""Services while they are written: found, run side by side, and started again when something changes."""
