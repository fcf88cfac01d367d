"""Azure Machine Learning on loopback: ARM, Entra, data plane, blobs (Azurite), behind a CONNECT proxy over TLS.

Nothing of the product knows about it: a client is led here by ``HTTPS_PROXY`` and a CA bundle alone.
`world.World` holds all state; `routing.Routes` says which handler answers which path; `app.App` dispatches.
"""
