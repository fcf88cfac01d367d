"""Tests that talk to Azure Machine Learning's own host names; the emulator in `emulator/` answers."""
