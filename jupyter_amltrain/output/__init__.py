"""Cell outputs of runs and monitors: MIME bundles, text, images and live dashboards."""
