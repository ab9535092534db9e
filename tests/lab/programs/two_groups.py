"""Two ranks whose hosts wait for collectives of two process groups in opposite orders. Prints the sum."""

from dsfix.lab import Lab

lab = Lab()
torch, _ = lab.torch, lab.deepspeed
distributed = torch.distributed
groups = [distributed.new_group([0, 1]) for _ in range(2)]
streams = [torch.cuda.Stream() for _ in groups]
values = []
for step in range(3):
    values = [torch.full((4,), float(step + 1), device=lab.device) for _ in groups]
    for value, group, stream in zip(values, groups, streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            distributed.all_reduce(value, group=group)
    for stream in streams if lab.rank else reversed(streams):
        stream.synchronize()
    if lab.rank == 0:
        assert values[0].sum().item() == 8.0 * (step + 1)  # the host of one rank alone
    distributed.barrier()
print(sum(value.sum().item() for value in values))
lab.close()
