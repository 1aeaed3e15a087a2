"""The formats of TensorFlow's files: protocol buffers, sorted tables and their checksums.

A file may be damaged or hostile. Every length is compared with the bytes that are there, and memory
is bounded by the size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

Buffer = memoryview  # of bytes

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)  # at the end of a table
_FOOTER = 48  # bytes: two handles, zeros, the magic number
_MOST_KEYS = 2**26  # bytes of all names: keys share their beginnings, so a small file may have many


# Protocol buffers


def varint(data: Buffer | bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number does not end")


def fields(data: Buffer) -> Iterator[tuple[int, Any]]:
    """Return the fields of a message: the number of each, and an int or its bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
        if size > len(data) - at:
            raise ValueError(f"a field has {size:,} bytes, {len(data) - at:,} are left")
        yield tag >> 3, data[at : at + size]
        at += size


def as_varint(value: int) -> bytes:
    """Return a number of at least 0 as `varint` reads it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*parts: tuple[int, int | bytes]) -> bytes:
    """Return a message of these fields; an int of 0 is left out, as in TensorFlow's files."""
    out = b""
    for number, value in parts:
        if isinstance(value, bytes):
            out += as_varint(number << 3 | 2) + as_varint(len(value)) + value
        elif value:
            out += as_varint(number << 3) + as_varint(value)
    return out


def shape_of(data: Buffer | bytes) -> tuple[int, ...]:
    """Return the shape that a TensorShapeProto says."""
    sizes = [dict(fields(dim)).get(1, 0) for n, dim in fields(memoryview(data)) if n == 2]
    if any(not isinstance(size, int) or size >= 2**63 for size in sizes):
        raise ValueError("a shape has a size below 0")
    return tuple(sizes)


# Checksums: CRC-32C. Python's library has only another polynomial.


@cache
def _of_byte() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the register after each byte from a register of zero."""
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = np.where(register & 1, register >> 1 ^ np.uint32(0x82F63B78), register >> 1)
    return register


def _after(register: Any, byte: Any) -> Any:
    """Return the register after one more byte."""
    return _of_byte()[(register ^ byte) & 255] ^ register >> 8


def _mapped(columns: Any, registers: Any) -> Any:
    """Multiply registers by a matrix of bits, given by its columns."""
    out = np.zeros_like(registers)
    for n in range(32):
        out ^= np.where(registers >> n & 1, columns[n], np.uint32(0))
    return out


_MOST = 2**22  # bytes that advance together


@cache
def _past_zeros(k: int) -> Any:
    """Return the matrix that moves a register past 2**k zero bytes."""
    if k:
        return _mapped(_past_zeros(k - 1), _past_zeros(k - 1))
    return _after(np.uint32(1) << np.arange(32, dtype=np.uint32), np.uint32(0))


def crc32c(data: Any) -> int:
    """
    Return the CRC-32C of bytes.

    A register is linear in the bytes. So many lanes of bytes advance together from zero, and a
    matrix moves the register of a lane past the next one. Zeros before the bytes change nothing.
    """
    bytes_left = np.frombuffer(data, np.uint8)
    register = np.uint32(2**32 - 1)
    while len(bytes_left) >= 4:
        piece, bytes_left = np.split(bytes_left, [min(len(bytes_left), _MOST)])
        k = (len(piece) - 1).bit_length()
        padded = np.zeros(2**k, np.uint8)
        begin = padded[len(padded) - len(piece) :]
        begin[:] = piece
        begin[:4] ^= np.frombuffer(register.astype("<u4").tobytes(), np.uint8)
        lane = min((k + 1) // 2, 10)  # a lane has 2**lane bytes
        registers = np.zeros(2 ** (k - lane), np.uint32)
        for byte in np.ascontiguousarray(padded.reshape(-1, 2**lane).T):
            registers = _after(registers, byte)
        for past in range(lane, k):
            registers = _mapped(_past_zeros(past), registers[::2]) ^ registers[1::2]
        register = registers[0]
    for byte in bytes_left:
        register = _after(register, np.uint32(byte))
    return int(register) ^ (2**32 - 1)  # in NumPy 1 the register may be an int64


def masked(crc: int) -> int:
    """Return a checksum as the files have it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & (2**32 - 1)


