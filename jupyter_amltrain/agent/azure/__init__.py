"""The agent inside a job that Azure ML starts."""
