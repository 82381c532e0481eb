"""Every module of the GPU tests compiles and loads on a machine without a GPU."""

import pytest
from support.kernels import PROGRAMS, load


@pytest.mark.parametrize("name", PROGRAMS)
def test_module_compiles_and_loads_for_hopper(name):
    module = load(name, arch="sm_90a")
    _, functions = PROGRAMS[name]
    assert list(module) == list(functions or module)
    assert all(module[function].kernel.registers > 0 for function in module)


def test_the_launchers_wrapper_compiles_and_loads():
    from support.hopper import FUNCTIONS, load_functions, load_wrapper

    assert set(load_wrapper("sm_90a")) == {"launch", "replace", "handle", "has_runtime", "guarded"}
    assert list(load_functions("sm_90a")) == list(FUNCTIONS)
