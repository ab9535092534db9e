# python -m dsfix run sh examples/accelerate.sh
. "$(dirname "$0")/cpu.sh"
exec accelerate launch --config_file accelerate.yaml accelerate_train.py
