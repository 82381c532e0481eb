"""The hook of the build back end (hatchling) that puts jitload's machine code into a wheel, or into a checkout."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface[Any]):
    """Builds `jitload/native/` before a wheel is made, also before that of an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the machine code, and give the wheel the tag of the platform that it is for.

        Raises:
            JitLoadError, OSError: The code of a wheel cannot be compiled. An editable install only warns, because the
                code is built at its first use, too.
        """
        if self.target_name != "wheel" or sys.platform != "linux":
            return  # elsewhere, jitload can only be imported
        sys.path.insert(0, self.root)
        from jitload.building.native import NAMES, NATIVE_DIR, build_native
        from jitload.errors import JitLoadError
        from jitload.settings import read_settings
        from jitload.toolchain.host import find_compiler

        try:
            build_native(NAMES, find_compiler(read_settings()).command, NATIVE_DIR)
        except (JitLoadError, OSError) as error:
            if version != "editable":
                raise
            self.app.display_warning(f"jitload's machine code is not built yet: {error}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"
        build_data["artifacts"] += ["jitload/native/*.o", "jitload/native/*.so"]


def _platform_tag() -> str:
    """Return the platform of machines with this C library or a newer one, such as `manylinux_2_28_x86_64`."""
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    if name != "glibc":
        return f"linux_{platform.machine()}"
    return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"
