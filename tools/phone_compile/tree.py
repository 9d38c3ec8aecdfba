"""Mesa's drivers, unpacked where they can run, over a kernel driver that does nothing.

Debian's packages, named with their checksums in packages.txt, come through apt with a configuration of its own, so that nothing is
installed and the system's lists stay as they are. What was downloaded is kept by checksum; with it nothing needs a network. Debian keeps one
version of a package: where that is not the one of packages.txt any more, of all but what decides about the compiled code the present one is taken, by
the checksum that Debian has signed.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "packages.txt"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
ARCHITECTURES = ("amd64", "arm64")
TRIPLE = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

# What runs and what compiles the shim. Backports have drivers of the newest chips.
WANTED = {
    "trixie-backports": ["mesa-opencl-icd", "mesa-vulkan-drivers"],
    "trixie": ["libvulkan1", "ocl-icd-libopencl1", "libc6-dev", "libgcc-14-dev", "libdrm-dev", "libvulkan-dev", "opencl-c-headers"],
}
# amd64 alone: the compiler for both, and what runs arm64 programs, since Debian has drivers of Mali for arm64 only.
WANTED_HERE = ["clang-19", "lld-19", "qemu-user"]
# Dependencies of the packages that nothing here runs.
UNUSED = re.compile(
    r"(lib)?(python|perl|dpkg|tar$|tzdata|debconf|readline|sqlite|db5|ssl|openssl|media-types|netbase|binutils|gprofng|ctf|sframe|jansson"
    r"|asan|lsan|tsan|ubsan|hwasan|quadmath|itm|gomp|stdc\+\+-14-dev|objc|gc1|clang1-|llvm-19-linker|ncurses|uuid|rpcsvc|crypt|opencl-clhpp)"
)


# What makes code of kernels: other versions of these give other counts.
COMPILERS = re.compile(r"mesa-|libclc|libllvm|clang-19|libclang")


class Missing(Exception):
    """Packages cannot be had."""


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            h.update(piece)
    return h.hexdigest()


class Apt:
    """apt-get with lists, cache and keys of its own."""

    def __init__(self, root):
        self.root = root
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "status").touch()
        suites = [("deb", s) for s in WANTED] + [("deb-src", "trixie")]
        (root / "sources.list").write_text("".join(f"{kind} [signed-by={KEYRING}] {MIRROR} {suite} main\n" for kind, suite in suites))
        settings = {
            "APT::Architecture": "amd64",
            "Dir::State": root / "state",
            "Dir::State::status": root / "status",
            "Dir::Cache": root / "cache",
            "Dir::Etc::sourcelist": root / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Sandbox::User": "",
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        lines = [f'{k} "{v}";' for k, v in settings.items()]
        lines.append("APT::Architectures { " + " ".join(f'"{a}";' for a in ARCHITECTURES) + " };")
        (root / "apt.conf").write_text("\n".join(lines) + "\n")

    def run(self, *arguments, cwd=None):
        if not Path(KEYRING).is_file():
            raise Missing(f"there is no {KEYRING}: install debian-archive-keyring")
        env = dict(os.environ, APT_CONFIG=str(self.root / "apt.conf"), LC_ALL="C")
        done = subprocess.run(["apt-get", "-qq", *arguments], cwd=cwd, env=env, text=True, capture_output=True)
        if done.returncode:
            raise Missing(f"apt-get {' '.join(arguments[:3])}: {done.stderr.strip()[-800:]}")
        return done.stdout


    def offered(self, packages):
        """Versions of packages by (architecture, package), the newest first."""
        env = dict(os.environ, APT_CONFIG=str(self.root / "apt.conf"), LC_ALL="C")
        names = sorted({f"{p}:{a}" for p in packages for a in ARCHITECTURES})
        done = subprocess.run(["apt-cache", "madison", *names], env=env, text=True, capture_output=True)
        if done.returncode:
            raise Missing(f"apt-cache madison: {done.stderr.strip()[-800:]}")
        found = {}
        for line in done.stdout.splitlines():
            package, version, origin = (part.strip() for part in line.split("|"))
            package, where = package.split(":")[0], origin.split()
            if where[-1] == "Packages":
                for of in (where[-2], "all"):
                    versions = found.setdefault((of, package), [])
                    if version not in versions:
                        versions.append(version)
        return found


class Substitutes:
    """Packages that were taken for versions which Debian has no more, by checksum, so that later runs need no network either."""

    def __init__(self, archives):
        self.archives, self.list = archives, archives / "substitutes.txt"
        lines = self.list.read_text().splitlines() if self.list.is_file() else []
        self.known = {(of, package): (name, checksum) for of, package, name, checksum in (line.split() for line in lines)}

    def file(self, of, package):
        """Where the substitute of a package lies, if there is one."""
        name, checksum = self.known.get((of, package), (None, None))
        file = name and self.archives / name
        return file if file and file.is_file() and sha256(file) == checksum else None

    def add(self, of, package, file):
        """Notes one that was downloaded."""
        self.known[(of, package)] = (file.name, sha256(file))
        lines = [" ".join([*key, *value]) + "\n" for key, value in sorted(self.known.items())]
        self.list.write_text("".join(lines))


def lock():
    """Lines of packages.txt: (architecture, package, version, checksum); of the source its one file, as architecture `source`."""
    lines = LOCK.read_text().splitlines()
    return [tuple(line.split()) for line in lines if line and not line.startswith("#")]


def update_lock(cache):
    """Writes packages.txt anew from the current lists."""
    apt = Apt(cache / "apt")
    apt.run("update")
    entries = {}
    for architecture in ARCHITECTURES:
        names = [f"{n}:{architecture}/{suite}" for suite, all_names in WANTED.items() for n in all_names]
        names += WANTED_HERE if architecture == "amd64" else []
        found = apt.run("install", "--print-uris", "-y", "-o", f"APT::Architecture={architecture}", *names)
        for line in found.splitlines():
            uri, file, *_ = line.split()
            package, version, of = re.fullmatch(r"([^_]+)_(.+)_(\w+)\.deb", file).groups()
            if not UNUSED.match(package):
                entries[(of, package)] = version.replace("%3a", ":")
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    files = {(of, p): deb(archives, of, p, v) for (of, p), v in entries.items()}
    absent = [which(of, p, v) for (of, p), v in entries.items() if not files[(of, p)].is_file()]
    if absent:
        apt.run("download", *absent, cwd=archives)
    lines = ["# Debian packages that tools/phone_compile runs: architecture, package, version, SHA-256. Written by --update-packages."]
    for (of, package), version in sorted(entries.items()):
        lines.append(f"{of} {package} {version} {sha256(files[(of, package)])}")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        apt.run("source", "--download-only", "mesa/trixie", cwd=folder)
        [tarball] = Path(folder).glob("mesa_*.orig.tar.xz")
        version = next(Path(folder).glob("mesa_*.dsc")).name.removeprefix("mesa_").removesuffix(".dsc")
        lines.append(f"source mesa {version} {sha256(tarball)}")
        shutil.move(tarball, archives / f"mesa_{version}.tar.xz")
    LOCK.write_text("\n".join(lines) + "\n")


def which(of, package, version):
    """What apt calls one version of a package."""
    return f"{package}={version}" if of == "all" else f"{package}:{of}={version}"


def deb(archives, of, package, version):
    """Where apt puts the file of a package."""
    return archives / f"{package}_{version.replace(':', '%3a')}_{of}.deb"


def fetch(cache):
    """Brings what packages.txt names, unless it is there, and returns the paths by (architecture, package)."""
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    names, absent = {}, []
    taken = Substitutes(archives)
    for of, package, version, checksum in lock():
        file = archives / f"{package}_{version}.tar.xz" if of == "source" else deb(archives, of, package, version)
        names[(of, package)] = file
        if not file.is_file() or sha256(file) != checksum:
            if there := taken.file(of, package):
                names[(of, package)] = there
                continue
            file.unlink(missing_ok=True)
            absent.append((of, package, version, checksum, file))
    if absent:
        apt = Apt(cache / "apt")
        apt.run("update", "--error-on=any")
        offered = apt.offered([p for of, p, *_ in absent if of != "source"])
        wanted, signed = [], set()
        for of, package, version, checksum, file in absent:
            there = offered.get((of, package), [])
            if of != "source" and version not in there:
                if not there or COMPILERS.match(package):
                    raise Missing(f"Debian has {package} {' and '.join(there) or 'in no version'}, {LOCK.name} names {version}")
                print(f"==> {package} {there[0]} in place of {version}, which Debian has no more; --update-packages takes it", file=sys.stderr)
                names[(of, package)] = deb(archives, of, package, there[0])
                signed.add((of, package))
                version = there[0]
            if of != "source":
                wanted.append(which(of, package, version))
        if wanted:
            apt.run("download", *wanted, cwd=archives)
        for of, package, version, checksum, file in absent:
            if (of, package) in signed:
                taken.add(of, package, names[(of, package)])
                continue
            if of == "source":
                with tempfile.TemporaryDirectory(dir=cache) as folder:
                    apt.run("source", "--download-only", f"{package}={version}", cwd=folder)
                    shutil.move(next(Path(folder).glob("*.orig.tar.xz")), file)
            if sha256(file) != checksum:
                raise Missing(f"{file.name}: its checksum is not that of {LOCK.name}")
    return names


def mesa_version():
    """Version of the drivers."""
    return next(v for of, p, v, _ in lock() if (of, p) == ("amd64", "mesa-opencl-icd"))


# Parts of Mesa's source that the shim is made of.
SHIM_PARTS = ["include", "src/util", "src/c11", "src/drm-shim", "src/freedreno/drm-shim", "src/panfrost/drm-shim"]
SHIM_FILES = ["drm-shim/drm_shim.c", "drm-shim/device.c"] + [
    f"util/{f}.c" for f in ("hash_table", "set", "ralloc", "vma", "futex", "anon_file")
]
SHIM_DEFINES = """_GNU_SOURCE HAVE_PTHREAD HAVE_STRUCT_TIMESPEC HAVE_DIRENT_D_TYPE HAVE_FUNC_ATTRIBUTE_PACKED HAVE___BUILTIN_BSWAP32
HAVE___BUILTIN_FFS HAVE___BUILTIN_FFSLL HAVE___BUILTIN_CLZ HAVE___BUILTIN_CLZLL HAVE___BUILTIN_POPCOUNT HAVE___BUILTIN_POPCOUNTLL
HAVE___BUILTIN_UNREACHABLE HAVE___BUILTIN_CTZ HAVE_FUNC_ATTRIBUTE_FLATTEN HAVE_ENDIAN_H HAVE_MINCORE HAVE_STRTOK_R HAVE_GETRANDOM
USE_GCC_ATOMIC_BUILTINS HAVE_SECURE_GETENV HAVE_LINUX_FUTEX_H HAVE_TIMESPEC_GET HAVE_THRD_CREATE HAVE_DLADDR HAVE_POSIX_MEMALIGN NDEBUG
HAVE_MEMFD_CREATE""".split()
OWN = ["shim.patch", "shim_stub.c", "cl_stat.c", "vk_stat.c", "tree.py"]


def stamp():
    """Changes with whatever the trees are made of."""
    h = hashlib.sha256(LOCK.read_bytes())
    for name in OWN:
        h.update((HERE / name).read_bytes())
    return h.hexdigest()[:16]


@functools.cache
def namespace():
    """What gives a command mounts of its own: as root at once, else by a user namespace or, where there is none, by sudo."""
    if os.geteuid() == 0:
        return ["unshare", "-m"]
    alone = ["unshare", "-r", "-m"]
    allowed = subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    return alone if allowed else ["sudo", "-n", "unshare", "-m"]


def inside(tree, architecture, program, arguments=(), env=None, preload=None, work=None, **options):
    """Runs a program of a tree with the tree as root, where the folder `work` is /work."""
    mounts = [f'mount --bind /dev/{d} "$T/dev/{d}"' for d in ("null", "zero", "urandom")]
    if work:
        mounts.append(f'mount --bind "{work}" "$T/work"')
    if architecture == "amd64":
        command = ["/lib64/ld-linux-x86-64.so.2", "--preload", preload, program] if preload else [program]
    else:
        command = ["/usr/bin/qemu-aarch64", *(["-E", f"LD_PRELOAD={preload}"] if preload else []), program]
    script = "set -e; T=$1; shift; " + "; ".join(mounts) + '; exec "$@"'
    variables = [f"{k}={v}" for k, v in (env or {}).items()]
    whole = ["sh", "-c", script, "sh", str(tree), "env", *variables, "chroot", str(tree), *command, *arguments]
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.run([*namespace(), *whole], env={"PATH": path}, **options)


def unpack(files, tree, architecture):
    """Unpacks packages of one architecture, and what holds for all."""
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "tmp", "work", "opt"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (tree / link).symlink_to(f"usr/{link}")
    for device in ("null", "zero", "urandom"):
        (tree / "dev" / device).touch()
    for (of, package), file in files.items():
        if of == architecture or of == "all":
            # The emulator has 40 processors, one of which is needed.
            if package == "qemu-user":
                only_member(file, tree, "./usr/bin/qemu-aarch64")
            else:
                subprocess.run(["dpkg-deb", "-x", file, tree], check=True)


def only_member(file, tree, member):
    """Unpacks one file of a package."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE) as tar:
        subprocess.run(["tar", "-x", "-C", tree, member], stdin=tar.stdout, check=True)


