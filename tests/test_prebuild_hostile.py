"""Builds of a worker that share a run of ninja, where the cache has no room or a request is not what it seems."""

from __future__ import annotations

import time

import pytest
from test_prebuild import make_cache, request, states
from test_prebuild_batches import build_together, patient, put_compiler  # noqa: F401  a fixture

import jitload
from jitload import prebuild_worker
from jitload.cache import locks, store
from jitload.cuda.interruptible import run_interruptible
from jitload.device import kernels
from jitload.errors import CachePlaceError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return make_cache(tmp_path, monkeypatch)


def test_equal_requests_where_the_cache_has_no_room_do_not_wait_for_each_other(cache, monkeypatch, patient):  # noqa: F811
    """They are built in this process's private directory, where the first holds the lock that the second needs."""
    real = store._make_work_dir

    def make_work_dir(cache_dir, recipe):
        if cache_dir == cache:
            raise OSError(28, "No space left on device")
        return real(cache_dir, recipe)

    def tell(report):
        raise AssertionError("it waits")

    monkeypatch.setattr(store, "_make_work_dir", make_work_dir)
    monkeypatch.setattr(locks._Report, "tell", tell)
    outcomes = build_together(request("same"), request("same"), request("other"), request("same"))
    assert {outcome.error for outcome in outcomes.values()} == {
        f"the cache {cache} cannot be written, so nothing can be kept in it"
    }


def test_one_that_starts_over_while_another_is_compiled_disturbs_nobody(cache, monkeypatch, patient):  # noqa: F811
    """Its second run of NVRTC is one that others could be finished in; they are being finished already."""
    monkeypatch.setattr(prebuild_worker, "_OLD_S", 0.3)
    publish, run_nvrtc = store.Work.publish, kernels.run_nvrtc

    def refuse_first(work, product, headers=()):
        if work.recipe.name == "first" and work.cache_dir == cache:
            raise CachePlaceError("there is no room.")
        return publish(work, product, headers)

    def slowly(library, job):
        return run_interruptible(lambda _: (time.sleep(0.6), run_nvrtc(library, job))[1])

    monkeypatch.setattr(store.Work, "publish", refuse_first)
    monkeypatch.setattr(kernels, "run_nvrtc", slowly)
    outcomes = build_together(request("first"), request("second"), request("third"))
    assert [outcomes[number].state for number in range(3)] == ["failed", "built", "built"]
    assert outcomes[0].error == f"the cache {cache} cannot be written, so nothing can be kept in it"


class Unreadable:
    """What can be sent, and not be made anew where it arrives."""

    def __reduce__(self):
        return int, ("none",)


def test_a_request_that_cannot_be_read_where_it_arrives_costs_itself(cache, capfd):
    requests = [request(f"k{number}") for number in range(8)]
    for place in (0, 3):
        requests[place]["functions"] = Unreadable()
    done = jitload.prebuild(requests, progress=False, jobs=1)
    assert states(done) == ["failed", "built", "built", "failed", *["built"] * 4]
    problem = (
        "the request cannot be read in another process: ValueError: invalid literal for int() with base 10: 'none'"
    )
    assert [(outcome.name, outcome.error) for outcome in done.failed] == [("k0", problem), ("k3", problem)]
    assert "Traceback" not in capfd.readouterr().err


def test_a_compiler_that_makes_nothing_is_told_of(cache, tmp_path, monkeypatch, patient):  # noqa: F811  the fixture
    put_compiler(tmp_path, monkeypatch, 'case "$*" in *victim.so*) exit 0;; esac')
    outcomes = build_together(request("a"), request("victim"), request("b"))
    assert [outcomes[number].state for number in range(3)] == ["built", "failed", "built"]
    with pytest.raises(jitload.JitLoadError, match=r"its commands ended well, and victim[.]so was not made") as caught:
        jitload.build_inline(**request("victim"))
    assert outcomes[1].error == str(caught.value)
