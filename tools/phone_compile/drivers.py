"""Runs the compilers of the drivers over kernels and reads their statistics."""

import re
from dataclasses import dataclass

from tree import inside

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable"
# Time limit in seconds for one kernel, including the start of a driver under emulation.
PATIENCE = 180


@dataclass(frozen=True)
class Gpu:
    """A GPU, with the settings of its shim and driver."""

    name: str
    architecture: str
    shim: str
    environment: tuple

    @property
    def is_mali(self):
        return self.shim == "panfrost"


GPUS = [
    Gpu("adreno-740", "amd64", "freedreno", (("FD_GPU_ID", "740"),)),
    Gpu("adreno-750", "amd64", "freedreno", (("FD_GPU_ID", "750"),)),
    Gpu("adreno-830", "amd64", "freedreno", (("FD_GPU_ID", "0"), ("FD_CHIP_ID", "0x44050001"))),
    Gpu("mali-g610", "arm64", "panfrost", (("PAN_GPU_ID", "a867"),)),
    Gpu("mali-g720", "arm64", "panfrost", (("PAN_GPU_ID", "c800"), ("PAN_GPU_VARIANT", "4"))),
]


@dataclass(frozen=True)
class Counts:
    """What a compiler made of a kernel.

    Waves: on Adreno those that fit on a core, up to 16; on Mali 2 if the registers leave room for
    all threads of a core, 1 for half of them.
    """

    instructions: int
    registers: int
    waves: int
    spills: int


class Failed(Exception):
    """A kernel that does not compile, with the output of the compiler."""


def run(gpu, backend, tree, work, entries):
    """Compiles `entries`, whose files are in `work`; returns their counts, or a Failed, by key."""
    results, left = {}, list(entries)
    while left:
        text = start(gpu, backend, tree, work, left)
        if "DEVICE" not in text:
            raise RuntimeError(f"{gpu.name} {backend}: the driver does not start:\n{text[-4000:]}")
        pieces = re.split(r"^BEGIN (\S+)\n", text, flags=re.MULTILINE)
        done = dict(zip(pieces[1::2], pieces[2::2]))
        reached = 0
        for entry in left:
            said = done.get(f"/work/{entry['file']}")
            if said is None:
                break
            reached += 1
            end = re.search(r"^END (\w+)$", said, re.MULTILINE)
            if end is None:
                results[entry["key"]] = Failed("the compiler ended:\n" + said[-1500:])
            elif end[1] != "ok":
                results[entry["key"]] = Failed(said[-1500:])
            else:
                results[entry["key"]] = read(gpu, backend, said)
        if reached == 0:
            raise RuntimeError(f"{gpu.name} {backend}: nothing was compiled:\n{text[-4000:]}")
        # An entry that crashed the driver is the last one reached.
        left = left[reached:]
    return results


def start(gpu, backend, tree, work, entries):
    """Compiles all entries in one process and returns what it printed."""
    env = dict(gpu.environment, MESA_SHADER_CACHE_DISABLE="1")
    if backend == "opencl":
        program, arguments = "/opt/cl_stat", [OPTIONS]
        lines = [f"/work/{e['file']}\n" for e in entries]
        env |= {"RUSTICL_ENABLE": gpu.shim, "OCL_ICD_VENDORS": "/etc/OpenCL/vendors"}
        env |= {"BIFROST_MESA_DEBUG": "shaderdb"} if gpu.is_mali else {"IR3_SHADER_DEBUG": "cs,disasm"}
    else:
        program, arguments = "/opt/vk_stat", []
        lines = [f"/work/{e['file']} {e['kernel']} {e['bindings']}\n" for e in entries]
        env |= {"VK_DRIVER_FILES": f"/usr/share/vulkan/icd.d/{gpu.shim}_icd.json"}
    done = inside(
        tree / gpu.architecture,
        gpu.architecture,
        program,
        arguments,
        env,
        f"/opt/{gpu.shim}-shim.so",
        work,
        input="".join(lines).encode(),
        capture_output=True,
        timeout=PATIENCE + 10 * len(entries),
    )
    # The OpenCL program prints to standard error, as the drivers do.
    said = done.stderr if backend == "opencl" else done.stdout + (b"" if b"DEVICE" in done.stdout else done.stderr)
    return said.decode(errors="replace").replace("MESA: info: ", "")


def read(gpu, backend, said):
    """Reads the counts from the output of a driver."""
    try:
        if backend == "wgpu":
            return read_vulkan(gpu, dict(re.findall(r"^STAT (.+?) = (\S+)$", said, re.MULTILINE)))
        return read_mali(said) if gpu.is_mali else read_adreno(said)
    except (KeyError, TypeError, ValueError) as e:
        return Failed(f"statistics cannot be read ({e!r}):\n{said[-1500:]}")


def read_adreno(said):
    # A kernel may be compiled several times; the last version runs.
    code = said[said.rindex("Native code for") :]
    instructions = re.search(r"CL prog \S+ (\d+) instr", code)
    registers = re.search(r"(\d+) half, (\d+) full", code)
    waves = re.search(r"(\d+) max_waves", code)
    # Loads and stores of private memory, where registers are spilled.
    spills = len(re.findall(r"^\W*(?:\([^)]*\))*(?:stp|ldp)\.", code, re.MULTILINE))
    return Counts(int(instructions[1]), int(registers[1]) + int(registers[2]), int(waves[1]), spills)


def read_mali(said):
    line = re.findall(r"^MESA_SHADER_KERNEL shader: (.+)$", said, re.MULTILINE)[-1]
    spills = re.search(r"(\d+):(\d+) spills:fills", line)
    return Counts(
        int(re.search(r"(\d+) instrs", line)[1]),
        int(re.search(r"(\d+) registers used", line)[1]),
        int(re.search(r"(\d+) threads", line)[1]),
        int(spills[1]) + int(spills[2]),
    )


def read_vulkan(gpu, stats):
    if not stats:
        # PanVK makes no program of a kernel that does nothing.
        return Counts(0, 0, 2 if gpu.is_mali else 16, 0)
    if gpu.is_mali:
        instructions, waves, spills = "Instructions", "Threads", ("Spills", "Fills")
    else:
        instructions, waves, spills = "Instruction Count", "Max Waves Per Core", ("STP Count", "LDP Count")
    return Counts(int(stats[instructions]), int(stats["Registers used"]), int(stats[waves]), sum(int(stats[s]) for s in spills))
