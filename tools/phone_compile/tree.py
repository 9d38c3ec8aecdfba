"""Unpacks Mesa's drivers so that they run on a kernel driver that does nothing.

apt downloads the Debian packages that packages.txt lists with their checksums. It uses its own
configuration, so nothing is installed and the system's package lists stay unchanged. Downloads are
kept by checksum; later runs need no network. Debian keeps only one version of a package. If that is
no longer the listed one, the current version replaces it, checked against the checksum that Debian
signs. Packages that affect the compiled code are never replaced.
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

# The drivers, and what the shim is compiled with. Backports have drivers for the newest chips.
WANTED = {
    "trixie-backports": ["mesa-opencl-icd", "mesa-vulkan-drivers"],
    "trixie": ["libvulkan1", "ocl-icd-libopencl1", "libc6-dev", "libgcc-14-dev", "libdrm-dev", "libvulkan-dev", "opencl-c-headers"],
}
# Only for amd64: the compiler for both architectures, and an emulator for arm64 programs, since
# Debian builds Mali drivers only for arm64.
WANTED_HERE = ["clang-19", "lld-19", "qemu-user"]
# Dependencies that are not needed here.
UNUSED = re.compile(
    r"(lib)?(python|perl|dpkg|tar$|tzdata|debconf|readline|sqlite|db5|ssl|openssl|media-types|netbase|binutils|gprofng|ctf|sframe|jansson"
    r"|asan|lsan|tsan|ubsan|hwasan|quadmath|itm|gomp|stdc\+\+-14-dev|objc|gc1|clang1-|llvm-19-linker|ncurses|uuid|rpcsvc|crypt|opencl-clhpp)"
)

# Packages that compile kernels: with another version the counts change.
COMPILERS = re.compile(r"mesa-|libclc|libllvm|clang-19|libclang")


class Missing(Exception):
    """Packages that cannot be downloaded."""


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            h.update(piece)
    return h.hexdigest()


class Apt:
    """apt-get with its own lists, cache and keys."""

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
            raise Missing(f"{KEYRING} not found: install debian-archive-keyring")
        env = dict(os.environ, APT_CONFIG=str(self.root / "apt.conf"), LC_ALL="C")
        done = subprocess.run(["apt-get", "-qq", *arguments], cwd=cwd, env=env, text=True, capture_output=True)
        if done.returncode:
            raise Missing(f"apt-get {' '.join(arguments[:3])}: {done.stderr.strip()[-800:]}")
        return done.stdout


    def offered(self, packages):
        """Available versions by (architecture, package), newest first."""
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
    """Replacements for versions that Debian no longer has, kept by checksum for later runs."""

    def __init__(self, archives):
        self.archives, self.list = archives, archives / "substitutes.txt"
        lines = self.list.read_text().splitlines() if self.list.is_file() else []
        self.known = {(of, package): (name, checksum) for of, package, name, checksum in (line.split() for line in lines)}

    def file(self, of, package):
        """Path of the replacement for a package, or None."""
        name, checksum = self.known.get((of, package), (None, None))
        file = name and self.archives / name
        return file if file and file.is_file() and sha256(file) == checksum else None

    def add(self, of, package, file):
        """Records a downloaded replacement."""
        self.known[(of, package)] = (file.name, sha256(file))
        lines = [" ".join([*key, *value]) + "\n" for key, value in sorted(self.known.items())]
        self.list.write_text("".join(lines))


def lock():
    """Lines of packages.txt: (architecture, package, version, checksum).

    The architecture of Mesa's source archive is `source`.
    """
    lines = LOCK.read_text().splitlines()
    return [tuple(line.split()) for line in lines if line and not line.startswith("#")]


def update_lock(cache):
    """Writes packages.txt from Debian's current lists."""
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
    lines = ["# Debian packages for tools/phone_compile: architecture, package, version, SHA-256. Written by --update-packages."]
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
    """One version of a package, as apt writes it."""
    return f"{package}={version}" if of == "all" else f"{package}:{of}={version}"


def deb(archives, of, package, version):
    """Path to which apt downloads a package."""
    return archives / f"{package}_{version.replace(':', '%3a')}_{of}.deb"


def fetch(cache):
    """Downloads missing packages of packages.txt; returns paths by (architecture, package)."""
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
                    raise Missing(f"{package}: Debian has {' and '.join(there) or 'no version'}, {LOCK.name} lists {version}")
                print(f"==> {package}: using {there[0]}, since Debian no longer has {version}; --update-packages lists it", file=sys.stderr)
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
                raise Missing(f"{file.name}: the checksum differs from the one in {LOCK.name}")
    return names


def mesa_version():
    """Version of Mesa's drivers."""
    return next(v for of, p, v, _ in lock() if (of, p) == ("amd64", "mesa-opencl-icd"))


# Parts of Mesa's source that the shim is built from.
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
    """Checksum of everything that the trees are built from."""
    h = hashlib.sha256(LOCK.read_bytes())
    for name in OWN:
        h.update((HERE / name).read_bytes())
    return h.hexdigest()[:16]


@functools.cache
def namespace():
    """Command prefix for private mounts: as root, in a user namespace, or by sudo."""
    if os.geteuid() == 0:
        return ["unshare", "-m"]
    alone = ["unshare", "-r", "-m"]
    allowed = subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    return alone if allowed else ["sudo", "-n", "unshare", "-m"]


def inside(tree, architecture, program, arguments=(), env=None, preload=None, work=None, **options):
    """Runs a program of a tree in a chroot, with the folder `work` mounted as /work."""
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
    """Unpacks the packages of one architecture, and those for all architectures."""
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "tmp", "work", "opt"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (tree / link).symlink_to(f"usr/{link}")
    for device in ("null", "zero", "urandom"):
        (tree / "dev" / device).touch()
    for (of, package), file in files.items():
        if of == architecture or of == "all":
            # The package has emulators for 40 processors; one is needed.
            if package == "qemu-user":
                only_member(file, tree, "./usr/bin/qemu-aarch64")
            else:
                subprocess.run(["dpkg-deb", "-x", file, tree], check=True)


def only_member(file, tree, member):
    """Unpacks one file of a package."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE) as tar:
        subprocess.run(["tar", "-x", "-C", tree, member], stdin=tar.stdout, check=True)


def compile_own(files, trees, source):
    """Builds the shims and the statistics programs for both architectures."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        parts = [f"*/{p}" for p in SHIM_PARTS]
        subprocess.run(["tar", "-xf", files[("source", "mesa")], "-C", folder, "--strip-components=1", "--wildcards", *parts], check=True)
        with open(HERE / "shim.patch") as patch:
            subprocess.run(["patch", "-s", "-p1", "-d", folder], stdin=patch, check=True)
        shutil.move(folder, source)
        Path(folder).mkdir()
    for name in ("shim_stub.c", "cl_stat.c", "vk_stat.c"):
        shutil.copy(HERE / name, source)
    # The amd64 tree's compiler builds for both; it sees the other tree and the sources in /work.
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
    """Runs the C compiler of a tree."""
    done = inside(tree, "amd64", "/usr/lib/llvm-19/bin/clang", arguments, work=tree.parent, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"clang {arguments[-1]}: {done.stderr[-4000:]}")


def prepare(cache):
    """Returns the folder with one tree per architecture; rebuilds it if its inputs changed."""
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
    # arm64 programs run in the emulator, which is statically linked.
    emulator = trees["amd64"] / "usr/bin/qemu-aarch64"
    shutil.move(emulator, trees["arm64"] / "usr/bin/qemu-aarch64")
    compile_own(files, trees, making / "source")
    making.rename(ready)
    return ready
