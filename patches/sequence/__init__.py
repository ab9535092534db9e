"""Long sequences: Ulysses and tiled computation."""
