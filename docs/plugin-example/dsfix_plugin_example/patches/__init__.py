"""Each module is a patch; its name is the second part of the patch id."""
