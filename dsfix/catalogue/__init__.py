"""The patches that there are: dsfix's own and those of plug-ins."""
