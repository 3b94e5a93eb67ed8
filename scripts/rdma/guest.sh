# Inside the virtual machine, as its first process after the kernel's own work: two Soft-RoCE devices
# (rxe0, rxe1) on interfaces that reach nobody else, then the command.  Sourced files: /job/*.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
. /job/environment
ulimit -l unlimited
ip link set lo up
for i in 0 1; do
  ip link add "rdma$i" type dummy
  ip link set "rdma$i" mtu 4200 up  # so that a path has the largest MTU of verbs, 4096
  ip address add "10.99.$i.1/24" dev "rdma$i"
  rdma link add "rxe$i" type rxe netdev "rdma$i"
done
# Nothing happens in here that the kernel could gather randomness from, and TLS would wait for it.
/usr/bin/python3 - <<'PY'
import fcntl, struct
seed = open("/job/seed", "rb").read()
with open("/dev/random", "wb") as device:
    fcntl.ioctl(device, 0x40085203, struct.pack("ii", 8 * len(seed), len(seed)) + seed)
PY
cd "$(cat /job/folder)" || exit 1
bash -c "$(cat /job/command)"
echo $? >/job/status
