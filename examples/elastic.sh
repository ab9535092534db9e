# python -m dsfix run sh examples/elastic.sh
. "$(dirname "$0")/cpu.sh"
# a separate store per attempt: in the store that torch's agent keeps (seen with 2.13) workers find the addresses of
# dead ones (https://github.com/pytorch/pytorch/issues/135712)
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec python -m torch.distributed.run --standalone --nproc_per_node 2 --max_restarts 1 elastic.py
