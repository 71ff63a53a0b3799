"""A program for ``test_other_systems.py``: a system becomes another one, as far as Python's ``os`` shows it, then the
packages are used. What Windows and macOS lack is from the pages "Availability" of Python's documentation of ``os``.
"""

import errno
import fcntl
import os
import shutil
import stat
import sys
import types

import torch
import torch._dynamo
import torch._inductor.compile_fx

LACKING = {
    "windows": {
        "modules": ("fcntl", "resource", "pwd", "grp", "termios"),
        "names": (
            "O_CLOEXEC",
            "O_DIRECTORY",
            "O_DSYNC",
            "O_NOATIME",
            "O_NOCTTY",
            "O_NOFOLLOW",
            "O_NONBLOCK",
            "O_NDELAY",
            "O_PATH",
            "O_SYNC",
            "O_TMPFILE",
            "O_DIRECT",
            "SEEK_DATA",
            "SEEK_HOLE",
            "chown",
            "fchmod",
            "fchown",
            "fork",
            "getegid",
            "geteuid",
            "getgid",
            "getpgid",
            "getuid",
            "killpg",
            "lockf",
            "mkfifo",
            "mknod",
            "posix_fadvise",
            "posix_fallocate",
            "posix_spawn",
            "pread",
            "preadv",
            "pwrite",
            "pwritev",
            "readv",
            "register_at_fork",
            "sched_getaffinity",
            "sysconf",
            "uname",
            "writev",
        ),
    },
    "macos": {
        "modules": (),
        "names": (
            "O_DIRECT",
            "O_NOATIME",
            "O_PATH",
            "O_TMPFILE",
            "copy_file_range",
            "eventfd",
            "getrandom",
            "getresuid",
            "memfd_create",
            "pidfd_open",
            "posix_fadvise",
            "posix_fallocate",
            "preadv",
            "pwritev",
            "sched_getaffinity",
            "sched_setaffinity",
            "splice",
        ),
    },
}


def become(system):
    """Take away what the system lacks."""
    if system == "windows":
        _windows()
    for name in LACKING[system]["names"]:
        if hasattr(os, name):
            delattr(os, name)
    for name in LACKING[system]["modules"]:
        sys.modules[name] = None


REAL = types.SimpleNamespace(**{n: getattr(os, n) for n in ("open", "write", "close", "rename", "replace", "unlink")})
BINARY, TEXT = 1 << 30, set()


def opening(path, flags, *args, **kwargs):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
    handle = REAL.open(path, flags & ~BINARY, *args, **kwargs)
    (TEXT.discard if flags & BINARY else TEXT.add)(handle)
    return handle


def writing(handle, data):
    if handle not in TEXT:
        return REAL.write(handle, data)
    REAL.write(handle, bytes(data).replace(b"\n", b"\r\n"))
    return len(data)


def closing(handle):
    TEXT.discard(handle)
    REAL.close(handle)


def free(path, *more):
    """Nothing of this process has the file, or one in the folder, open or mapped."""
    place = os.path.realpath(path)
    with open("/proc/self/maps") as maps:
        used = [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line]
    for handle in os.listdir("/proc/self/fd"):
        try:
            used.append(os.readlink(f"/proc/self/fd/{handle}"))
        except FileNotFoundError:
            continue
    if any(u == place or u.startswith(place + "/") for u in used):
        raise PermissionError(errno.EACCES, "in use by a process", os.fspath(path))


def renaming(source, target, **kwargs):
    free(source)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "exists", os.fspath(target))
    REAL.rename(source, target, **kwargs)


def replacing(source, target, **kwargs):
    free(source)
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "a folder", os.fspath(target))
    free(target)
    REAL.replace(source, target, **kwargs)


def removing(path, **kwargs):
    if stat.S_ISREG(os.lstat(path).st_mode):
        free(path)
    REAL.unlink(path, **kwargs)


def killing(process, sign):
    raise AssertionError("os.kill ends a process on Windows, whatever the signal")


def locking(handle, how, count):
    try:
        fcntl.flock(handle, (fcntl.LOCK_UN, None, fcntl.LOCK_EX | fcntl.LOCK_NB)[how])
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


def _windows():
    """How Windows opens, writes, renames, removes and locks."""
    os.O_BINARY = BINARY
    os.open, os.write, os.close, os.kill = opening, writing, closing, killing
    os.rename, os.replace, os.unlink, os.remove = renaming, replacing, removing, removing
    shutil._use_fd_functions = False
    sys.modules["msvcrt"] = types.SimpleNamespace(LK_UNLCK=0, LK_LOCK=1, LK_NBLCK=2, locking=locking)


def use(folder):
    """Compile, train, dump, save, load, export, sign, keep."""
    import pathlib

    import torchair
    from tair_export import load_air
    from tair_export.signing import sign, signed_by
    from torchair.inference import cache_compile

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    root = pathlib.Path(folder)
    (root / "dumps").mkdir()
    os.chdir(root / "dumps")
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 8)
    expected = net(x)

    for form in ("csv", "pbtxt", "txt", "py"):
        config = torchair.CompilerConfig()
        (config.debug.fx_summary if form == "csv" else config.debug.graph_dump).type = form
        torch._dynamo.reset()
        compiled = torch.compile(net, backend=torchair.get_npu_backend(compiler_config=config))
        torch.testing.assert_close(compiled(x), expected)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    left = sorted(p.suffix for p in pathlib.Path().rglob("*") if p.is_file())
    assert {".pbtxt", ".txt", ".py", ".csv"} <= set(left), left
    assert not [p for p in pathlib.Path().rglob(".*")]
    print("compile, train, dump")

    saved = root / "saved"
    for _ in range(2):  # onto itself, while a loaded one lives
        torchair.CompiledModel.save_graph(net, (x,), save_path=saved)
        model = torchair.CompiledModel.load_graph(saved)
        torch.testing.assert_close(model(x), expected)
    assert not [p for p in saved.rglob(".*")]
    torchair.dynamo_export(x, model=net, export_path=str(root / "export"), export_name="net")
    torch.testing.assert_close(load_air(root / "export" / "net.air")(x), expected)
    print("save, load, export")

    private, public = (pathlib.Path(p).read_bytes() for p in sys.argv[3:5])
    sign(saved, private, text="net 1")
    model = torchair.CompiledModel.load_graph(saved, authenticate=signed_by(public, text="net 1"))
    torch.testing.assert_close(model(x), expected)
    print("sign")

    for _ in range(2):
        torch._dynamo.reset()
        kept = cache_compile(net.forward, config=torchair.CompilerConfig(), cache_dir=str(root / "cache"))
        torch.testing.assert_close(kept(x), expected)
    assert [p for p in (root / "cache").rglob("*.air")]
    print("keep")


if __name__ == "__main__":
    become(sys.argv[1])
    with torch.device("cpu"):
        use(sys.argv[2])
