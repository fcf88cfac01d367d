"""Kernel end of the JupyterLab extension: requests on the control channel, events on a comm."""
