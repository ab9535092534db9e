"""Streams and events without ordering: on the emulated device every call is synchronous."""

from __future__ import annotations

import time
import types
from typing import Any

import torch

from dsfix.lab.cuda.device import Device, index_of, rebind


def install(native: types.ModuleType) -> None:
    """Replaces torch.cuda's stream and event classes and the functions that return them."""

    class Stream(torch.Stream):  # type: ignore[misc,unused-ignore]
        cuda_stream = 0

        def __new__(cls, device: Device = None, priority: int = 0, **_: Any) -> Stream:
            where = torch.device("cuda", index_of(native, device))
            return super().__new__(cls, device=where, priority=priority)  # type: ignore[no-any-return,unused-ignore]

        def wait_stream(self, stream: Any) -> None:
            return None

        def wait_event(self, event: Any) -> None:
            return None

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record()
            return event

        def synchronize(self) -> None:
            return None

        def query(self) -> bool:
            return True

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *_: Any) -> None:
            return None

    class StreamContext:
        """Makes the stream's device current, as a real stream does."""

        def __init__(self, stream: Stream | None) -> None:
            self.stream = stream
            self._previous = -1

        def __enter__(self) -> None:
            self._previous = native.current_device()
            if self.stream is not None:
                native.set_device(self.stream.device.index)

        def __exit__(self, *_: Any) -> None:
            native.set_device(self._previous)

    def default_stream(device: Device = None) -> Stream:
        return Stream(device)

    def current_stream(device: Device = None) -> Stream:
        return Stream(device)

    def set_stream(stream: Stream) -> None:
        native.set_device(stream.device.index)

    def stream_context(stream: Stream | None) -> StreamContext:
        return StreamContext(stream)

    classes: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": stream_context,
        "set_stream": set_stream,
        "current_stream": current_stream,
        "default_stream": default_stream,
    }
    for name, value in classes.items():
        setattr(torch.cuda, name, value)
    rebind(torch.cuda.streams, classes)


class Event:
    """Remembers the time of its recording for `elapsed_time`, which is in milliseconds."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self._time = 0.0

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end_event: Event) -> float:
        return (end_event._time - self._time) * 1e3
