"""Displays of a run: values that its script has shown with their rich forms, between the lines of its log."""
