# Settings for DeepSpeed and gloo on one machine without a GPU.
export DS_ACCELERATOR=cpu LOCAL_SIZE=2 OMP_NUM_THREADS=1
export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-lo}"
cd "$(dirname "$0")" || exit
