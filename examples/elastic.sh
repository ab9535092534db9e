# python -m dsfix run sh examples/elastic.sh
. "$(dirname "$0")/cpu.sh"
exec python -m torch.distributed.run --standalone --nproc_per_node 2 --max_restarts 2 elastic.py
