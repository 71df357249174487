"""Write a file as a whole or not at all."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, parts: Iterable[bytes], *, replace: bool, mode: int = 0o666) -> None:
    """Write `parts` to `path`; durable when it returns.

    Args:
        path: where; its folder must exist.
        parts: the content.
        replace: whether an existing file is replaced, or refused.
        mode: the new file's permissions, before the umask.

    Raises:
        OSError: nothing is left behind, and what stood at the path is untouched.
        ValueError: the path is none.
    """
    if replace and path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no regular file")
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path)
        else:
            os.link(draft, path)
    finally:
        with contextlib.suppress(OSError):  # where the folder is none, nothing was written
            draft.unlink(missing_ok=True)
