"""Compiles core/device/copy_tiles.cu to PTX, with NVRTC; needs no GPU.

    python scripts/gpu/ptx.py LIBNVRTC

LIBNVRTC: libnvrtc.so of CUDA 11.2 to 11.8, e.g. of the wheel nvidia-cuda-nvrtc-cu11. The older the
compiler, the older the drivers that take its PTX: that of 11.8 runs from driver 520 on.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

DEVICE = Path(__file__).parents[2] / "core/device"
# Volta, the oldest whose threads of a warp advance by themselves; drivers compile it for the GPU.
ARCH = b"--gpu-architecture=compute_70"


def compile_ptx(library: str, source: bytes) -> bytes:
    """The PTX of a CUDA source."""
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        status = getattr(nvrtc, name)(*arguments)
        if status != 0:
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise SystemExit(f"{name}: {nvrtc.nvrtcGetErrorString(status).decode()}\n{log()}")

    def log() -> str:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.value.decode()

    call("nvrtcCreateProgram", ctypes.byref(program), source, b"copy_tiles.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(ARCH)
    call("nvrtcCompileProgram", program, len(options), options)
    size = ctypes.c_size_t()
    call("nvrtcGetPTXSize", program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    call("nvrtcGetPTX", program, ptx)
    return ptx.value


def main() -> None:
    """Writes the PTX beside its source."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    source = (DEVICE / "copy_tiles.cu").read_bytes()
    ptx = compile_ptx(sys.argv[1], source)
    lines = [line.rstrip() for line in ptx.decode().splitlines()]
    (DEVICE / "copy_tiles.ptx").write_text("\n".join(lines).strip() + "\n")
    print(f"copy_tiles.ptx: {len(lines)} lines")


if __name__ == "__main__":
    main()
