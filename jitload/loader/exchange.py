"""torch's side of a call: the functions of DLPack's exchange table, as addresses for compiled code."""

from __future__ import annotations

import ctypes
import functools
import sys

_MAJOR = 1  # of DLPack; another major may lay the table out differently


class Exchange:  # by hand: making a dataclass, or a named tuple, is a tenth of a first hit
    """What compiled code needs of torch.

    Attributes:
        view: `dltensor_from_py_object_no_sync`, which fills in a DLTensor for a tensor, or 0.
        current_stream: `current_work_stream`, which knows a device's current stream, or 0.
        allocator: `managed_tensor_allocator`, which makes a tensor, or 0.
        tensor_types: `torch.Tensor` and `torch.nn.Parameter`.
    """

    __slots__ = ("allocator", "current_stream", "tensor_types", "view")

    def __init__(self, *, view: int, current_stream: int, allocator: int, tensor_types: tuple[type, type]) -> None:
        self.view = view
        self.current_stream = current_stream
        self.allocator = allocator
        self.tensor_types = tensor_types


@functools.lru_cache(maxsize=1)
def torch_exchange() -> Exchange | None:
    """Return torch's exchange table, or None without torch or with one that has none (before 2.10).

    The table: version (two 32-bit words), previous table, then allocator, import, export, view and current stream.
    """
    torch = sys.modules.get("torch")
    capsule = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    if torch is None or capsule is None:
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = get(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(table).value != _MAJOR:
        return None
    words = (ctypes.c_size_t * 7).from_address(table)
    tensor_types = (torch.Tensor, torch.nn.Parameter)
    return Exchange(view=words[5], current_stream=words[6], allocator=words[2], tensor_types=tensor_types)
