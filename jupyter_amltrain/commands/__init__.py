"""The commands behind the magics and the command line; no IPython here."""
