"""A group on the collectives of torch.distributed, for engines that have a process group already."""

from __future__ import annotations

from typing import Any

from kerf import _kerf
from kerf._kerf import Group


def from_torch(process_group: Any = None, *, rank_order: bool = True, checked: bool = True) -> Group:
    """This process's rank of a torch.distributed process group (left out: the default one).

    kerf calls ``all_gather_into_tensor`` and ``all_to_all_single`` of it, and with ``rank_order=False`` its
    ``all_reduce``, whose order of sums it does not promise; otherwise kerf forms sums itself, in rank order, with the
    bits of every other group. Host tensors go as they are where the group's backend takes them, else by way of the
    current CUDA device. ``checked``: each collective first tells all ranks what it is, so that a mix-up ends in words.
    How long a missing rank is waited for is the process group's to say.

    The process group must outlive the group, which lets go of it when it is closed, at the latest when the interpreter
    ends: before that ``destroy_process_group()`` does not end the threads of a group other than the default one. Raises
    RuntimeError where torch.distributed is not initialised, and torch's ValueError where this process is not in the process
    group.
    """
    import atexit

    import torch
    import torch.distributed as dist

    group = dist.group.WORLD if process_group is None else process_group
    if not dist.is_available() or not dist.is_initialized() or group is None:
        raise RuntimeError("torch.distributed is not initialised: call init_process_group() first")
    # Not held where it is the default: it ends when it is destroyed, and its threads with it. A thread of gloo's that is
    # still there when the interpreter ends, with a tensor of Python's, ends the process by an abort.
    held: list[Any] = [None if group is dist.group.WORLD else group]
    atexit.register(held.clear)

    def its() -> Any:
        if not held:
            raise RuntimeError("this group has been closed")
        return held[0]

    # Newer releases have another name for the first of these, and warn of it.
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    on_host = "gloo" in str(dist.get_backend(group)) or "mpi" in str(dist.get_backend(group))

    def there(tensor: Any) -> Any:
        return tensor if on_host else tensor.cuda()

    def all_gather(mine: Any, everything: Any, what: str) -> None:
        to = torch.from_dlpack(everything)
        received = to if on_host else torch.empty_like(to, device="cuda")
        gather(received, there(torch.from_dlpack(mine)), group=its())
        if received is not to:
            to.copy_(received)

    def all_to_all(send: Any, send_bytes: list[int], received: Any, received_bytes: list[int], what: str) -> None:
        to = torch.from_dlpack(received)
        landed = to if on_host else torch.empty_like(to, device="cuda")
        dist.all_to_all_single(landed, there(torch.from_dlpack(send)), received_bytes, send_bytes, group=its())
        if landed is not to:
            to.copy_(landed)

    def all_reduce(values: Any, what: str) -> None:
        here = torch.from_dlpack(values)
        summed = there(here)
        dist.all_reduce(summed, group=its())
        if summed is not here:
            here.copy_(summed)

    size = dist.get_world_size(group)
    return _kerf.engine_group(
        dist.get_rank(group),
        size,
        f"torch-{dist.get_backend(group)}",
        all_gather,
        all_to_all,
        None if rank_order else all_reduce,
        False,
        rank_order,
        checked,
        _local_ranks(size),
        held.clear,
    )


def _local_ranks(size: int) -> int:
    import os

    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdigit() and 0 < int(told) <= size else size
