"""Azure Machine Learning as a guest: all that knows it. What imports its packages runs in :mod:`.service`."""
