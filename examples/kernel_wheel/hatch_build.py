"""Compiles the kernels when the wheel is built, and puts them into it next to their source."""

import sys
import sysconfig
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

import jitload


class KernelBuildHook(BuildHookInterface):
    """The hook that hatchling looks for in this file."""

    def initialize(self, version, build_data):
        if version == "editable":
            return  # the kernels are compiled when they are first called
        sys.path.insert(0, self.root)
        from fast_ops.requests import ARCHS, REQUEST

        self.bundle = tempfile.TemporaryDirectory()
        built = jitload.prebuild([REQUEST], archs=ARCHS)
        built.check()
        built.fill_bundle(self.bundle.name)
        build_data["force_include"][self.bundle.name] = "jitload_bundles/fast_ops"  # where jitload looks
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # for every Python, but only one kind of machine
