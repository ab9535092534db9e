"""The documentation site: pages made of the patches, the records and the table of known bugs, built with Sphinx."""
