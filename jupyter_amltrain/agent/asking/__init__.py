"""Questions about a run that its own processes answer: where they are, what a value is."""
