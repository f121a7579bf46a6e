"""Host memory that GPUs copy to and from without the CPU."""

from __future__ import annotations

from typing import Any

import torch

#: cudaHostRegisterPortable: for all GPUs of the process (CUDA Runtime API, "Memory Management").
_PORTABLE = 1


def pin(flat: torch.Tensor) -> None:
    """Pin the memory of a flat tensor in place, without a copy, until `unpin`.

    Raises:
        RuntimeError: It cannot be pinned.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    memory = flat.untyped_storage()
    code = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes(), _PORTABLE)
    torch.cuda.check_error(code)


def unpin(flat: torch.Tensor) -> None:
    """Unpin memory that `pin` pinned."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostUnregister(flat.untyped_storage().data_ptr()))
