"""One run: its supervisor, its processes, its end."""
