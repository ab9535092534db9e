"""`explain`: reads logs of any size, recognises known problems by their signatures, and finds the cause."""
