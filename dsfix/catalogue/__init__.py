"""All patches: dsfix's own and those of plug-ins."""
