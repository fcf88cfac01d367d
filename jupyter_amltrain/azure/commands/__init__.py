"""Commands about workspaces, machine sizes, costs and data."""
