"""
Try a release without publishing: build both distributions, check what is in them, and use them.

    pip install build cffconvert trove-classifiers twine
    python .ci/try_release.py [FOLDER] [--final] [--python VERSION=PATH ...]

The source distribution, and from it the wheel, are built and kept in FOLDER, an empty one; without
it nothing is left behind. The wheel is installed alone, with the oldest and newest NumPy, on the
Pythons of PAIRS that are found: given by --python, on the PATH, among pyenv's, or as uv can get
them. A part of the tests runs from the unpacked source distribution; one of them compares the
versions in the files. What was not checked for want of a Python, and what is not yet as it must be
in a release, is said at the end; with --final the latter is an error.
"""

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# NumPy 1.26 has no wheels for Python 3.13; 2.1 is the first that has.
PAIRS = {
    "3.10": ("numpy==1.26.*", "numpy"),
    "3.12": ("numpy==1.26.*",),
    "3.13": ("numpy==2.1.*", "numpy"),
}
MOST_BYTES = 700_000  # of the wheel: source text, and nothing that lay beside it
MOST_BYTES_SOURCE = 6_000_000
TESTS = (
    "against/test_golden.py",
    "ops/test_lstm.py",
    "ops/test_raw_ops.py",
    "package/test_package.py",
    "weights/test_params.py",
    "weights/test_tf_files.py",
)
CLEAN = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}


def run(*command, **options):
    """Run a command; end with what it said if it fails."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env=CLEAN, **options
    )
    if done.returncode:
        words = " ".join(str(c) for c in command)
        sys.exit(f"{words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}\nended with an error")
    return done.stdout


def expect(found, expected, what):
    """End with the difference if there is one."""
    if found != expected:
        more, fewer = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
        sys.exit(f"{what}: too many {more}, missing {fewer}")


def check_wheel(wheel, version):
    """Check the wheel's name, size, files and metadata."""
    assert wheel.name == f"cupyrnn-{version}-py3-none-any.whl", wheel.name
    assert wheel.stat().st_size <= MOST_BYTES, f"{wheel.stat().st_size} bytes"
    info = f"cupyrnn-{version}.dist-info"
    # The caches of Python and Numba, which lie beside the sources, are no part of the package.
    package = {
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "cupyrnn").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    about = {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE"}
    with zipfile.ZipFile(wheel) as archive:
        expect(set(archive.namelist()), package | {f"{info}/{n}" for n in about}, wheel.name)
        assert "cupyrnn/py.typed" in archive.namelist()
        for name in package:
            assert archive.read(name) == (ROOT / name).read_bytes(), f"{name} is an older one"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert metadata["Version"] == version
    assert metadata["License-Expression"] == "MIT"
    classifiers = metadata.get_all("Classifier")
    assert not [c for c in classifiers if c.startswith("License ::")]
    from trove_classifiers import classifiers as known

    expect(set(classifiers) - known, set(), "classifiers")
    needed = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert needed == ["numpy>=1.26"], needed
    page = metadata.get_payload()
    addresses = re.findall(r'\]\(([^)]*)|src="([^"]*)', page)
    assert "\n# cupyrnn\n" in f"\n{page}", page[:100]
    assert all("".join(a).startswith("https://") for a in addresses), addresses
    print(f"{wheel.name}: {len(package)} files, {wheel.stat().st_size} bytes")


def check_source(sdist, version, work):
    """Check that the source distribution is what is committed; return where it was unpacked."""
    committed = run("git", "ls-files", cwd=ROOT).splitlines()
    top = f"cupyrnn-{version}"
    assert sdist.name == f"{top}.tar.gz", sdist.name
    assert sdist.stat().st_size <= MOST_BYTES_SOURCE, f"{sdist.stat().st_size} bytes"
    with tarfile.open(sdist) as archive:
        names = {m.name.removeprefix(f"{top}/") for m in archive.getmembers() if m.isfile()}
        archive.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    expect(names, {*committed, "PKG-INFO"}, sdist.name)
    print(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size} bytes")
    return work / top


def is_python(path, version):
    """Say whether a file is a Python of that version that can make environments."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, env=CLEAN)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def find_python(version, given):
    """Return a Python of a version, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [given.get(version), sys.executable, shutil.which(f"python{version}")]
    places += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    for place in filter(None, places):
        if is_python(place, version):
            return str(place)
    if (uv := shutil.which("uv")) is not None:
        subprocess.run([uv, "python", "install", version], capture_output=True, env=CLEAN)
        done = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
        if done.returncode == 0 and is_python(done.stdout.strip(), version):
            return done.stdout.strip()
    return None


def environment(python, folder, *requirements):
    """Make an environment with no more than that in it; return its Python."""
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    run(inside, "-m", "pip", "-q", "install", "--only-binary", ":all:", *requirements)
    run(inside, "-m", "pip", "check")
    return inside


def not_ready(wheel, version):
    """Return what is not as it must be in a release, though all tests pass."""
    found = []
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"\n## [{version}] - " not in changes:
        found.append(f"CHANGELOG.md has no section [{version}] with a date")
    if "\n## [Unreleased]" in changes:
        found.append("CHANGELOG.md has a section [Unreleased]")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"cupyrnn-{version}.dist-info/METADATA").decode()
    if "\nProject-URL: " not in metadata:
        found.append("pyproject.toml does not name the repository")
    if run("git", "status", "--porcelain", cwd=ROOT):
        found.append("there are changes that are not committed")
    if run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split() != [f"v{version}"]:
        found.append(f"the commit does not have the tag v{version}")
    return found


