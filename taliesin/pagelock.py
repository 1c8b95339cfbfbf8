"""Page-locked host memory: buffers that a GPU's copy engine reads at full speed, without a second copy by the driver.

Promises only speed: a buffer that could not be locked works all the same. Uses the CUDA runtime of the installed driver through
ctypes; no other module of the package knows CUDA, and nothing here is called on a machine without a GPU in use.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_PORTABLE = 1  # cudaHostRegisterPortable: locked for every context, llama.cpp's included
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
        return library
    return None


def _address(buffer: memoryview) -> int:
    return ctypes.addressof((ctypes.c_uint8 * buffer.nbytes).from_buffer(buffer))


def lock(buffer: memoryview) -> bool:
    """Lock a writable, page-aligned buffer; whether that succeeded. It takes real memory from now on, filler included."""
    runtime = _runtime()
    return runtime is not None and runtime.cudaHostRegister(_address(buffer), buffer.nbytes, _PORTABLE) == 0


def unlock(buffer: memoryview) -> None:
    """Undo `lock`, which must have succeeded."""
    _runtime().cudaHostUnregister(_address(buffer))
