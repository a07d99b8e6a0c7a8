#!/usr/bin/env python3
"""Uses an installed kerf as others would, and says what is wrong with it.

  check.py NAME --build DIR --place DIR     one of the checks below; exit 1 for a fault, 77 for what cannot run here
"""
import argparse
import gzip
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"]
STRICT = ["-std=c++20", *WARNINGS]
# Functions and data that nothing refers to are the linker's to take away.
COLLECTED = ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]


class Fault(Exception):
    pass


def run(*command, env=None, fails=False):
    """Its output; a fault where it fails, or where it does not and should."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **(env or {})})
    if (done.returncode != 0) != fails:
        raise Fault(f"{' '.join(str(c) for c in command)}: ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def expect(holds, words):
    if not holds:
        raise Fault(words)


class Place:
    def __init__(self, build, place):
        self.build = pathlib.Path(build)
        self.root = pathlib.Path(place)
        self.prefix = self.root / "prefix"

    def empty(self, name):
        # Beside the build: the compiler's cache knows files by how they are reached from there.
        folder = self.build.parent / f"{self.build.name}-{name}" if name == "add_subdirectory" else self.root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def cache(self, name):
        """A value of the build's CMake cache."""
        for line in (self.build / "CMakeCache.txt").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.split("=", 1)[1]
        return ""


def lib_dir(prefix):
    found = sorted(prefix.rglob("libkerf.so.*.*.*"))
    expect(len(found) == 1, f"{prefix}: one shared library wanted, found {found}")
    return found[0].parent


def env_of(program):
    return json.loads(run(program, "env", "--json"))


def check_said(place, said, prefix):
    """What a consumer printed, against what the program says."""
    said = json.loads(said.strip().splitlines()[-1])
    env = env_of(prefix / "bin" / "kerf")
    wanted = {"headers": env["version"], "library": env["version"], "layout": env["layout"], "caught": 3}
    expect(said == wanted, f"the consumer says {said}, wanted {wanted}")
    version = re.search(r'headers_version = "([\d.]+)"', (SOURCE / "kerf/base/version.h").read_text())[1]
    expect(env["version"] == version, f"kerf env says {env['version']}, version.h {version}")
    expect(run(prefix / "bin" / "kerf", "--version") == f"kerf {version}\n", "kerf --version is another")


def consumer(place, name, *options, source=HERE / "find_package", target="consumer"):
    folder = place.empty(name)
    run("cmake", "-G", "Ninja", "-S", source, "-B", folder, *options)
    run("cmake", "--build", folder, "--target", target)
    return folder


def install(place):
    place.empty("prefix")
    run("cmake", "--install", place.build, "--prefix", place.prefix)


def headers(place):
    include = place.prefix / "include"
    installed = {p.relative_to(include).as_posix() for p in include.rglob("*") if p.is_file()}
    rule = run("c++", "-std=c++20", "-MM", "-I", SOURCE, SOURCE / "kerf/kerf.h")
    reached = {pathlib.Path(p).resolve().relative_to(SOURCE).as_posix()
               for p in rule.split(":", 1)[1].replace("\\", " ").split()}
    expect(installed == reached, f"installed and not reached: {sorted(installed - reached)}; reached and not "
                                 f"installed: {sorted(reached - installed)}")
    docs = {p.name for p in (place.prefix / "share/doc/kerf").iterdir()}
    expect(docs == {"README.md", "LICENSE"}, f"share/doc/kerf has {docs}")


