"""Jobs that do not have a patch's bug: with the patches and without they compute the same, or what PyTorch computes."""
