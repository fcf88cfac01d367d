"""What a cell shows of a run. Knows records, not controllers."""