def symbols(place):
    library = lib_dir(place.prefix) / "libkerf.so"
    lines = run("nm", "-D", "--defined-only", "--demangle", library).splitlines()
    names = [line.split(" ", 2)[2] for line in lines]
    ours = re.compile(r"^(vtable for |typeinfo for |typeinfo name for |VTT for |construction vtable for |guard variable "
                      r"for |(non-)?virtual thunk to |[\w:<>, *&()]* )?kerf::")
    others = [n for n in names if not ours.match(n) and not re.match(r"^KERF_[\d.]+", n)]
    hidden = [n for n in names if re.match(r"^[^(<]*\b(internal|detail|tcp|mpi|nccl|cpu|sm90|engine)::", n)]
    expect(not others, f"exported and not kerf's: {others[:20]}")
    expect(not hidden, f"exported and not public: {hidden[:20]}")
    for wanted in ("kerf::Error", "kerf::comm::Group", "kerf::comm::GroupFailed"):
        expect(f"typeinfo for {wanted}@@" in " ".join(names) or any(n.startswith(f"typeinfo for {wanted}") for n in names),
               f"{wanted} is thrown or inherited, and its type is not exported")
    expect(len(names) > 300, f"{len(names)} names are exported: too few")
    version = env_of(place.prefix / "bin" / "kerf")["version"]
    major, minor, patch = version.split(".")
    expect(any(f"kerf::v{major}_{minor}::library_of_these_headers" in n for n in names), "no name has the version")
    text = (SOURCE / "kerf/base/version.h").read_text()
    numbers = re.findall(r"int version_(?:major|minor|patch) = (\d+);", text)
    expect(numbers == [major, minor, patch], f"version.h has the numbers {numbers}, wanted {version}")
    soname = f"libkerf.so.{major}.{minor}"
    expect(f"[{soname}]" in run("readelf", "-d", library), f"its name is not {soname}")
    print(f"{len(names)} names, {soname}")


def linked(program):
    return "libkerf.so" in run("readelf", "-d", program)


def shared(place, *options):
    folder = consumer(place, "shared", f"-DCMAKE_PREFIX_PATH={place.prefix}", *options)
    expect(linked(folder / "consumer"), "the consumer is not linked to libkerf.so")
    check_said(place, run(folder / "consumer"), place.prefix)


def static(place, *options):
    folder = consumer(place, "static", f"-DCMAKE_PREFIX_PATH={place.prefix}",
                      "-DWANTED_COMPONENTS=COMPONENTS;static", *options)
    expect(not linked(folder / "consumer"), "the consumer is linked to libkerf.so")
    check_said(place, run(folder / "consumer"), place.prefix)


def clang(place):
    compiler = shutil.which("clang++-16")
    if compiler is None:
        print("there is no clang++-16")
        sys.exit(77)
    folder = consumer(place, "clang", f"-DCMAKE_PREFIX_PATH={place.prefix}", f"-DCMAKE_CXX_COMPILER={compiler}")
    check_said(place, run(folder / "consumer"), place.prefix)


def pkg_config(place, prefix=None):
    folder = place.empty("pkg_config")
    if prefix is None:  # moved, and to where a name has a space
        prefix = folder / "moved prefix"
        shutil.copytree(place.prefix, prefix, symlinks=True)
    libraries = lib_dir(prefix)
    env = {"PKG_CONFIG_PATH": str(libraries / "pkgconfig")}

    def ask(*options):  # as a shell's eval reads it
        return shlex.split(run("pkg-config", *options, "kerf", env=env))

    run("c++", *STRICT, HERE / "main.cc", *ask("--cflags", "--libs"), f"-Wl,-rpath,{libraries}", "-o", folder / "shared")
    expect(linked(folder / "shared"), "the consumer is not linked to libkerf.so")
    check_said(place, run(folder / "shared"), prefix)
    libs = [lib.replace("-lkerf", "-l:libkerf.a") for lib in ask("--static", "--cflags", "--libs")]
    run("c++", *STRICT, HERE / "main.cc", *libs, "-o", folder / "static")
    expect(not linked(folder / "static"), "the consumer is linked to libkerf.so")
    check_said(place, run(folder / "static"), prefix)
    version = env_of(prefix / "bin" / "kerf")["version"]
    expect(ask("--modversion") == [version], "pkg-config has another version")


