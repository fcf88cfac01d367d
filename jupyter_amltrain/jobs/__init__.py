"""From a cell or a file to what is sent to a target: flags, script, checks, snapshot, environment."""
