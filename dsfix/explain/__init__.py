"""What a log shows: reading logs of any size, the signatures of known faults, and which of them is the cause."""
