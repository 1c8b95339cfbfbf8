"""Page-locked host memory: buffers that a GPU's copy engine reads at full speed, without a second
copy by the driver.

Promises only speed: a buffer that could not be locked works all the same. Uses the CUDA runtime of
the installed driver through ctypes; no other module of the package knows CUDA, and nothing here is
called on a machine without a GPU in use.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Any

_PORTABLE = 1  # cudaHostRegisterPortable: locked for every context, llama.cpp's included
_TO_DEVICE = 1  # cudaMemcpyHostToDevice
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


@cache
def _runtime() -> Any:
    """The CUDA runtime library, or None where there is none."""
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.cudaHostRegister.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        library.cudaHostUnregister.argtypes = (ctypes.c_void_p,)
        library.cudaMalloc.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t)
        library.cudaFree.argtypes = (ctypes.c_void_p,)
        library.cudaMemcpy.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
        )
        return library
    return None


def address(buffer: memoryview) -> int:
    """Where a writable buffer begins."""
    return ctypes.addressof((ctypes.c_uint8 * buffer.nbytes).from_buffer(buffer))


def lock(buffer: memoryview) -> bool:
    """Lock a writable, page-aligned buffer; whether that succeeded. It takes real memory from now
    on, filler included.
    """
    runtime = _runtime()
    if runtime is None:
        return False
    if runtime.cudaHostRegister(address(buffer), buffer.nbytes, _PORTABLE):
        # or llama.cpp's next check of a kernel would find this failure and abort
        runtime.cudaGetLastError()
        return False
    return True


def unlock(buffer: memoryview) -> None:
    """Undo `lock`, which must have succeeded."""
    _runtime().cudaHostUnregister(address(buffer))


def copy_seconds(buffer: memoryview, times: int = 3) -> float | None:
    """Seconds of the quickest of some plain copies of `buffer` to the GPU: its limit, if that is
    locked. None: no GPU memory.
    """
    runtime = _runtime()
    target, n_bytes = ctypes.c_void_p(), buffer.nbytes
    if runtime is None or runtime.cudaMalloc(ctypes.byref(target), n_bytes):
        return None
    try:
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            failed = runtime.cudaMemcpy(target, address(buffer), n_bytes, _TO_DEVICE)
            seconds.append(time.perf_counter() - started)
            if failed:
                return None
        return min(seconds)
    finally:
        runtime.cudaFree(target)