def mismatch(place):
    """Headers of another version are found when a program is linked, by one that takes away what is unused too."""
    folder = place.empty("mismatch")
    (folder / "unused.cc").write_text("#include <kerf/kerf.h>\nint main() {}\n")
    shutil.copytree(place.prefix / "include", folder / "include")
    header = folder / "include/kerf/base/version.h"
    text = header.read_text()
    other = re.sub(r"namespace v\d+_\d+ ", "namespace v9_9 ", text)
    expect(other != text, "version.h names no version")
    header.write_text(other)
    for compiler in filter(shutil.which, ("c++", "clang++-16")):
        for options, source in ([], HERE / "main.cc"), (COLLECTED, folder / "unused.cc"):
            run(compiler, "-std=c++20", *options, "-I", folder / "include", "-c", source, "-o", folder / "program.o")
            for library in ("libkerf.a", "libkerf.so"):
                said = run(compiler, *options, folder / "program.o", lib_dir(place.prefix) / library, "-o",
                           folder / "program", fails=True)
                expect("kerf::v9_9::library_of_these_headers" in said,
                       f"{compiler}, {options}, {library}: the linker says something else:\n{said}")
        # Its own headers link, and the program is one of the library's even where it uses nothing of it.
        run(compiler, "-std=c++20", *COLLECTED, "-I", place.prefix / "include", folder / "unused.cc",
            lib_dir(place.prefix) / "libkerf.so", "-Wl,--as-needed", f"-Wl,-rpath,{lib_dir(place.prefix)}", "-o",
            folder / "program")
        expect(linked(folder / "program"), f"{compiler}: the program is not linked to libkerf.so")
        run(folder / "program")


def refused(place):
    """What is asked for and not there."""
    folder = place.empty("refused")
    major, minor, patch = env_of(place.prefix / "bin" / "kerf")["version"].split(".")
    version = f"version: {major}.{minor}.{patch}"
    for i, (option, words) in enumerate((
            (f"-DWANTED_VERSION={major}.{int(minor) + 1}", version), (f"-DWANTED_VERSION={int(major) + 1}.0", version),
            ("-DWANTED_COMPONENTS=COMPONENTS;fast", "no component 'fast', wanted shared or static"))):
        said = run("cmake", "-G", "Ninja", "-S", HERE / "find_package", "-B", folder / str(i), option,
                   f"-DCMAKE_PREFIX_PATH={place.prefix}", fails=True)
        expect(words in " ".join(said.split()), f"{option}: no '{words}' in:\n{said}")


def examples(place):
    """The ladder as it is installed, against what is installed."""
    folder = consumer(place, "examples", f"-DCMAKE_PREFIX_PATH={place.prefix}",
                      f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)}", "-DCMAKE_BUILD_TYPE=Plain",
                      source=place.prefix / "share/doc/libkerf-dev/examples", target="all")
    print(run("ctest", "--test-dir", folder, "--output-on-failure"))


def readme(place):
    """README.md's three lines of CMake and its program, by themselves."""
    page = (SOURCE / "README.md").read_text()
    lines = re.search(r"\n((?:    (?:find_package|add_executable|target_link_libraries)\(.*\n){3})", page)
    program = re.search(r"^```cpp\n(.*?)^```", page, re.M | re.S)
    expect(lines and program, "README.md has not three lines of CMake and a program")
    source = place.empty("readme-source")
    (source / "examples").mkdir()
    (source / "examples/00_ten_lines.cc").write_text(program[1])
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(ten LANGUAGES CXX)\n" + lines[1].replace("    ", ""))
    folder = consumer(place, "readme", f"-DCMAKE_PREFIX_PATH={place.prefix}", source=source, target="ten")
    run(place.prefix / "bin/kerf", "synth", folder / "checkpoint", "--model", "tiny")
    said = run(folder / "ten", folder / "checkpoint")
    expect(len(re.findall(r"^[\d.]+ us a layer$", said, re.M)) == 4, f"EP and expert TP at two batches, got:\n{said}")


