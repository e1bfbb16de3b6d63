"""One training run in one process: from settings to summary, and what it shows meanwhile."""
