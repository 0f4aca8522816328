"""Small and read-only disks, for processes of the nursery: each has mounts of its own, which end with it.

A tmpfs in a mount namespace, as root or, where the kernel lets everybody, in a user namespace besides. (Permissions
would not do for a read-only directory: root ignores them.)
"""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1, 0x20, 0x1000, 0x4000, 0x40000, 0x2
REFUSED = "MOUNTING IS NOT ALLOWED HERE, so this test proves nothing"


def mount_small_disk(place: Path, size: str) -> bool:
    """Leave the others' mounts, and put a disk of this size there; False if this machine does not allow it."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", CLONE_NEWNS | (0 if user == 0 else CLONE_NEWUSER))
        if user:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        _mount("none", Path("/"), None, MS_REC | MS_PRIVATE, "")
        place.mkdir(parents=True, exist_ok=True)
        _mount("tmpfs", place, "tmpfs", 0, f"size={size}")
    except PermissionError:
        return False
    return True


def resize(place: Path, size: str) -> None:
    """Another size for the disk."""
    _mount("tmpfs", place, None, MS_REMOUNT, f"size={size}")


def make_read_only(place: Path) -> None:
    """Nobody can write to it any more."""
    _mount("tmpfs", place, None, MS_REMOUNT | MS_RDONLY, "")


def freeze(place: Path) -> None:
    """From now on nobody can write there, also while files are open: as a disk does that has found an error.

    The kernel makes nothing read-only that somebody writes to, so a read-only view is laid over it.
    """
    _mount(str(place), place, None, MS_BIND, "")
    _mount("none", place, None, MS_BIND | MS_REMOUNT | MS_RDONLY, "")


def thaw(place: Path) -> None:
    """Undo `freeze`."""
    _call("umount2", str(place).encode(), MNT_DETACH)


def fill(place: Path, leave: int = 0) -> None:
    """Leave so many bytes of the disk, rounded down to pages."""
    status = os.statvfs(place)
    with (place / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, (status.f_bavail - -(-leave // 4096)) * 4096))


def make_room(place: Path) -> None:
    """Take away what `fill` put there."""
    (place / "filler").unlink(missing_ok=True)


def _mount(source: str, place: Path, kind: str | None, flags: int, options: str) -> None:
    encoded = None if kind is None else kind.encode()
    _call("mount", source.encode(), str(place).encode(), encoded, flags, options.encode())


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
