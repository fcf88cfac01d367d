"""Operations of the page about workspaces and machine sizes."""
