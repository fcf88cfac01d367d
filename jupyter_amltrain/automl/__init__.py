"""Guest: automated machine learning on tables, as one supervised run whose trials are on the sweep board."""
