"""Compiles the kernels while the wheel is built: with the compiler that `CC` names, or else with Zig's, from PyPI."""

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import jax
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETS = {"any": (None, 16), "avx2": ("x86-64-v3", 32), "avx512": ("x86-64-v4", 64)}
"""Instruction sets and the bytes of their vectors; processors other than x86-64 have the first only."""
GLIBC = (2, 17)
"""The oldest C library that Zig is asked to link with."""
FLAGS = ("-std=c11", "-O3", "-g0", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-fvisibility=hidden", "-Wall")


class Compile(BuildHookInterface):
    """Adds the shared library to the wheel, and names the platform it is for."""

    def initialize(self, version, build_data):
        name = "_fedhsa_native/libfedhsa_native.so"
        compile_library(Path(self.root, "c"), Path(self.root, name))
        build_data["artifacts"].append(name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"


def compile_library(source: Path, library: Path) -> None:
    """Compiles the kernels for every instruction set, and links them with the handlers that XLA calls."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, "ffi.o")]
        _run(*compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", "-c", source / "ffi.c", "-o", objects[0])
        for name in SETS if platform.machine().lower() in ("x86_64", "amd64") else ["any"]:
            level, size = SETS[name]
            macros = [f"-DVECTOR_BYTES={size}", f"-DKERNELS=kernels_{name}"]
            march = [f"-march={level.replace('-', '_') if _is_zig() else level}"] if level else []
            objects.append(Path(folder, f"{name}.o"))
            _run(*compiler, *FLAGS, *march, *macros, "-c", source / "kernels.c", "-o", objects[-1])
        _run(*compiler, "-shared", *objects, "-o", library)


def find_compiler() -> list[str]:
    """The command of the C compiler."""
    if not _is_zig():
        return shlex.split(os.environ["CC"])
    target = f"{platform.machine()}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    return [sys.executable, "-m", "ziglang", "cc", *(["-target", target] if sys.platform == "linux" else [])]


def platform_tag() -> str:
    """Where the wheel can be installed: a compiler of this system's own may need this system's C library."""
    if _is_zig() and sys.platform == "linux":
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _is_zig() -> bool:
    return not os.environ.get("CC")


def _run(*command) -> None:
    subprocess.run([str(part) for part in command], check=True)
