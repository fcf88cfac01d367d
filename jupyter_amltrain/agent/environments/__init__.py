"""Environments of a state root: built once for equal specifications, shared by runs."""
