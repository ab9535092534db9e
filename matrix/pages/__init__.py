"""The pages in docs/ that are generated from the catalogue, the table of releases and the run proof."""
