"""ZeRO-1 and ZeRO-2, and what all stages share."""
