#!/usr/bin/env python3
"""Checks the machine code of the native kernels in a program for x86-64.

    tools/kernel_code.py PROGRAM

Prints what is wrong, and the exit code is then 1:

* Calls of vector instructions, which were not inlined (see src/backend/cpu/simd.rs).
* Innermost loops of at least 16 multiply-adds that write half as many vectors to the stack: sums
  that should stay in registers. A few are normal where registers are scarce.

Needs objdump (binutils).
"""

import re
import subprocess
import sys

MULTIPLY_ADD = re.compile(r"v(fn?m(add|sub)|pdpbusd|pmaddubsw)")
TO_STACK = re.compile(r"vmov\w+\s+%[xyz]mm\d+,.*\(%r[sb]p[,)]")
JUMP = re.compile(r"j\w+\s+([0-9a-f]+)\b")
LEAST = 16


def functions(lines):
    """Names of functions, each with its instructions as pairs of address and text.

    >>> list(functions(["0a <f>:", "  a: nop", "  b: ret", "", "0c <g>:", "  c: ret"]))
    [('f', [(10, 'nop'), (11, 'ret')]), ('g', [(12, 'ret')])]
    """
    name, code = None, []
    for line in lines:
        if start := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            if name:
                yield name, code
            name, code = start[1], []
        elif step := re.match(r"\s+([0-9a-f]+):\s+(.*)", line):
            code.append((int(step[1], 16), step[2].strip()))
    if name:
        yield name, code


def loops(code):
    """The instructions of each loop without another jump in it.

    >>> code = [(1, "mov"), (2, "add"), (3, "jne 2 <f+0x1>"), (4, "ret")]
    >>> list(loops(code))
    [['add', 'jne 2 <f+0x1>']]
    """
    places = {address: i for i, (address, _) in enumerate(code)}
    for end, (_, text) in enumerate(code):
        jump = JUMP.match(text)
        start = places.get(int(jump[1], 16)) if jump else None
        if start is not None and start <= end:
            body = [text for _, text in code[start:end + 1]]
            if not any(JUMP.match(text) for text in body[:-1]):
                yield body


def faults(name, code):
    """What is wrong with a function."""
    for _, text in code:
        if "call" in text and "core::core_arch" in text:
            yield f"{name} calls {text.split('<', 1)[-1]}"
    for body in loops(code):
        sums = sum(bool(MULTIPLY_ADD.match(text)) for text in body)
        stores = sum(bool(TO_STACK.match(text)) for text in body)
        if sums >= LEAST and 2 * stores >= sums:
            yield f"{name}: a loop of {sums} multiply-adds writes {stores} vectors to the stack"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", sys.argv[1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
        kernels = ((n, c) for n, c in functions(line.rstrip() for line in objdump.stdout) if "backend::cpu" in n)
        found = [fault for name, code in kernels for fault in faults(name, code)]
    if objdump.returncode:
        sys.exit(f"objdump ended with {objdump.returncode}")
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
