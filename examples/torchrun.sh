# python -m dsfix run sh examples/torchrun.sh
. "$(dirname "$0")/cpu.sh"
exec torchrun --standalone --nproc_per_node 2 train.py
