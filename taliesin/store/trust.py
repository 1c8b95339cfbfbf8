"""Which files were hashed already, so that a block need not be hashed at every use.

Promises: a file counts as verified only as long as its identity (device, inode, size, times) is the
one it had, and only if it was old enough for a change to show there.
Deliberately does not know: how a payload is hashed (`blockfile`).
"""

from __future__ import annotations

import time
from typing import Literal

from taliesin.errors import UsageError
from taliesin.store.blockfile import BlockFile
from taliesin.store.index import Index

# A change within the clock tick of an earlier one leaves the change time as it was: a file this
# young proves nothing.
_RACY_SECONDS = 2.0

Policy = Literal["always", "once", "never"]
POLICIES: tuple[Policy, ...] = ("always", "once", "never")


def needs_verification(index: Index, block: BlockFile, policy: Policy) -> bool:
    """Whether the payload must be hashed when it is read; `once`: unless this file was, since its
    last change.
    """
    if policy not in POLICIES:
        raise UsageError("unknown verification policy", expected=" or ".join(POLICIES), got=policy)
    if policy != "once" or block.block_id is None:
        return policy != "never"
    return index.verified_stamp(block.block_id) != block.identity.stamp


def record_verified(index: Index, block: BlockFile) -> None:
    """Note that the payload was hashed and is right; not for a file that changed meanwhile or a
    moment ago.
    """
    settled = time.time() - block.identity.ctime_ns / 1e9 >= _RACY_SECONDS
    if block.block_id is not None and settled and block.unchanged():
        index.set_verified(block.block_id, block.identity.stamp, time.time())
