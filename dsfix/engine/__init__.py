"""From the catalogue to applied patches: see docs/design.md."""
