"""Runs PTX on the CPU, thread after thread: the few instructions that the kernels' PTX uses, nothing more.

An instruction it does not know stops it, so nothing is skipped unseen. Floats are IEEE single precision by NumPy;
integers wrap at their width. Threads do not wait for each other (the kernels have no barrier).
"""

from __future__ import annotations

import itertools
import re
import struct

import numpy as np

_BITS = {"u32": 32, "s32": 32, "b32": 32, "f32": 32, "u64": 64, "s64": 64, "b64": 64}
_LABEL = re.compile(r"^(\$\w+):$")
_MASK = {32: 0xFFFF_FFFF, 64: 0xFFFF_FFFF_FFFF_FFFF}
Size = tuple[int, int, int]


class Memory:
    """Separate arrays at made-up addresses; an access outside of one is an error."""

    def __init__(self) -> None:
        self._arrays: dict[int, bytearray] = {}

    def add(self, content: bytes) -> int:
        address = 0x7_0000_0000 + len(self._arrays) * 0x1000_0000
        self._arrays[address] = bytearray(content)
        return address

    def content(self, address: int) -> bytes:
        return bytes(self._arrays[address])

    def _place(self, address: int) -> tuple[bytearray, int]:
        for start, content in self._arrays.items():
            if start <= address and address + 4 <= start + len(content):
                return content, address - start
        raise AssertionError(f"access to {address:#x}, outside of every array")

    def load(self, address: int) -> int:
        content, place = self._place(address)
        return int.from_bytes(content[place : place + 4], "little")

    def store(self, address: int, bits: int) -> None:
        content, place = self._place(address)
        content[place : place + 4] = bits.to_bytes(4, "little")


def run_ptx(text: str, grid: Size, block: Size, arguments: list[int], memory: Memory) -> None:
    """Run the one kernel of a PTX text for every thread of a launch."""
    name = re.search(r"\.entry (\w+)\(", text)[1]
    body = text[text.index("{") + 1 : text.rindex("}")]
    lines = [
        line.strip() for line in body.splitlines() if line.strip() and not line.strip().startswith(".reg")
    ]
    labels, program = {}, []
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(program)
        else:
            program.append(_parse(line))
    parameters = {f"{name}_param_{number}": value for number, value in enumerate(arguments)}
    for z, y, x in itertools.product(*(range(size) for size in reversed(grid))):
        for tz, ty, tx in itertools.product(*(range(size) for size in reversed(block))):
            special = {}
            for axis, place, thread, of_grid, of_block in zip(
                "xyz", (x, y, z), (tx, ty, tz), grid, block, strict=True
            ):
                special |= {f"%ctaid.{axis}": place, f"%tid.{axis}": thread}
                special |= {f"%nctaid.{axis}": of_grid, f"%ntid.{axis}": of_block}
            _Thread(program, labels, parameters, special, memory).run()


def _parse(line: str) -> tuple[str, list[str], list[str]]:
    """Guard predicate, the instruction's words, its operands."""
    line = line.rstrip(";")
    guard = ""
    if line.startswith("@"):
        guard, line = line.split(maxsplit=1)
    words, _, operands = line.partition(" ") if " " in line else line.partition("\t")
    return guard, words.strip().split("."), [part.strip() for part in operands.split(",") if part.strip()]


