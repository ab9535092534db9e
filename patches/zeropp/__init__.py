"""ZeRO++ and MiCS."""
