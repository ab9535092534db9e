# python -m dsfix run sh examples/deepspeed.sh
. "$(dirname "$0")/cpu.sh"
exec deepspeed --num_gpus 2 train.py
