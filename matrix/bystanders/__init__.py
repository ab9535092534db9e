"""Jobs without any patch's bug: they must give the same results with and without the patches, or match PyTorch."""
