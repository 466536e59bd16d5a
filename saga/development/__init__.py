"""Development mode: find the services of a folder, run them side by side, and restart them when something changes."""
