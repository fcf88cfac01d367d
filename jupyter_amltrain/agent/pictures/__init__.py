"""Pictures of a run: figures that its script shows, and image files that it logs."""
