#!/bin/sh
# First process under qemu: modules, this machine's files below a layer in memory, then guest.sh.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module" 2>/dev/null || true; done </modules/order
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose hostroot /below
$b mount -t tmpfs -o size=80% above /above
$b mkdir /above/files /above/work
$b mount -t overlay -o lowerdir=/below,upperdir=/above/files,workdir=/above/work root /root
for folder in proc sys dev; do $b mount --move "/$folder" "/root/$folder"; done
$b mkdir -p /root/dev/shm /root/dev/pts /root/job
$b mount -t tmpfs shm /root/dev/shm
$b mount -t devpts pts /root/dev/pts
$b mount -t tmpfs run /root/run
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 job /root/job
$b cp $b /root/run/busybox
/bin/busybox cat >/root/run/start <<'START'
/bin/bash /job/guest.sh
/run/busybox sync
/run/busybox poweroff -f
START
exec $b switch_root /root /bin/bash /run/start
