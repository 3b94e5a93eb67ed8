#!/usr/bin/env bash
# Runs a command in a throw-away virtual machine that has RDMA devices (Soft-RoCE), with this
# machine's files visible and unchanged by what it writes.  The exit status is the command's.
#
#   scripts/rdma/vm.sh [-k uml|qemu] [-m MiB] [-t SECONDS] -- COMMAND...
#
#   uml   a User-Mode Linux kernel: built once, 7 minutes; then a start takes 2 s
#   qemu  the distribution's kernel, emulated: nothing to build, a start takes 10 s, ten times slower
# Without -k: uml if its kernel is there, else qemu.  The kernels lie in INFINISTORE_RDMA_CACHE
# (default: ~/.cache/infinistore/rdma).  What the command shall leave goes to /job/out, and comes to
# INFINISTORE_RDMA_OUT.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${INFINISTORE_RDMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/infinistore/rdma}
kind='' memory=3072 limit=900
while getopts k:m:t: option; do
  case $option in
    k) kind=$OPTARG ;;
    m) memory=$OPTARG ;;
    t) limit=$OPTARG ;;
    *) exit 64 ;;
  esac
done
shift $((OPTIND - 1))
[ "${1:-}" != -- ] || shift
[ $# -gt 0 ] || { echo "vm.sh: give a command" >&2; exit 64; }
[ -n "$kind" ] || { [ -x "$CACHE/linux" ] && kind=uml || kind=qemu; }

missing() {
  local need
  for need in "$@"; do command -v "$need" >/dev/null || [ -e "$need" ] || echo "$need"; done
}
install_packages() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >&2
  else
    echo "vm.sh: install, on Debian as root: apt-get install $*" >&2
    exit 69
  fi
}

build_uml() {
  [ -z "$(missing gcc make flex bison bc xz /bin/busybox ip)" ] ||
    install_packages gcc make flex bison bc xz-utils busybox-static iproute2
  local work
  work=$(mktemp -d)
  (
    cd "$work"
    apt-get download -qq linux-source-6.1
    dpkg -x linux-source-6.1_*.deb .
    mkdir source
    tar -xf usr/src/linux-source-6.1.tar.xz -C source --strip-components=1
    cd source
    make -s ARCH=um KCONFIG_ALLCONFIG="$HERE/uml.config" allnoconfig
    make -s ARCH=um -j"$(nproc)" linux
    strip -o "$CACHE/linux.new" linux
  ) >"$CACHE/build.log" 2>&1 || { tail -20 "$CACHE/build.log" >&2; rm -rf "$work"; exit 1; }
  rm -rf "$work"
  mv "$CACHE/linux.new" "$CACHE/linux"
}

# The distribution's kernel as an ELF file, which starts without unpacking itself, and the modules.
fetch_qemu() {
  [ -z "$(missing qemu-system-x86_64 modprobe cpio ip /bin/busybox)" ] ||
    install_packages qemu-system-x86 seabios busybox-static kmod cpio iproute2
  local package release image
  package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
  release=${package#linux-image-}
  (cd "$CACHE" && apt-get download -qq "$package" >/dev/null 2>&1 &&
    dpkg -x "$package"_*.deb tree && rm -f "$package"_*.deb)
  depmod -b "$CACHE/tree" "$release"
  python3 - "$CACHE/tree/boot/vmlinuz-$release" "$CACHE/vmlinux" <<'PY'
import lzma, sys
packed = open(sys.argv[1], "rb").read()
at = packed.find(b"\xfd7zXZ\0")
while at >= 0:
    try:
        kernel = lzma.LZMADecompressor().decompress(packed[at:])
    except lzma.LZMAError:
        kernel = b""
    if kernel.startswith(b"\x7fELF"):
        open(sys.argv[2], "wb").write(kernel)
        sys.exit()
    at = packed.find(b"\xfd7zXZ\0", at + 1)
sys.exit("there is no kernel in that image")
PY
  image=$CACHE/image
  rm -rf "$image"
  mkdir -p "$image"/{bin,modules,proc,sys,dev,below,above,root}
  cp /bin/busybox "$image/bin/busybox"
  ln -s busybox "$image/bin/sh"
  local module file
  for module in virtio_pci 9pnet_virtio 9p overlay crc32_generic crc32c_generic dummy ib_uverbs rdma_rxe; do
    modprobe -d "$CACHE/tree" -S "$release" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$image/modules/"
    basename "$file" >>"$image/modules/order"
  done
  cp "$HERE/qemu_init.sh" "$image/init"
  chmod +x "$image/init"
  (cd "$image" && find . | cpio -o -H newc --quiet | gzip -1) >"$CACHE/initrd.new"
  mv "$CACHE/initrd.new" "$CACHE/initrd"
}

run_uml() {
  sed "s#@JOB@#$job#" "$HERE/uml_init.sh" >"$job/init"
  chmod +x "$job/init"
  TMPDIR=/dev/shm timeout -k 5 "$limit" "$CACHE/linux" mem="${memory}M" root=/dev/root \
    rootfstype=hostfs rootflags=/ ro quiet loglevel=3 con=null con0=null,fd:1 con1=null ssl=null \
    init="$job/init" </dev/null || true
}
run_qemu() {
  timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi,tb-size=512 -cpu max -M q35 \
    -m "$memory" -smp 1 -nodefaults -no-user-config -display none -serial stdio -no-reboot -net none \
    -kernel "$CACHE/vmlinux" -initrd "$CACHE/initrd" \
    -append "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off tsc=reliable no_timer_check" \
    -fsdev local,id=r,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=r,mount_tag=hostroot \
    -fsdev local,id=j,path="$job",security_model=none -device virtio-9p-pci,fsdev=j,mount_tag=job </dev/null || true
}

mkdir -p "$CACHE"
if [ "$kind" = uml ]; then
  [ -x "$CACHE/linux" ] || build_uml
else
  [ -s "$CACHE/initrd" ] || fetch_qemu
fi
[ -z "$(missing ip rdma)" ] || install_packages iproute2
[ -n "$(ls /usr/lib/*/libibverbs/librxe-rdmav*.so 2>/dev/null)" ] || install_packages libibverbs1 ibverbs-providers
job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
mkdir "$job/out"
printf '%q ' "$@" >"$job/command"
pwd >"$job/folder"
head -c 64 /dev/urandom >"$job/seed"
export -p | grep -E ' (VIRTUAL_ENV|PYTHONPATH|CI|INFINISTORE_[A-Z_]+)=' >"$job/environment" || true
cp "$HERE/guest.sh" "$job/guest.sh"
"run_$kind"
if [ -n "${INFINISTORE_RDMA_OUT:-}" ]; then
  mkdir -p "$INFINISTORE_RDMA_OUT"
  cp -r "$job/out/." "$INFINISTORE_RDMA_OUT/"
fi
[ -s "$job/status" ] || echo "vm.sh: the machine ended before the command did ($kind, at most $limit s)" >&2
exit "$(cat "$job/status" 2>/dev/null || echo 125)"