# Sorted tables, as LevelDB has them


def is_table(data: Buffer | bytes) -> bool:
    """Return whether a file is a table, by its last bytes."""
    return len(data) >= _FOOTER and bytes(data[-8:]) == _MAGIC


def _block(data: Buffer, handle: Buffer | bytes) -> Iterator[tuple[bytes, Buffer]]:
    """Return the keys and values of a block."""
    offset, at = varint(handle, 0)
    size, _ = varint(handle, at)
    block, end = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(end) < 5 or size < 4:
        raise ValueError("a block is not within the file")
    if end[0] != 0:
        raise ValueError("a block is compressed, which TensorFlow does not do")
    if masked(crc32c(data[offset : offset + size + 1])) != int.from_bytes(end[1:], "little"):
        raise ValueError("the checksum of a block is wrong")
    last = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key, length = 0, b"", 0
    while at < last:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or rest + length > last - at:
            raise ValueError("an entry is not within its block")
        key = key[:shared] + bytes(block[at : at + rest])
        yield key, block[at + rest : at + rest + length]
        at += rest + length


def read_table(data: Buffer) -> dict[bytes, Buffer]:
    """Return all entries of a table, in their order."""
    _, at = varint(data, len(data) - _FOOTER)  # the handle of a block of properties
    _, at = varint(data, at)
    entries: dict[bytes, Buffer] = {}
    size, previous = 0, None
    for _, handle in _block(data, data[at : len(data) - 8]):
        for key, value in _block(data, handle):
            size += len(key)
            if previous is not None and key <= previous:
                raise ValueError("the keys are not sorted")
            if size > _MOST_KEYS:
                raise ValueError(f"the names have more than {_MOST_KEYS:,} bytes")
            previous = key
            entries[key] = value
    return entries


def table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table of these sorted entries."""
    out = bytearray()

    def add_block(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Add a block; return its handle."""
        block, places = bytearray(), []
        for key, value in pairs:
            places.append(len(block))
            block += as_varint(0) + as_varint(len(key)) + as_varint(len(value)) + key + value
        places = places or [0]
        block += struct.pack(f"<{len(places) + 1}I", *places, len(places))
        handle = as_varint(len(out)) + as_varint(len(block))
        block.append(0)  # not compressed
        out.extend(block + struct.pack("<I", masked(crc32c(block))))
        return handle

    pairs = list(entries)
    content = add_block(pairs)
    properties = add_block([])
    index = add_block([(pairs[-1][0], content)])
    return bytes(out + (properties + index).ljust(_FOOTER - 8, b"\0") + _MAGIC)


# The keys of the parts of a variable that was saved in pieces, which sort as the numbers do


def _as_sorted(value: int) -> bytes:
    """Return a signed number as bytes that sort as the numbers do."""
    size = 1 + (~value if value < 0 else value).bit_length() // 7
    data = bytearray(value.to_bytes(max(size, 2), "big", signed=True)[-size:])
    data[0] ^= 256 - (1 << max(8 - size, 0)) & 255
    if size > 8:
        data[1] ^= 0x80 if size == 9 else 0xC0
    return bytes(data)


def key_of_part(name: str, extents: Iterable[tuple[int, int | None]]) -> bytes:
    """Return the key of a part: its starts and sizes in each dimension, None for all of it."""
    pairs = list(extents)
    escaped = name.encode().replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff")
    rank = len(pairs).to_bytes((len(pairs).bit_length() + 7) // 8, "big")
    key = b"\0" + escaped + b"\0\1" + bytes([len(rank)]) + rank
    for start, size in pairs:
        key += _as_sorted(start) + _as_sorted(-1 if size is None else size)
    return key
