"""The front end's doors: typed requests on the control channel."""
