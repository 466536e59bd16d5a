"""Development mode: find the services of a folder, run each in its own process, and restart them when files change."""
