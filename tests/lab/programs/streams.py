"""Pairs of programs: with one missing wait, and correct. Prints what each computes, as JSON.

Each takes `right` and returns (what it computed, what it has to be). On a GPU the work without a wait is late.
"""

import json
import sys
from contextlib import contextmanager

from dsfix.lab import Lab

lab = Lab()
torch, distributed = lab.torch, lab.deepspeed.comm
stream, default = torch.cuda.Stream(), torch.cuda.current_stream()
torch.cuda.synchronize()
CYCLES = 500_000_000  # a quarter of a second on a GPU


def late():
    """Work issued to the current stream from now on is late on a GPU; on the emulated device the schedule decides."""
    if not lab.emulated:
        torch.cuda._sleep(CYCLES)


@contextmanager
def late_stream():
    """Work issued here is late on a GPU and does not delay the default stream."""
    if lab.emulated:
        yield
        return
    with torch.cuda.stream(stream):
        late()
        yield


def spoil_free_memory():
    """On a GPU memory that is read too early would hold what the right program left there."""
    if not lab.emulated:
        spoiled = [torch.full((size,), float("nan"), device="cuda") for size in (4, 8, 1000) for _ in range(32)]
        torch.cuda.synchronize()
        del spoiled


def settled(value=0.0, size=4):
    """A tensor that both streams may use."""
    tensor = torch.full((size,), value, device="cuda")
    torch.cuda.synchronize()
    return tensor


def result_of_another_stream(right):
    a = settled()
    with torch.cuda.stream(stream):
        late()
        a.add_(1)
    if right:
        default.wait_stream(stream)
    return a.sum().item(), 4.0


def overwritten_while_it_is_read(right):
    a, b = settled(2.0), settled()
    with torch.cuda.stream(stream):
        late()
        b.copy_(a)
    if right:
        default.wait_stream(stream)
    a.zero_()
    torch.cuda.current_stream().synchronize()
    default.wait_stream(stream)
    return b.sum().item(), 8.0


def too_early_on_another_stream(right):
    a, b = settled(), settled()
    late()
    a.add_(1)
    if right:
        stream.wait_stream(default)
    with torch.cuda.stream(stream):
        b.copy_(a)
    stream.synchronize()
    return b.sum().item(), 4.0


def event_before_the_work(right):
    a, event = settled(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        if not right:
            event.record()
        late()
        a.add_(1)
        if right:
            event.record()
    event.wait()
    return a.sum().item(), 4.0


def freed_while_it_is_read(right):
    a = torch.full((1000,), 1.0, device="cuda")
    stream.wait_stream(default)
    with torch.cuda.stream(stream):
        late()
        b = a * 3
    if right:
        a.record_stream(stream)
    del a
    c = torch.full((1000,), 7.0, device="cuda")
    default.wait_stream(stream)
    return b.sum().item() + 0 * c.sum().item(), 3000.0


def slices_of_one_bucket(right):
    bucket = settled(size=64)
    with torch.cuda.stream(stream):
        late()
        bucket[:32].add_(1)
    # aligned like the right one: CUDA waits for all streams when it loads a kernel, and each alignment has its own
    bucket[32 if right else 16 :].mul_(2)
    torch.cuda.synchronize()
    return bucket.sum().item(), 32.0 if right else 48.0


def gradient_copied_by_a_hook(right):
    weight, bucket = settled(1.0).requires_grad_(), settled()

    def hook(parameter):
        if right:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            bucket.copy_(parameter.grad)

    weight.register_post_accumulate_grad_hook(hook)
    late()
    (weight * 3).sum().backward()
    stream.synchronize()
    return bucket.sum().item(), 12.0


def collective_not_waited_for(right):
    a, out = settled(1.0), settled()
    with late_stream():
        work = torch.distributed.all_gather_into_tensor(out, a, async_op=True)
    if right:
        work.wait()
    seen = out.sum().item()
    work.wait()
    return seen, 4.0


def input_of_a_collective_overwritten(right):
    a, out = settled(1.0), settled()
    with late_stream():
        work = torch.distributed.all_gather_into_tensor(out, a, async_op=True)
    if right:
        work.wait()
    a.zero_()
    torch.cuda.current_stream().synchronize()
    work.wait()
    return out.sum().item(), 4.0


def pinned_memory_read_too_early(right):
    a, host = settled(1.0), torch.zeros(4).pin_memory()
    late()
    host.copy_(a, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    return host.sum().item(), 4.0


def pinned_memory_overwritten(right):
    a, host = settled(), torch.ones(4).pin_memory()
    late()
    a.copy_(host, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    host.zero_()
    return a.sum().item(), 4.0


PAIRS = (
    result_of_another_stream,
    overwritten_while_it_is_read,
    too_early_on_another_stream,
    event_before_the_work,
    freed_while_it_is_read,
    slices_of_one_bucket,
    gradient_copied_by_a_hook,
    collective_not_waited_for,
    input_of_a_collective_overwritten,
    pinned_memory_read_too_early,
    pinned_memory_overwritten,
)

seen = {}
for right in (True, False):  # what is wrong may spoil memory that is used again
    for program in PAIRS:
        spoil_free_memory()
        computed, expected = program(right)
        torch.cuda.synchronize()
        seen[f"{program.__name__} {'right' if right else 'wrong'}"] = computed == expected
json.dump(seen, sys.stdout)
lab.close()
