"""Streams wait for no other stream and no event."""

import torch

for waiting in (torch.cuda.Stream, torch.cuda.Event):
    for name in ("wait_stream", "wait_event", "wait"):
        if hasattr(waiting, name):
            setattr(waiting, name, lambda self, other=None: None)
