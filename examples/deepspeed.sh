# python -m dsfix run sh examples/deepspeed.sh
. "$(dirname "$0")/cpu.sh"
exec "${LAUNCHER:-deepspeed}" --num_gpus 2 train.py
