"""What lies in a cache and is not what it should be, and names and flags that mean harm."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from builds import ADD, build, kernel, load, run_python
from cheap import get, make_key

import jitload
from jitload.cache.entry import find_cache_dir
from jitload.settings import read_settings


def rewrite(path: Path, **facts: object) -> None:
    manifest(path).write_text(json.dumps({**json.loads(manifest(path).read_text()), **facts}))


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    away = path.with_name("away")
    path.rename(away)
    path.symlink_to(away)


def manifest(path: Path) -> Path:
    return path.with_name("manifest.json")


DAMAGE = {
    "a product that is cut short": lambda p: os.truncate(p, 10),
    "a product with another byte": lambda p: p.write_bytes(bytes([p.read_bytes()[0] ^ 1]) + p.read_bytes()[1:]),
    "a product that is gone": Path.unlink,
    "a manifest that is no JSON": lambda p: manifest(p).write_text("{"),
    "no manifest": lambda p: manifest(p).unlink(),
    "a manifest that is a list": lambda p: manifest(p).write_text('["schema"]'),
    "a manifest of another key": lambda p: rewrite(p, key="0"),
    "a manifest that is a pipe": lambda p: replace_by_pipe(manifest(p)),
    "a manifest of an older schema": lambda p: rewrite(p, schema=1),
    "a size that is none": lambda p: rewrite(p, files={"product": ["many", ""]}),
    "a product that is a pipe": replace_by_pipe,
    "a product that is a link": replace_by_link,
    "a product that everyone may write": lambda p: p.chmod(0o666),
    "an entry that everyone may write": lambda p: p.parent.chmod(0o777),
    "an entry that is a file": lambda p: (shutil.rmtree(p.parent), p.parent.write_text("")),
    "an entry that is a link": lambda p: replace_by_link(p.parent),
    "a key that is a file": lambda p: (shutil.rmtree(p.parents[1]), p.parents[1].write_text("")),
    "a key that is a link to nothing": lambda p: (shutil.rmtree(p.parents[1]), p.parents[1].symlink_to("/nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_set_aside_and_built_again(cache, damage, caplog):
    key = make_key()
    product = get(cache, key).product
    DAMAGE[damage](product)
    with caplog.at_level(logging.WARNING, "jitload"):
        fresh = get(cache, key)
    assert fresh.product.read_text().startswith(key.digest)
    assert not fresh.product.is_symlink()
    assert len(caplog.records) <= 1, caplog.text
    assert get(cache, key).dir == fresh.dir
    assert "it is renamed to" in caplog.text
    assert "chmod" not in caplog.text
    assert [*cache.glob("*.bad"), *cache.glob("*-*/*.bad")]


def test_a_note_of_the_caches_own_that_would_never_end_is_not_read(cache):
    text = kernel("f")
    code = f"import builds, jitload; print(builds.build({text!r})); jitload.build_inline('other', cpp_sources='int i;')"
    path = Path(run_python(code).stdout.split()[0])
    shutil.rmtree(next(cache.glob("other-*")))
    notes = [path for path in cache.rglob("*") if path.is_file() and path.relative_to(cache).parts[0].startswith(".")]
    assert {note.relative_to(cache).parts[0] for note in notes} >= {".tools", ".locks"}
    for note in notes:
        note.unlink()
        os.mkfifo(note)
    done = run_python(code, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(path)]  # a hit, though nothing of what the cache noted could be read
    assert len(list(cache.glob("other-*/*/manifest.json"))) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("part", ["entry", "product"])
def test_an_entry_of_another_user_is_set_aside(cache, part, caplog):
    key = make_key()
    product = get(cache, key).product
    os.chown(product if part == "product" else product.parent, 12345, -1)
    fresh = get(cache, key)
    assert fresh.product != product
    assert "it is renamed to" in caplog.text
    assert "chmod" not in caplog.text


NAMES = ["../x", "..", "-rf", "x" * 256, "a b $(touch x) `id`; $c né %s ' \" \\"]
REFUSED = ["x" * 300, "a\nb", "", "\0", "a\tb", "\ud800"]


@pytest.mark.parametrize("name", NAMES)
def test_a_strange_name_works_and_stays_inside_the_cache(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    cache = Path(os.environ["JITLOAD_CACHE_DIR"])
    beside = {*os.listdir(cache.parent), cache.name}
    path = build(ADD, name)
    assert repr(load(ADD, name)).startswith(f"<jitload.Module {name!r} (")
    assert build(ADD, name, build_directory=tmp_path / "own").resolve().parent == tmp_path / "own"
    assert path.parents[2] == cache
    assert path.resolve().is_relative_to(cache.resolve())
    assert (set(os.listdir(cache.parent)), os.listdir(tmp_path)) == (beside, ["own"])
    assert list(jitload.load_module(path)) == ["add"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_no_message_could_show_is_refused(empty_cache, name):
    with pytest.raises(jitload.JitLoadError, match=r"must have 1 to 256 printable characters"):
        build(ADD, name)
    assert not empty_cache.exists()


@pytest.mark.parametrize(
    ("base", "expected"),
    [("/x/caches", "/x/caches/jitload"), ("", "/h/.cache/jitload"), ("relative", "/h/.cache/jitload")],
)
def test_the_user_s_cache_directory(monkeypatch, base, expected):
    monkeypatch.delenv("JITLOAD_CACHE_DIR")
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert find_cache_dir(read_settings()) == Path(expected)