def try_release(dist, work, given):
    """Build both distributions, check and use them; return what is not ready."""
    text = (ROOT / "cupyrnn" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    run(Path(sys.executable).with_name("cffconvert"), "--validate", cwd=ROOT)
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    check_wheel(wheel, version)
    source = check_source(sdist, version, work)

    missing = []
    for of_python, numpys in PAIRS.items():
        python = find_python(of_python, given)
        for n, numpy in enumerate(numpys):
            if python is None:
                missing.append(f"Python {of_python} with {numpy}")
                continue
            inside = environment(python, work / f"{of_python}-{n}", numpy, wheel)
            golden = ROOT / "tests" / "data" / "block_ops.npz"
            smoke = ROOT / ".ci" / "smoke.py"
            print(run(inside, "-I", "-W", "error", smoke, version, golden, cwd=work).strip())

    # From the sources as they were sent, not those of this checkout.
    inside = environment(sys.executable, work / "tests", f"{wheel}[test]")
    chosen = [f"tests/{name}" for name in TESTS]
    said = run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, cwd=source)
    print(f"from {sdist.name}: {said.strip().splitlines()[-1]}")
    for what in missing:
        print(f"NOT CHECKED: {what}: no such Python here, and uv could not get one")
    if len(missing) == sum(map(len, PAIRS.values())):
        sys.exit("nothing was installed anywhere")
    return not_ready(wheel, version)


def main():
    command = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    command.add_argument("folder", nargs="?", type=Path, help="where to keep what is built")
    command.add_argument("--final", action="store_true", help="fail if it is not ready")
    command.add_argument("--python", action="append", default=[], metavar="VERSION=PATH")
    options = command.parse_args()
    given = dict(each.split("=", 1) for each in options.python)
    with tempfile.TemporaryDirectory() as temporary:
        dist = (options.folder or Path(temporary, "dist")).resolve()
        if dist.exists() and any(dist.iterdir()):
            sys.exit(f"{dist} is not empty")
        faults = try_release(dist, Path(temporary), given)
    for fault in faults:
        print(f"NOT READY TO PUBLISH: {fault}")
    if options.final and faults:
        sys.exit(1)


main()
