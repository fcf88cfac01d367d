"""What the kernel knows of runs: series, store, watcher."""