def add_subdirectory(place):
    options = [f"-D{name}={place.cache(name)}" for name in
               ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_BUILD_TYPE", "KERF_MPI", "KERF_PORTABLE", "KERF_WERROR")]
    # A project without a build type is told what that makes of the library; any that it has chosen is taken.
    words = "CMAKE_BUILD_TYPE is empty"
    for i, (chosen, told) in enumerate(((["-DCMAKE_BUILD_TYPE="], True), (["-DCMAKE_BUILD_TYPE=Debug"], False),
                                        (["-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-g -O2"], False))):
        said = run("cmake", "-G", "Ninja", "-S", HERE / "add_subdirectory", "-B", place.empty("build_type") / str(i),
                   f"-DKERF_SOURCE={SOURCE}", *options, *chosen)
        expect((words in said) == told, f"{chosen}: {'no' if told else 'a'} '{words}' in:\n{said}")
    folder = consumer(place, "add_subdirectory", f"-DKERF_SOURCE={SOURCE}", *options, source=HERE / "add_subdirectory")
    expect(not linked(folder / "consumer"), "the consumer is linked to libkerf.so")
    check_said(place, run(folder / "consumer"), place.prefix)
    run("cmake", folder, "-DBUILD_SHARED_LIBS=ON")
    run("cmake", "--build", folder, "--target", "consumer")
    expect(linked(folder / "consumer"), "with BUILD_SHARED_LIBS the consumer is not linked to libkerf.so")
    check_said(place, run(folder / "consumer"), place.prefix)


def debian(place):
    if shutil.which("dpkg-shlibdeps") is None:
        print("there is no dpkg-shlibdeps (package dpkg-dev)")
        sys.exit(77)
    folder, root = place.empty("debian"), place.empty("debian-root")
    run("cpack", "-G", "DEB", "--config", place.build / "CPackConfig.cmake", "-B", folder)
    packages = {p.name.split("_")[0]: p for p in folder.glob("*.deb")}
    expect(set(packages) == {"kerf", "libkerf-dev"}, f"packages {sorted(packages)}")
    for package in packages.values():
        run("dpkg-deb", "-x", package, root)
    version = env_of(root / "usr/bin/kerf")["version"]

    def field(package, name):
        return run("dpkg-deb", "-f", packages[package], name).strip()

    for package in packages:
        expect(field(package, "Version") == f"{version}-1", f"{package}: version {field(package, 'Version')}")
        expect("kerf developers" in field(package, "Maintainer"), f"{package}: {field(package, 'Maintainer')}")
        docs = root / "usr/share/doc" / package
        expect("License: Apache-2.0" in (docs / "copyright").read_text(), f"{package}: its copyright names no licence")
        changes = gzip.decompress((docs / "changelog.Debian.gz").read_bytes()).decode()
        expect(changes.startswith(f"kerf ({version}-1) "), f"the changelog has nothing of {version}-1:\n{changes[:200]}")
    depends = field("kerf", "Depends")
    parts = ["libc6", "libstdc++6", "libfmt9", "libre2-9"]
    if place.cache("KERF_PORTABLE") != "ON":
        parts += ["libtbb12", "libhwy1", "libssl3", "libspdlog1.10"]
    missing = [p for p in parts if not re.search(rf"\b{re.escape(p)}\b", depends)]
    expect(not missing, f"kerf does not depend on {missing}: {depends}")
    expect(field("libkerf-dev", "Depends") == f"kerf (= {version}-1)", f"libkerf-dev: {field('libkerf-dev', 'Depends')}")
    expect(linked(root / "usr/bin/kerf"), "the program is not linked to the shared library")
    listed = run("dpkg-deb", "-c", packages["kerf"])
    expect("/usr/include" not in listed and "libkerf.a" not in listed, "kerf has what libkerf-dev should")
    pkg_config(place, root / "usr")
    print(f"kerf {version}: {depends}")


CHECKS = [install, headers, symbols, shared, static, clang, pkg_config, mismatch, refused, examples, readme,
          add_subdirectory, debian]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[c.__name__ for c in CHECKS])
    parser.add_argument("--build", required=True)
    parser.add_argument("--place", required=True)
    told = parser.parse_args()
    try:
        next(c for c in CHECKS if c.__name__ == told.name)(Place(told.build, told.place))
    except Fault as fault:
        print(f"{told.name}: {fault}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
