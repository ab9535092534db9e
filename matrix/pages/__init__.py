"""docs/patches.md, and the pages in build/pages/ that are made of the catalogue, the table and the run proof."""
