#!/bin/bash
# First process of the User-Mode Linux: this machine's files below a layer in memory, then guest.sh.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
grep -q ' /dev devtmpfs' /proc/mounts || mount -t devtmpfs dev /dev
mount -t sysfs sys /sys
mount -t tmpfs -o size=90% layer /run
mkdir -p /run/{above,work,root}
mount -t overlay -o lowerdir=/,upperdir=/run/above,workdir=/run/work root /run/root
for folder in proc sys dev; do mount --move "/$folder" "/run/root/$folder"; done
new=/run/root
mkdir -p "$new"/{job,dev/shm,dev/pts}
mount -t tmpfs run "$new/run"
mount -t tmpfs -o size=90% shm "$new/dev/shm"
mount -t devpts pts "$new/dev/pts"
mount -t hostfs -o "@JOB@" none "$new/job"
chroot "$new" /bin/bash /job/guest.sh
chroot "$new" /bin/busybox poweroff -f