class _Thread:
    def __init__(self, program, labels, parameters, special, memory) -> None:
        self.program, self.labels, self.parameters, self.memory = program, labels, parameters, memory
        self.registers: dict[str, int] = dict(special)

    def run(self) -> None:
        place, steps = 0, 0
        while True:
            steps += 1
            assert steps < 1_000_000, "a thread does not end"
            guard, words, operands = self.program[place]
            place += 1
            if guard and not self._guard(guard):
                continue
            if words[0] == "ret":
                return
            if words[0] == "bra":
                place = self.labels[operands[0]]
                continue
            self._do(words, operands)

    def _guard(self, guard: str) -> bool:
        wanted = not guard.startswith("@!")
        return bool(self.registers[guard.lstrip("@!")]) == wanted

    def _value(self, operand: str) -> int:
        """Bits of a register or a constant; a float constant is 0f and its bits."""
        if operand.startswith("%"):
            return self.registers[operand]
        return int(operand[2:], 16) if operand.startswith("0f") else int(operand)

    def _float(self, operand: str) -> np.float32:
        return np.frombuffer(struct.pack("<I", self._value(operand)), dtype=np.float32)[0]

    def _signed(self, operand: str, kind: str) -> int:
        bits = _BITS[kind]
        value = self._value(operand) & _MASK[bits]
        return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value

    def _address(self, operand: str) -> int:
        base, _, offset = operand.strip("[]").partition("+")
        return self._value(base) + int(offset or 0)

    def _do(self, words: list[str], operands: list[str]) -> None:
        kind = words[-1]
        match words:
            case ["ld", "param", _]:
                self._set(operands[0], self.parameters[operands[1].strip("[]")], kind)
            case ["ld", "global", _]:
                self._set(operands[0], self.memory.load(self._address(operands[1])), kind)
            case ["st", "global", _]:
                self.memory.store(self._address(operands[0]), self._value(operands[1]) & _MASK[32])
            case ["mov", "pred"]:
                self.registers[operands[0]] = self._value(operands[1])
            case ["mov", _] | ["cvta", "to", "global", _]:
                self._set(operands[0], self._value(operands[1]), kind)
            case ["cvt", to, source]:
                self._set(operands[0], self._signed(operands[1], source), to)
            case ["add", "s32" | "s64"]:
                self._set(operands[0], self._value(operands[1]) + self._value(operands[2]), kind)
            case ["mul", "lo", _]:
                self._set(operands[0], self._value(operands[1]) * self._value(operands[2]), kind)
            case ["mul", "wide", "u32"]:
                self._set(operands[0], self._value(operands[1]) * self._value(operands[2]), "u64")
            case ["mad", "lo", _]:
                product = self._value(operands[1]) * self._value(operands[2])
                self._set(operands[0], product + self._value(operands[3]), kind)
            case ["shl", _]:
                self._set(operands[0], self._value(operands[1]) << self._value(operands[2]), kind)
            case ["sub", "f32"]:
                self._set_float(operands[0], self._float(operands[1]) - self._float(operands[2]))
            case ["div", "rn", "f32"]:
                self._set_float(operands[0], self._float(operands[1]) / self._float(operands[2]))
            case ["setp", how, "f32"]:
                self.registers[operands[0]] = _compare_floats(
                    how, self._float(operands[1]), self._float(operands[2])
                )
            case ["setp", how, _]:
                left, right = self._signed(operands[1], kind), self._signed(operands[2], kind)
                orders = {"eq": left == right, "ne": left != right, "lt": left < right, "ge": left >= right}
                self.registers[operands[0]] = int(orders[how])
            case ["and", "pred"]:
                self.registers[operands[0]] = self._value(operands[1]) & self._value(operands[2])
            case ["xor", "pred"]:
                self.registers[operands[0]] = self._value(operands[1]) ^ self._value(operands[2])
            case ["selp", _]:
                chosen = operands[1] if self._value(operands[3]) else operands[2]
                self._set(operands[0], self._value(chosen), kind)
            case _:
                raise AssertionError(f"instruction {'.'.join(words)} is not known here")

    def _set(self, register: str, value: int, kind: str) -> None:
        self.registers[register] = value & _MASK[_BITS[kind]]

    def _set_float(self, register: str, value: np.float32) -> None:
        self.registers[register] = int(np.float32(value).view(np.uint32))


def _compare_floats(how: str, left: np.float32, right: np.float32) -> int:
    is_unordered = bool(np.isnan(left) or np.isnan(right))
    answers = {
        "nan": is_unordered,
        "num": not is_unordered,
        "eq": left == right,
        "neu": is_unordered or left != right,
        "gt": left > right,
    }
    return int(answers[how])
