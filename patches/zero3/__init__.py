"""ZeRO-3 and zero.Init."""
