"""How calls and bytes reach a machine."""
