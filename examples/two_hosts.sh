# python -m dsfix run sh examples/two_hosts.sh
# Two network namespaces on one machine, connected by a veth pair, act as two hosts. Needs root and `ip`.
. "$(dirname "$0")/cpu.sh"
first="dsfix-$$-1" second="dsfix-$$-2"
trap 'ip netns del "$first"; ip netns del "$second"' EXIT
ip netns add "$first" && ip netns add "$second" || exit
ip link add hosts netns "$first" type veth peer name hosts netns "$second" || exit
for host in 1 2; do
    ip -n "dsfix-$$-$host" address add "10.99.0.$host/24" dev hosts || exit
    ip -n "dsfix-$$-$host" link set lo up && ip -n "dsfix-$$-$host" link set hosts up || exit
done
export GLOO_SOCKET_IFNAME=hosts

agent() { # number of the host, whether it hosts the rendezvous
    ip netns exec "dsfix-$$-$1" torchrun --nnodes 2 --nproc_per_node 1 --rdzv_id "$$" --rdzv_backend c10d \
        --rdzv_endpoint 10.99.0.1:29400 --rdzv_conf "is_host=$2" --local_addr "10.99.0.$1" train.py
}

agent 2 false &
agent 1 true
status=$?
wait $! || status=1
exit $status
