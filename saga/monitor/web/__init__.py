"""The monitor's web pages, rendered on the server. Reading order: `app`, `guards`, `operator_console`, `pages`."""
