"""Process groups of a trial: private, formed in an authenticated room, and aborted from another thread."""

from __future__ import annotations

import datetime
import hashlib
import os
import pickle
import socket
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from .elastic_state import pack, unpack

CONNECT_S = 15.0
STEP_S = 300.0
# Both ends of a dead link notice it within 10 s.
_LINK_S = 10


class _RoomStore(dist.Store):
    """What libtorch sees of a room."""

    def __init__(self, room: Any) -> None:
        super().__init__()
        self._room = room

    def set(self, key: str, value: Any) -> None:
        self._room.set(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._room.get(key, CONNECT_S)

    def add(self, key: str, amount: int) -> int:
        return self._room.add(key, amount)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._room.wait(list(keys), CONNECT_S if timeout is None else timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        return self._room.contains(list(keys))

    def delete_key(self, key: str) -> bool:
        return self._room.delete(key)


def _sockets() -> list[socket.socket]:
    """Duplicates of all TCP sockets of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
            found.append(one)
        else:
            one.close()
    return found


def _listening() -> set[int]:
    ports = set()
    for one in _sockets():
        with one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(one.getsockname()[1])
    return ports


class Group:
    """One process group; nothing of it is known to `torch.distributed`'s own default group."""

    def __init__(self, worker: Any, room: Any, name: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._cuda = worker.is_gpu
        self.device = torch.device("cuda", 0) if self._cuda else torch.device("cpu")
        self._store = _RoomStore(room)
        self._links: list[socket.socket] = []
        store = dist.PrefixStore(name, self._store)
        self.pg = dist.ProcessGroup(store, rank, size)
        if self._cuda:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = datetime.timedelta(seconds=STEP_S)
            self._backend = dist.ProcessGroupNCCL(store, rank, size, options)
            kind = dist.ProcessGroup.BackendType.NCCL
        else:
            self._backend = self._gloo(worker, room, name, store)
            kind = dist.ProcessGroup.BackendType.GLOO
        self.pg._register_backend(self.device, kind, self._backend)
        self.pg._set_default_backend(kind)
        self._tokens = self._exchange(room, name)

    def _gloo(self, worker: Any, room: Any, name: str, store: Any) -> Any:
        before = _listening()
        options = dist.ProcessGroupGloo._Options()
        # Gloo lets a connection take five times as long.
        options._timeout = datetime.timedelta(seconds=CONNECT_S / 5)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=worker.host)]
        own = _listening() - before
        room.set(f"{name}/port/{self.rank}", ",".join(map(str, own)).encode())
        ports = set()
        for rank in range(self.size):
            text = room.get(f"{name}/port/{rank}", CONNECT_S).decode()
            ports |= {int(port) for port in text.split(",") if port} if rank != self.rank else set()
        backend = dist.ProcessGroupGloo(store, self.rank, self.size, options)
        backend._set_default_timeout(datetime.timedelta(seconds=STEP_S))
        for one in _sockets():
            try:
                is_own = one.getsockname()[1] in own or one.getpeername()[1] in ports
                if is_own and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LINK_S // 2)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _LINK_S // 2)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _LINK_S)
                    self._links.append(one)
                    continue
            except OSError:
                pass  # It is closed, or not connected.
            one.close()
        return backend

    def _exchange(self, room: Any, name: str) -> list[tuple[int, int]]:
        """Random numbers by which members show that they are those who are in the room: Gloo takes whoever calls first."""
        room.set(f"{name}/token/{self.rank}", _core.token().encode())
        tokens = []
        for rank in range(self.size):
            digits = room.get(f"{name}/token/{rank}", CONNECT_S).decode()
            high, low = (int(part, 16) - (1 << 63) for part in (digits[:16], digits[16:]))
            tokens.append((high, low))
        return tokens

    def gather(self, number: int) -> list[int]:
        """A number of each member."""
        mine = torch.tensor([number, *self._tokens[self.rank]], dtype=torch.int64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self.pg.allgather([everyone], [mine]).wait()
        numbers = []
        for rank, theirs in enumerate(everyone):
            number, high, low = theirs.tolist()
            if (high, low) != self._tokens[rank]:
                raise ConnectionError(f"who connected as rank {rank} is no member of the group")
            numbers.append(number)
        return numbers

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all members, in place."""
        self.pg.allreduce([tensor]).wait()
        return tensor

    def sum_by_name(self, sums: dict[str, float]) -> dict[str, float]:
        """The sums over all members. A name that a member does not have counts as nothing there."""
        names = sorted(sums)
        text = "\0".join(names).encode()
        # All have the same names, unless somebody had no examples, or only such as some names are not about.
        digests = self.gather(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)
        if len(set(digests)) > 1:
            names = sorted({name for others in self._gather_names(text) for name in others})
        values = torch.tensor([sums.get(name, 0.0) for name in names], dtype=torch.float64, device=self.device)
        return dict(zip(names, self.all_reduce(values).tolist())) if names else {}

    def _gather_names(self, text: bytes) -> list[list[str]]:
        lengths = self.gather(len(text))
        mine = torch.zeros(max(lengths), dtype=torch.uint8, device=self.device)
        mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        self.pg.allgather([everyone], [mine]).wait()
        texts = [bytes(theirs[:length].tolist()).decode() for theirs, length in zip(everyone, lengths)]
        return [text.split("\0") if text else [] for text in texts]

    def hand_over(self, source: int, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The state of one member, for all others."""
        header = torch.zeros(0, dtype=torch.uint8)
        tensors: list[torch.Tensor] = []
        if state is not None:
            rest, named = pack(state)
            tensors = [tensor for _, tensor in named]
            shapes = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
            header = torch.frombuffer(bytearray(pickle.dumps((rest, shapes))), dtype=torch.uint8)
        length = self.gather(len(header))[source]
        header = self._broadcast(header.to(self.device), (length,), torch.uint8, source)
        rest, shapes = pickle.loads(bytes(header.cpu().tolist()) if length < 1 << 16 else header.cpu().numpy().tobytes())
        received: list[Any] = [None] * len(shapes)
        for dtype in dict.fromkeys(dtype for dtype, _ in shapes):
            places = [place for place, (other, _) in enumerate(shapes) if other == dtype]
            sizes = [int(torch.Size(shapes[place][1]).numel()) for place in places]
            flat = torch.empty(0, dtype=dtype, device=self.device)
            if state is not None:
                flat = torch.cat([tensors[place].reshape(-1).to(self.device) for place in places])
            if dtype == torch.bool:
                flat = flat.to(torch.uint8)
            flat = self._broadcast(flat, (sum(sizes),), flat.dtype, source).to(dtype)
            for place, part in zip(places, flat.split(sizes)):
                received[place] = part.reshape(shapes[place][1])
        return None if state is not None else unpack(rest, received)

    def _broadcast(self, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, source: int) -> torch.Tensor:
        if self.rank != source:
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
        options = dist.BroadcastOptions()
        options.rootRank = source
        self.pg.broadcast([tensor], options).wait()
        return tensor

    def abort(self) -> None:
        """Makes whoever waits for a member give up. May be called on any thread, and more than once."""
        if self._cuda:
            self._backend.abort()
        for link in self._links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It is closed already.

    def close(self) -> None:
        self.abort()
        for link in self._links:
            link.close()
        self._links = []
        self.pg = self._backend = None
