"""The state of a trial as named tensors and a small rest: for other workers, and for checkpoints."""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any

import torch

# As safetensors calls them.
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
# The tensor of a checkpoint that holds everything but tensors.
REST = "pollux_tune.rest"


def pack(state: dict[str, Any]) -> tuple[bytes, list[tuple[str, torch.Tensor]]]:
    """Everything but tensors, and the tensors with their names; those of the model have its own."""
    names = {id(tensor): f"model.{name}" for name, tensor in state["model"].items()}
    tensors: list[tuple[str, torch.Tensor]] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> int | None:
            if not isinstance(value, torch.Tensor) or value.dtype not in _NAMES or value.layout != torch.strided:
                return None
            tensors.append((names.get(id(value), f"state.{len(tensors)}"), value.detach()))
            return len(tensors) - 1

    out = io.BytesIO()
    Pickler(out).dump(state)
    return out.getvalue(), tensors


def unpack(rest: bytes, tensors: list[torch.Tensor]) -> dict[str, Any]:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: int) -> torch.Tensor:
            return tensors[place]

    return Unpickler(io.BytesIO(rest)).load()


def to_file(rest: bytes, tensors: list[tuple[str, torch.Tensor]]) -> list[tuple[str, str, list[int], bytes]]:
    """What a checkpoint has: names, types, shapes and bytes."""
    parts = [(REST, "U8", [len(rest)], rest)]
    for name, tensor in tensors:
        tensor = tensor.cpu().contiguous()
        data = ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""
        parts.append((name, _NAMES[tensor.dtype], list(tensor.shape), data))
    return parts


def from_file(parts: list[tuple[str, str, list[int], bytes]]) -> dict[str, Any]:
    # Tensors without numbers may have changed places: names say which is which.
    rest, tensors, order = b"", {}, []
    for name, dtype, shape, data in parts:
        if name == REST:
            rest = bytes(data)
            continue
        made = torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype]) if data else torch.empty(0, dtype=_DTYPES[dtype])
        tensors[name] = made.reshape(shape)
        order.append(name)
    names = pickle.loads(rest)
    return unpack(names["rest"], [tensors[name] for name in names["order"]])


def seal(rest: bytes, tensors: list[tuple[str, torch.Tensor]]) -> bytes:
    """The rest with the order of the tensors."""
    return pickle.dumps({"rest": rest, "order": [name for name, _ in tensors]})