def compile_own(files, trees, source):
    """Builds the shims and the programs that list statistics, for both architectures by the compiler of the amd64 tree."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        parts = [f"*/{p}" for p in SHIM_PARTS]
        subprocess.run(["tar", "-xf", files[("source", "mesa")], "-C", folder, "--strip-components=1", "--wildcards", *parts], check=True)
        with open(HERE / "shim.patch") as patch:
            subprocess.run(["patch", "-s", "-p1", "-d", folder], stdin=patch, check=True)
        shutil.move(folder, source)
        Path(folder).mkdir()
    for name in ("shim_stub.c", "cl_stat.c", "vk_stat.c"):
        shutil.copy(HERE / name, source)
    # The compiler sees both trees: its own, and through /work the other and the sources.
    for architecture, tree in trees.items():
        sysroot = "/" if architecture == "amd64" else f"/work/{architecture}"
        common = [f"--target={TRIPLE[architecture]}", f"--sysroot={sysroot}", "--ld-path=/usr/lib/llvm-19/bin/ld.lld", "-O2", "-w"]
        out = f"/work/{tree.name}/opt"
        mesa = "/work/source"
        for driver in ("freedreno", "panfrost"):
            sources = [f"{mesa}/src/{f}" for f in SHIM_FILES] + [f"{mesa}/src/{driver}/drm-shim/{driver}_noop.c", f"{mesa}/shim_stub.c"]
            includes = [f"-I{mesa}/{p}" for p in ("include", "src", "src/util")] + [f"-I{sysroot.rstrip('/')}/usr/include/libdrm"]
            flags = ["-fPIC", "-shared", "-std=gnu11", "-fvisibility=hidden", *(f"-D{d}" for d in SHIM_DEFINES)]
            clang(trees["amd64"], [*common, *flags, *includes, "-o", f"{out}/{driver}-shim.so", *sources])
        libraries = f"{sysroot.rstrip('/')}/usr/lib/{TRIPLE[architecture]}"
        clang(trees["amd64"], [*common, "-o", f"{out}/cl_stat", f"{mesa}/cl_stat.c", f"{libraries}/libOpenCL.so.1"])
        clang(trees["amd64"], [*common, "-o", f"{out}/vk_stat", f"{mesa}/vk_stat.c", f"{libraries}/libvulkan.so.1"])


def clang(tree, arguments):
    """Runs the compiler of a tree."""
    done = inside(tree, "amd64", "/usr/lib/llvm-19/bin/clang", arguments, work=tree.parent, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"clang {arguments[-1]}: {done.stderr[-4000:]}")


def prepare(cache):
    """The folder of the trees, one for each architecture, made anew when anything that they are made of has changed."""
    ready = cache / f"trees-{stamp()}"
    if ready.is_dir():
        return ready
    files = fetch(cache)
    for old in cache.glob("trees-*"):
        shutil.rmtree(old)
    making = cache / "making"
    shutil.rmtree(making, ignore_errors=True)
    trees = {a: making / a for a in ARCHITECTURES}
    for architecture, tree in trees.items():
        unpack(files, tree, architecture)
    # Programs of arm64 run by way of the emulator, which is a static program.
    emulator = trees["amd64"] / "usr/bin/qemu-aarch64"
    shutil.move(emulator, trees["arm64"] / "usr/bin/qemu-aarch64")
    compile_own(files, trees, making / "source")
    making.rename(ready)
    return ready
