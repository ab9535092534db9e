"""torch.cuda's streams and events, for the emulated devices."""

from __future__ import annotations

import time
import types
from typing import Any

import torch
import torch._streambase

from dsfix.lab.cuda.device import Device, index_of, rebind

_CUDA = 1  # c10::DeviceType


def install(native: types.ModuleType) -> None:
    """Replaces torch.cuda's stream and event classes and the functions that return them."""

    class Stream(torch.Stream):  # type: ignore[misc,unused-ignore]
        def __new__(cls, device: Device = None, priority: int = 0, **known: Any) -> Stream:
            number = known.get("stream_id")
            if number is None:
                known = {"device_index": index_of(native, device), "stream_id": native.new_stream()}
            known["device_type"] = _CUDA
            return super().__new__(cls, **known)  # type: ignore[no-any-return,unused-ignore]

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def synchronize(self) -> None:
            self.record_event().synchronize()

        def query(self) -> bool:
            return bool(self.record_event().query())

        def __enter__(self) -> Stream:
            self._context = StreamContext(self)
            self._context.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._context.__exit__(*error)

    class Event:
        """Remembers the time of its recording for `elapsed_time`, which is in milliseconds."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            self._point = native.Point()
            self._time = 0.0

        def record(self, stream: Any = None) -> None:
            stream = stream or current_stream()
            self._point = native.now(stream.device_index, stream.stream_id)
            self._time = time.perf_counter()

        def wait(self, stream: Any = None) -> None:
            stream = stream or current_stream()
            native.wait(stream.device_index, stream.stream_id, self._point)

        def query(self) -> bool:
            self.synchronize()  # the event has happened by then
            return True

        def synchronize(self) -> None:
            native.finish(self._point)

        def elapsed_time(self, end_event: Event) -> float:
            return (end_event._time - self._time) * 1e3

    class StreamContext:
        """Makes the stream current, and its device."""

        def __init__(self, stream: Stream | None) -> None:
            self.stream = stream
            self._device = self._before = -1

        def __enter__(self) -> None:
            self._device = native.current_device()
            if self.stream is not None:
                self._before = native.current_stream(self.stream.device_index)
                set_stream(self.stream)

        def __exit__(self, *_: Any) -> None:
            if self.stream is not None:
                native.set_stream(self.stream.device_index, self._before)
            native.set_device(self._device)

    def known_stream(device: Device, number: int) -> Stream:
        return Stream(device_index=index_of(native, device), stream_id=number)

    def default_stream(device: Device = None) -> Stream:
        return known_stream(device, 0)

    def current_stream(device: Device = None) -> Stream:
        return known_stream(device, native.current_stream(index_of(native, device)))

    def set_stream(stream: Stream) -> None:
        native.set_device(stream.device_index)
        native.set_stream(stream.device_index, stream.stream_id)

    def stream_context(stream: Stream | None) -> StreamContext:
        return StreamContext(stream)

    def synchronize(device: Device = None) -> None:
        native.finish_device(index_of(native, device))

    # abstract classes through torch 2.5, whose _dynamo requires them
    for name, known in (("_StreamBase", Stream), ("_EventBase", Event)):
        register = getattr(getattr(torch._streambase, name, None), "register", None)
        if register is not None:
            register(known)
    classes: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": stream_context,
        "set_stream": set_stream,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "synchronize": synchronize,
    }
    for name, value in classes.items():
        setattr(torch.cuda, name, value)
    rebind(torch.cuda.streams, classes)
