#!/usr/bin/env python3
"""Reads VarveFS pools with nothing but SPEC.md and Python's standard library.

This is a second implementation of the format, written from SPEC.md alone. It is for recovery by hand, where no program of
VarveFS runs, and it holds SPEC.md true: a test compares what it sees with what the library sees. It opens the pool for
reading, takes no lock and never writes to it. It starts from the newest superblock of either end of the device, applies
the log in memory, and verifies the checksum of every block that it uses; where one copy is bad it takes another. What
cannot be read is said on standard error, the rest goes on, and the exit status is 1. Do not use it on a mounted pool.

    read_pool.py POOL info              what the pool is, and its subvolumes and snapshots
    read_pool.py POOL ls [-R] [PATH]    a directory; paths lead into subvolumes and snapshots as in a mounted pool
    read_pool.py POOL cat PATH          a file's contents, or what a symbolic link holds
    read_pool.py POOL tree --json       every inode of every subvolume, one JSON object a line, with a digest of its contents
    read_pool.py POOL extract PATH DIR  copy a file or a directory out, to DIR, which must not exist

Names are printed as `varve` prints them (docs/check.md, Names), and understood in the same way if -e is given.
"""

import argparse
import bisect
import collections
import hashlib
import json
import os
import re
import stat
import struct
import sys
import unicodedata

BLOCK = 4096
SEGMENT = 1 << 20
RING_START = 1 << 20
SLOT = 64 << 10
TAIL = 512 << 10
INCOMPATIBLE_KNOWN = 15
NO_LIMIT = (1 << 64) - 1
LIMIT_62 = 1 << 62
INODES, NAMES, XATTRS, EXTENTS, VERSIONS, ORPHANS, SUBVOLUMES, HELD, REAP, SHARES, KEYFRAMES = range(1, 12)
KINDS = [None, "file", "directory", "symlink", "fifo", "socket", "char_device", "block_device"]
MODES = [0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK]
DIGEST_MAX = 1 << 30  # files beyond are not hashed as a whole
ZEROS = bytes(BLOCK)


class Damaged(Exception):
    """What is on the device is not what SPEC.md allows, or cannot be read."""


def warn(text):
    warn.count += 1
    if warn.count <= 1000:
        print(f"read_pool: {text}", file=sys.stderr)


warn.count = 0


def crc_tables():
    """CRC-32C a 32-bit word at a time: the register moved on by two bytes, and by four."""
    one = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        one.append(byte)
    two = []
    for value in range(1 << 16):
        value = one[value & 255] ^ (value >> 8)
        two.append(one[value & 255] ^ (value >> 8))
    four = [two[value & 0xFFFF] ^ (value >> 16) for value in two]
    return one, two, four


CRC_ONE, CRC_TWO, CRC_FOUR = crc_tables()


def crc32c(data):
    if data == ZEROS:
        return 0x98F94189
    crc, words, two, four = 0xFFFFFFFF, len(data) // 4, CRC_TWO, CRC_FOUR
    for word in struct.unpack_from(f"<{words}I", data):
        word ^= crc
        crc = four[word & 0xFFFF] ^ two[word >> 16]
    for byte in data[words * 4 :]:
        crc = CRC_ONE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def take(layout, data, at, what):
    """Fields at an offset, little-endian."""
    if at < 0 or at + struct.calcsize("<" + layout) > len(data):
        raise Damaged(f"{what} is too short")
    return struct.unpack_from("<" + layout, data, at)


def need(condition, what):
    if not condition:
        raise Damaged(what)


def hash_keys(seed):
    mask = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return seed, z ^ (z >> 31)


def siphash13(keys, data):
    mask = (1 << 64) - 1
    v0, v1, v2, v3 = (
        key ^ word
        for key, word in zip(
            keys * 2, (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
        )
    )

    def rotate(value, by):
        return ((value << by) | (value >> (64 - by))) & mask

    last = data[len(data) & ~7 :].ljust(7, b"\0") + bytes([len(data) & 255])
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) & ~7, 8)]
    for word, rounds in [(word, 1) for word in words + [int.from_bytes(last, "little")]] + [(None, 3)]:
        if word is None:
            v2 ^= 0xFF
        else:
            v3 ^= word
        for _ in range(rounds):
            v0 = (v0 + v1) & mask
            v2 = (v2 + v3) & mask
            v1, v3 = rotate(v1, 13) ^ v0, rotate(v3, 16) ^ v2
            v0 = (rotate(v0, 32) + v3) & mask
            v2 = (v2 + v1) & mask
            v3, v1 = rotate(v3, 21) ^ v0, rotate(v1, 17) ^ v2
            v2 = rotate(v2, 32)
        if word is not None:
            v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


def show(name):
    """A name as text: one text for each name, and nothing in it that a terminal obeys."""
    out = []
    for char in name.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif char in '\\"\n\r\t':
            out.append({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}[char])
        elif unicodedata.category(char) in ("Cc", "Zl", "Zp") or code in MARKS:
            out += [f"\\x{byte:02x}" for byte in char.encode()]
        else:
            out.append(char)
    text = "".join(out)
    space = lambda match: "\\x20" * len(match.group())
    return re.sub(r"^ +| +$| {2,}|(?<=/) +| +(?=/)", space, text)


MARKS = {0x061C, 0x200E, 0x200F, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def unshow(text):
    simple = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
    return re.sub(
        rb"\\(x[0-9a-fA-F]{2}|.)",
        lambda m: bytes([int(m[1][1:], 16)]) if len(m[1]) == 3 else simple.get(m[1], m[1]),
        text,
        flags=re.S,
    )


Pointer = collections.namedtuple("Pointer", "addresses generation checksum")
Extent = collections.namedtuple("Extent", "kind blocks block")
Inode = collections.namedtuple(
    "Inode",
    "kind bits mode flags uid gid links rdev project xattrs xattr_bytes size generation change parent family version "
    "times inline",
)
Subvolume = collections.namedtuple("Subvolume", "id family version root slot flags place origin name")
Batch = collections.namedtuple("Batch", "epoch sequence previous checksum superblock flushed first last count payload "
                               "blocks mask raw")


def pointer(data, at, what):
    first, second, generation, blocks, kind = take("QQQHB", data, at, what)
    need(at + 64 <= len(data), f"{what} is too short")
    if data[at : at + 64] == bytes(64):
        return None
    need(first and blocks == 1 and kind == 1, f"{what}: a malformed node pointer")
    need(data[at + 27 : at + 32] == bytes(5) and data[at + 36 : at + 64] == bytes(28), f"{what}: a malformed node pointer")
    return Pointer((first, second) if second else (first,), generation, take("I", data, at + 32, what)[0])


class Device:
    """Bytes of the file or block device, and the pool's label and superblock."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY)
        self.bytes = os.lseek(self.file, 0, os.SEEK_END)
        self.label()
        self.superblock()

    def read(self, at, length):
        """None where the device ends, or fails to read."""
        try:
            data = os.pread(self.file, length, at)
            while len(data) < length:
                more = os.pread(self.file, length - len(data), at + len(data))
                if not more:
                    return None
                data += more
            return data
        except (OSError, OverflowError):
            return None

    def parse_label(self, at):
        block = self.read(at, BLOCK) if at >= 0 else None
        if block is None or block[:8] != b"VARVELBL":
            return None
        version, shift, _, number, _, pool, device, size, ring = struct.unpack_from("<HBBHH16s16sQQ", block, 8)
        need(version == 0, f"the label at byte {at} is of format version {version}, which this program does not know")
        sound = crc32c(block[:4092]) == struct.unpack_from("<I", block, 4092)[0] and shift == 12
        sound = sound and size % BLOCK == ring % BLOCK == 0 and size >= 64 << 20 and 8 << 20 <= ring <= 256 << 20
        return (pool, number, size, ring) if sound and RING_START + ring + TAIL < size else None

    def label(self):
        found = self.parse_label(0)
        if not found:
            warn("the first label cannot be used")
            found = self.parse_label(self.bytes - BLOCK)
        if not found:  # a device that has become longer, with its first block lost
            for slot in range(4):
                block = self.parse_superblock(SLOTS_AT(0, slot))
                if block:
                    end = max(at + length for _, length, stripes in block["chunks"] for _, at in stripes)
                    stripes = max(len(stripes) for _, _, stripes in block["chunks"])
                    for behind in range(stripes):
                        found = found or self.parse_label(end + TAIL - BLOCK + behind * BLOCK)
        need(found, "neither end has a label: no pool, or too damaged")
        self.pool, self.number, self.size, self.ring = found
        need(self.number == 0, f"this is device {self.number} of a pool, and the first is needed")
        if self.bytes < self.size:
            warn(f"the device has {self.bytes} bytes, its pool {self.size}: what is behind its end is lost")

    def parse_superblock(self, at):
        slot = self.read(at, SLOT)
        if slot is None or slot[:8] != b"VARVESUP":
            return None
        version, shift, closed, length, generation, pool = struct.unpack_from("<HBBIQ16s", slot, 8)
        if version != 0:
            warn(f"the superblock at byte {at} is of format version {version}, which this program does not know")
            return None
        if shift != 12 or not 192 < length <= SLOT - 4 or crc32c(slot[:length]) != take("I", slot, length, "slot")[0]:
            return None
        try:
            block = dict(at=at, closed=closed, generation=generation, pool=pool)
            names = "incompatible read_only compatible seed"
            block.update(zip(names.split(), struct.unpack_from("<QQQQ", slot, 40)))
            block["hash_kind"], data0, data1, meta0, meta1, _, devices = struct.unpack_from("<BBBBBBH", slot, 72)
            block["data"], block["metadata"] = (data0, data1), (meta0, meta1)
            block["blocks"], block["position"] = struct.unpack_from("<QQ", slot, 80)
            block["root"] = pointer(slot, 96, "the superblock")
            names = "replay sequence previous epoch cuts chunks"
            block.update(zip(names.split(), struct.unpack_from("<QQIQHH", slot, 160)))
            need(devices == 1, f"the pool has {devices} devices, and this program reads pools of one")
            need(block["cuts"] <= 64 and 1 <= block["chunks"] <= 1024, "a superblock with too many cuts or chunks")
            need(all(block[name] <= LIMIT_62 for name in "generation position replay sequence epoch".split())
                 and block["replay"] % BLOCK == 0, "a superblock with numbers out of bounds")
            at = 192 + 16 * block["cuts"]
            cuts = [struct.unpack_from("<QQ", slot, where) for where in range(192, at, 16)]
            chunks, end = [], 0
            for _ in range(block["chunks"]):
                first, size, kind, copies, _, count, _ = take("QQBBBBQ", slot[:length], at, "the chunk table")
                at += 28
                stripes = [take("HQ", slot[:length], at + 10 * number, "the chunk table") for number in range(count)]
                at += 10 * count
                need(first == end and size % BLOCK == 0 and size and count == copies >= 1, "a malformed chunk")
                need(kind == 0 and all(device == 0 for device, _ in stripes), "a chunk of a kind that is not known")
                chunks.append((first, size, stripes))
                end = first + size
            need(at == length and end == block["blocks"] * BLOCK, "a malformed chunk table")
            block["cuts"], block["chunks"] = cuts, chunks
            return block
        except (Damaged, struct.error) as error:
            warn(f"the superblock at byte {block['at']} cannot be used: {error}")
            return None

    def superblock(self):
        found, self.slots = [], 0
        for end, slot in ((end, slot) for end in (0, 1) for slot in range(4)):
            block = self.parse_superblock(SLOTS_AT(self.size - TAIL if end else 0, slot))
            if block and block["pool"] == self.pool:
                found.append(block)
        need(found, "no superblock of this pool is left: an interrupted creation, or too damaged")
        self.slots = len(found)
        self.sb = max(found, key=lambda block: block["generation"])
        unknown = self.sb["incompatible"] & ~INCOMPATIBLE_KNOWN
        need(not unknown, f"the pool uses features that this program does not know (bits {unknown:#x})")

    def copies(self, address):
        """Where a block of the pool's address space is on the device."""
        chunks = self.sb["chunks"]
        first, size, stripes = chunks[min(address // chunks[0][1], len(chunks) - 1)]
        need(first <= address < first + size and address % BLOCK == 0, f"pool address {address} is out of bounds")
        return [at + address - first for _, at in stripes]

    def block(self, where, what):
        """The block that a pointer leads to: the first copy that its checksum agrees with."""
        for address in where.addresses:
            for at in self.copies(address):
                data = self.read(at, BLOCK)
                if data is not None and crc32c(data) == where.checksum:
                    return data
        places = ", ".join(str(address) for address in where.addresses)
        raise Damaged(f"{what}: no copy of the block at pool address {places} can be used")


def SLOTS_AT(end, slot):
    return end + SLOT + slot * SLOT


class Tree:
    """A tree of the checkpoint, and what the log has changed in it."""

    def __init__(self, pool, number, root=None, levels=0):
        self.pool, self.number, self.root, self.levels = pool, number, root, levels
        self.changes, self.order, self.cache = {}, [], collections.OrderedDict()

    def node(self, where, level):
        found = self.cache.get(where)
        if found:
            self.cache.move_to_end(where)
            return found
        what = f"tree {self.number}"
        data = self.pool.device.block(where, what)
        magic, tree, at_level, _, count, prefix, used, _, generation, pool = struct.unpack_from("<IHBBHHHHQ8s", data)
        need(magic == 0x444E5656 and tree == self.number and at_level == level and pool == self.pool.device.pool[:8]
             and generation == where.generation and count and prefix <= used <= BLOCK - 32, f"{what}: a malformed node")
        at, end, keys, values = 32 + prefix, 32 + used, [], []
        for entry in range(count):
            suffix, length = take("BH", data[:end], at, what)
            at += 3
            need(at + suffix + length <= end, f"{what}: an entry crosses the end of its node")
            first = level and not entry
            need(not (first and suffix), f"{what}: a first key that is not empty")
            keys.append(b"" if first else data[32 : 32 + prefix] + data[at : at + suffix])
            value = data[at + suffix : at + suffix + length]
            values.append(pointer(value, 0, what) if level else value)
            need(not level or (length == 64 and values[-1]), f"{what}: a malformed node pointer")
            at += suffix + length
        need(at == end and data[end:] == bytes(BLOCK - end), f"{what}: a node with something behind its entries")
        need(all(low < high for low, high in zip(keys, keys[1:])), f"{what}: keys that do not ascend")
        self.cache[where] = keys, values
        if len(self.cache) > 4096:
            self.cache.popitem(last=False)
        return keys, values

    def stored(self, prefix, where, level, low=b"", high=None):
        keys, values = self.node(where, level)
        need((level or keys[0] >= low) and (high is None or keys[-1] < high), f"tree {self.number}: a node out of place")
        need(not level or len(keys) == 1 or keys[1] > low, f"tree {self.number}: a node out of place")
        start = bisect.bisect_left(keys, prefix) if not level else max(bisect.bisect_right(keys, prefix) - 1, 0)
        for entry in range(start, len(keys)):
            if keys[entry] > prefix and not keys[entry].startswith(prefix):
                return
            if level:
                bounds = keys[entry] or low, keys[entry + 1] if entry + 1 < len(keys) else high
                yield from self.stored(prefix, values[entry], level - 1, *bounds)
            else:
                yield keys[entry], values[entry]

    def scan(self, prefix=b""):
        """All entries whose keys begin so, in order."""
        at, order = bisect.bisect_left(self.order, prefix), self.order
        for key, value in self.stored(prefix, self.root, self.levels - 1) if self.root else ():
            while at < len(order) and order[at] < key:
                if self.changes[order[at]] is not None:
                    yield order[at], self.changes[order[at]]
                at += 1
            if at < len(order) and order[at] == key:
                continue
            yield key, value
        while at < len(order) and order[at].startswith(prefix):
            if self.changes[order[at]] is not None:
                yield order[at], self.changes[order[at]]
            at += 1

    def get(self, key):
        return next((value for found, value in self.scan(key) if found == key), None)


class Array:
    """Checksums, or the bitmap: pages under pages of pointers."""

    def __init__(self, device, top, pages, what):
        self.device, self.top, self.pages, self.what, self.cache = device, top, pages, what, {}
        self.levels = 0
        while 64**self.levels < pages:
            self.levels += 1

    def page(self, number):
        need(number < self.pages, f"{self.what}: page {number} is out of bounds")
        where = self.top
        for level in range(self.levels - 1, -1, -1):
            if where is None:
                return ZEROS
            where = pointer(self.load(where), 64 * (number // 64**level % 64), self.what)
        return self.load(where) if where else ZEROS

    def load(self, where):
        if where not in self.cache:
            if len(self.cache) > 1024:
                self.cache.clear()
            self.cache[where] = self.device.block(where, self.what)
        return self.cache[where]


class Log:
    """The batches that count (SPEC.md, Which batches count)."""

    def __init__(self, device):
        self.device, self.sb, self.cut_off = device, device.sb, 0
        self.batches = self.follow()
        self.complain()
        self.choose_end()

    def read(self, position, blocks):
        """Blocks at an absolute position, which may wrap; None where one cannot be read."""
        place, length, ring = position % self.device.ring, blocks * BLOCK, self.device.ring
        first = min(length, ring - place)
        parts = [self.device.read(RING_START + place, first)]
        if length > first:
            parts.append(self.device.read(RING_START, length - first))
        return None if None in parts else b"".join(parts)

    def parse(self, position, want=None):
        """A whole batch, or None. `want` looks at the header first."""
        head = self.read(position, 1)
        if head is None or head[:24] != b"VRVEBATH" + self.device.pool:
            return None
        fields = struct.unpack_from("<QQIIQQQQIIIIQ", head, 24)
        epoch, sequence, previous, checksum, superblock, flushed, first, last, count, payload, blocks, flags, mask = fields
        batch = Batch(epoch, sequence, previous, checksum, superblock, flushed, first, last, count, payload, blocks, mask, None)
        if want and not want(batch):
            return None
        if flags or not 0 < blocks <= 2048 or 128 + payload > blocks * BLOCK or blocks * BLOCK > self.device.ring:
            return None
        raw = self.read(position, blocks)
        if raw is None:
            warn("the log cannot be read to its end: more may be missing")
            return None
        if crc32c(raw[:44] + bytes(4) + raw[48:]) != checksum:
            return None
        plain = bytearray(raw)
        for at in range(BLOCK, len(raw), BLOCK):
            plain[at : at + 8] = (int.from_bytes(raw[at : at + 8], "little") ^ mask).to_bytes(8, "little")
        need(not any(plain[128 + payload :]), f"batch {sequence}: something behind the payload")
        return batch._replace(raw=bytes(plain[128 : 128 + payload]))

    def follow(self):
        position, sequence, previous = self.sb["replay"], self.sb["sequence"], self.sb["previous"]
        found, used = [], 0
        while True:
            epoch = next((epoch for epoch, last in self.sb["cuts"] if sequence <= last), self.sb["epoch"])
            batch = self.parse(position, lambda b: (b.epoch, b.sequence, b.previous) == (epoch, sequence, previous))
            if not batch or used + batch.blocks * BLOCK > self.device.ring:
                if self.read(position, 1) is None:
                    warn("the log cannot be read to its end: more may be missing")
                self.expected = sequence
                return found
            found.append(batch)
            used += batch.blocks * BLOCK
            position, sequence, previous = position + batch.blocks * BLOCK, sequence + 1, batch.checksum

    def complain(self):
        """The three things that are no crash but damage. What is shown is right but not all."""
        cuts, generation, epoch = self.sb["cuts"], self.sb["generation"], self.sb["epoch"]
        self.trusted = max([b.flushed for b in self.batches] + [self.sb["sequence"] - 1] + [last for _, last in cuts[-1:]])
        if cuts and self.expected <= cuts[-1][1]:
            warn(f"the log ends at batch {self.expected - 1}, and batch {cuts[-1][1]} was there: more may be missing")

        def beyond(batch):
            late = batch.epoch == epoch and batch.sequence > self.expected and batch.flushed >= self.expected
            return late or batch.superblock > generation

        for position in range(0, self.device.ring, BLOCK):
            batch = self.parse(position, beyond)
            if batch and batch.superblock > generation:
                warn(f"batch {batch.sequence} names superblock {batch.superblock}, and the newest that is left is "
                     f"{generation}: what it says may have been overwritten")
                return
            if batch:
                warn(f"batch {self.expected} of the log is lost and batch {batch.sequence} is there: more may be missing")
                return

    def ops(self, batch):
        """Operations of a batch by transaction, each as (type, fields)."""
        data, at, what = batch.raw, 0, f"batch {batch.sequence}"
        for number in range(batch.count):
            position, count, length = take("QII", data, at, what)
            at += 16
            end, ops = at + length, []
            need(end <= len(data) and position == batch.first + number, f"{what}: a malformed transaction")
            for _ in range(count):
                kind, flags, size = take("BBI", data[:end], at, what)
                body = data[at + 6 : at + 6 + size]
                at += 6 + size
                need(at <= end, f"{what}: an operation crosses the end of its transaction")
                ops.append(self.op(kind, flags, body, what))
            need(at == end, f"{what}: a malformed transaction")
            yield ops
        need(at == len(data), f"{what}: something behind the transactions")

    def op(self, kind, flags, body, what):
        if kind == 1:
            tree, length = take("HB", body, 0, what)
            need(len(body) >= 3 + length, f"{what}: a malformed operation")
            return "put", tree, body[3 : 3 + length], body[3 + length :]
        if kind == 2:
            return "delete", take("H", body, 0, what)[0], body[2:], None
        if kind in (3, 4):
            address, blocks = take("QI", body, 0, what)
            need(address and address % BLOCK == 0 and 0 < blocks <= 1 << 20 and address // BLOCK + blocks <= self.sb["blocks"],
                 f"{what}: a malformed operation")
            need(len(body) == 12 + (4 * blocks if kind == 3 else 0), f"{what}: a malformed operation")
            return "place" if kind == 3 else "free", address // BLOCK, blocks, body[12:]
        if kind == 5:
            return "floor", take("Q", body, 0, what)[0], None, None
        need(flags & 1, f"{what}: an operation of unknown type {kind}")
        return "skip", None, None, None

    def choose_end(self):
        """Leaves out the batches whose data had not arrived when the power failed."""
        excluded, placed = set(), {}  # placed: block -> (batch, checksum), of what must have arrived

        def settle(block, next_batch):
            batch, checksum = placed.pop(block, (None, None))
            if batch is not None and batch < next_batch and not self.arrived(block, checksum):
                excluded.update(range(batch, next_batch))

        for batch in self.batches:
            try:
                for name, block, blocks, sums in (op for ops in self.ops(batch) for op in ops if op[0] in ("place", "free")):
                    for number in range(blocks):
                        settle(block + number, batch.sequence)
                        if name == "place" and batch.sequence > self.trusted:
                            placed[block + number] = batch.sequence, take("I", sums, 4 * number, "log")[0]
            except Damaged:
                break  # replay says so
        for block in list(placed):
            settle(block, self.expected)
        end = self.expected - 1
        while end > self.trusted and end in excluded:
            end -= 1
        keep = [batch for batch in self.batches if batch.sequence <= max(end, self.trusted)]
        self.cut_off, self.batches = len(self.batches) - len(keep), keep

    def arrived(self, block, checksum):
        copies = [self.device.read(at, BLOCK) for at in self.device.copies(block * BLOCK)]
        if any(data is not None and crc32c(data) == checksum for data in copies):
            return True
        if None in copies:
            warn(f"the end of the log hangs on pool address {block * BLOCK}, which cannot be read: more may be missing")
        return False


class Pool:
    """The state that the next mount would find."""

    def __init__(self, path):
        self.device = Device(path)
        self.sb, self.keys = self.device.sb, hash_keys(self.device.sb["seed"])
        self.trees = {number: Tree(self, number) for number in range(1, 12)}
        self.sums, self.chains, self.ids, self.digests = {}, {}, 1, {}
        self.checksums = self.bitmap = None
        if self.sb["root"]:
            self.load_root(self.device.block(self.sb["root"], "the root block"))
        self.log = Log(self.device)
        self.replay()
        self.load_subvolumes()

    def load_root(self, data):
        magic, count, _, position, generation, self.ids = struct.unpack_from("<IHHQQQ", data)
        need(magic == 0x54525656 and count <= 32 and position == self.sb["position"]
             and generation == self.sb["root"].generation, "a malformed root block")
        self.position, arrays = position, []
        for at, per_page, what in ((64, 1024, "the checksums"), (144, BLOCK * 8, "the bitmap")):
            pages = take("Q", data, at, what)[0]
            need(pages == -(-self.sb["blocks"] // per_page), f"{what}: the wrong number of pages")
            arrays.append(Array(self.device, pointer(data, at + 16, what), pages, what))
        self.checksums, self.bitmap = arrays
        for at in range(224, 224 + 80 * count, 80):
            number, levels = take("HB", data, at, "the root block")
            root = pointer(data, at + 16, "the root block")
            need(levels <= 16 and bool(levels) == bool(root), "a malformed root block")
            if number not in self.trees:
                warn(f"the pool has a tree {number}, which this program does not know")
            self.trees[number] = Tree(self, number, root, levels)

    def replay(self):
        position, used = self.sb["position"], {}

        def in_use(block):
            if block not in used and self.bitmap:
                page = self.bitmap.page(block // (BLOCK * 8))
                used[block] = bool(page[block // 8 % BLOCK] >> (block % 8) & 1)
            return used.get(block, False)

        try:
            for batch in self.log.batches:
                need(batch.first == position + 1 and batch.last == position + batch.count, "a log with a gap")
                for ops in self.log.ops(batch):
                    for op, what, key, value in ops:
                        if op in ("put", "delete"):
                            need(what in self.trees, f"batch {batch.sequence}: tree {what} is not known")
                            self.trees[what].changes[key] = value
                        elif op in ("place", "free"):
                            for number in range(key):
                                state = in_use(what + number)
                                need(state == (op == "free"), f"batch {batch.sequence}: a block is {op}d that was so already")
                                used[what + number] = op == "place"
                                if op == "place":
                                    self.sums[what + number] = take("I", value, 4 * number, "log")[0]
                        elif op == "floor":
                            self.ids = max(self.ids, what)
                    position += 1
        except Damaged as error:
            warn(f"the log is corrupt: {error}; what follows in it is left out")
        self.position = position
        for tree in self.trees.values():
            tree.order = sorted(tree.changes)

    # Namespaces

    def load_subvolumes(self):
        self.subvolumes, self.places = {}, collections.defaultdict(list)
        for key, value in self.trees[SUBVOLUMES].scan():
            try:
                need(len(key) == 8, "a malformed key")
                number = int.from_bytes(key, "big")
                family, version, root, _, kind, _, _, slot, _, flags = take("QQQQBBQI16sH", value, 0, "its record")
                need(not flags & ~31 and kind == 1 and slot < 1 << 20, "a malformed record")
                place, origin, name = None, 0, b""
                if len(value) > 64:
                    parent, directory, position, _, _, origin = take("QQQqIQ", value, 64, "its record")
                    place, name = (parent, directory, position), value[108:]
                    need(name_is_sound(name), "a malformed name")
                self.subvolumes[number] = Subvolume(number, family, version, root, slot, flags, place, origin, name)
                if place and not flags & 6:
                    self.places[place[:2]].append(self.subvolumes[number])
            except Damaged as error:
                warn(f"subvolume {key.hex()}: {error}")

    def chain(self, family, version):
        """The versions that one sees: {version key: (rank, what of it is seen ends here)}."""
        if (family, version) in self.chains:
            return self.chains[family, version]
        prefix, what = be(family), f"version {version} of family {family}"
        chain = {}
        if next(self.trees[VERSIONS].scan(prefix), None) is None:
            chain[family] = 0, NO_LIMIT
        else:
            limit, at = NO_LIMIT, version
            while at:
                record = self.trees[VERSIONS].get(prefix + be(at))
                need(record is not None, f"{what}: version {at} has no record")
                parent, key, _, _, _, own_limit = take("QQQQQQ", record, 0, what)
                need(parent < at and key not in chain and len(record) == 96, f"{what}: a malformed record")
                chain[key] = len(chain), limit
                limit, at = min(limit, own_limit), parent
        if len(self.chains) > 10000:
            self.chains.clear()
        self.chains[family, version] = chain
        return chain

    def seen(self, tree, family, version, prefix):
        """What a namespace's version sees: (key without the version, value), in order."""
        chain, place, best, value = self.chain(family, version), None, None, b""
        for key, found in self.trees[tree].scan(be(family) + prefix):
            need(len(key) > 16, f"tree {tree}: a short key")
            if key[:-8] != place:
                if best is not None and value:
                    yield place[8:], value
                place, best, value = key[:-8], None, b""
            rank = chain.get(NO_LIMIT - int.from_bytes(key[-8:], "big"))
            if rank and (best is None or rank < best):
                best, value = rank, found
        if best is not None and value:
            yield place[8:], value

    def inode(self, volume, number):
        for _, value in self.seen(INODES, volume.family, volume.version, be(number)):
            return parse_inode(value)
        raise Damaged(f"inode {number} of subvolume {volume.id} has no record")

    def names(self, volume, directory):
        """Entries of a directory: (name, subvolume, inode number)."""
        for key, value in self.seen(NAMES, volume.family, volume.version, be(directory)):
            position = int.from_bytes(key[8:16], "big")
            if len(value) == 1 and value[0] == 3:
                continue
            _, kind, number = take("BBQ", value, 0, "a name")
            name = value[10:]
            need(name_is_sound(name) and 0 < kind < 8 and 0 < number < 1 << 43, "a malformed name")
            need(position >> 8 == self.name_hash(name), f"the name {show(name)} is not where its hash says")
            yield name, volume, number
        for child in self.places.get((volume.id, directory), ()):
            need(child.place[2] >> 8 == self.name_hash(child.name), "a subvolume's name is not where its hash says")
            yield child.name, child, child.root

    def name_hash(self, name):
        return siphash13(self.keys, name) & ((1 << 55) - 1) or 1

    def xattrs(self, volume, number):
        pieces = collections.defaultdict(dict)
        for key, value in self.seen(XATTRS, volume.family, volume.version, be(number)):
            position, piece = struct.unpack(">QH", key[8:18])
            pieces[position][piece] = value
        found = {}
        for position, parts in pieces.items():
            need(0 in parts, "an attribute without its first piece")
            length, total = take("BI", parts[0], 0, "an attribute")
            name, value = parts[0][5 : 5 + length], [parts[0][5 + length :]]
            need(len(name) == length and total <= 64 << 10, "a malformed attribute")
            need(position >> 8 == self.name_hash(name), f"the attribute {show(name)} is not where its hash says")
            value += [parts.get(piece, b"") for piece in range(1, max(-(-total // 1024), 1))]
            found[name] = b"".join(value)
            need(len(found[name]) == total, f"the attribute {show(name)} is not complete")
        return found

    # Contents

    def mapped(self, inode):
        """Data blocks of a file, in order: (offset, block of the pool)."""
        if inode.bits & 1 or inode.kind not in (1, 3) or not inode.family:
            return
        chain, segment, entries = self.chain(inode.family, inode.version), None, []
        for key, value in self.trees[EXTENTS].scan(be(inode.family)):
            need(len(key) == 28, "a malformed key of an extent")
            number, version, offset = struct.unpack(">QQI", key[8:])
            if number != segment:
                yield from self.paint(segment, entries, inode.size)
                segment, entries = number, []
            if NO_LIMIT - version in chain:
                entries.append((*chain[NO_LIMIT - version], offset, parse_extent(value, offset)))
        yield from self.paint(segment, entries, inode.size)

    @staticmethod
    def paint(segment, entries, size):
        """A segment's blocks: the newest entry has each, whatever it is."""
        blocks = [None] * 256
        for _, limit, offset, extent in sorted(entries, key=lambda entry: entry[0]):
            for number in range(extent.blocks):
                at = offset // BLOCK + number
                if blocks[at] is None and segment * SEGMENT + at * BLOCK < limit:
                    blocks[at] = extent.block + number if extent.kind == 1 else 0
        for at, block in enumerate(blocks):
            if block and segment * SEGMENT + at * BLOCK < size:
                yield segment * SEGMENT + at * BLOCK, block

    def data(self, block):
        """A data block, verified."""
        checksum = self.sums.get(block)
        if checksum is None:
            need(self.checksums, "data without a checkpoint")
            checksum = take("I", self.checksums.page(block // 1024), block % 1024 * 4, "checksums")[0]
        for at in self.device.copies(block * BLOCK):
            data = self.device.read(at, BLOCK)
            if data is not None and crc32c(data) == checksum:
                return data
        raise Damaged(f"no copy of the data at pool address {block * BLOCK} can be used")

    def contents(self, inode):
        """Bytes of a file that are not in holes: (offset, bytes), in order."""
        if inode.bits & 1:
            yield 0, inode.inline[: inode.size]
        for offset, block in self.mapped(inode):
            yield offset, self.data(block)[: inode.size - offset]

    def plain(self, inode):
        """All bytes of a file, holes as zeros, in pieces."""
        at = 0
        for offset, data in self.contents(inode):
            yield from zeros(offset - at)
            yield data
            at = offset + len(data)
        yield from zeros(inode.size - at)

    def target(self, inode):
        need(inode.size <= BLOCK, "a symbolic link that is too long")
        return b"".join(self.plain(inode))

    def digest(self, inode):
        """SHA-256 of the contents; of huge files that of the offset (u64) and the bytes of each block that has any but zeros."""
        key = None if inode.bits & 1 else (inode.family, inode.version, inode.size)
        if key not in self.digests or key is None:
            whole, sha = inode.size <= DIGEST_MAX, hashlib.sha256()
            for offset, data in ((None, part) for part in self.plain(inode)) if whole else self.contents(inode):
                if whole:
                    sha.update(data)
                elif data.count(0) != len(data):
                    sha.update(struct.pack("<Q", offset) + data.ljust(BLOCK, b"\0"))
            self.digests[key] = ("sha256" if whole else "blocks_sha256", sha.hexdigest())
        return self.digests[key]

    # Paths

    def find(self, path):
        volume = self.subvolumes.get(2)
        need(volume, "the pool has no first subvolume")
        number = volume.root
        for part in (part for part in path.split(b"/") if part not in (b"", b".")):
            need(self.inode(volume, number).kind == 2, f"{show(path)}: not a directory")
            found = next((entry for entry in self.names(volume, number) if entry[0] == part), None)
            need(found, f"{show(path)}: there is no {show(part)}")
            _, volume, number = found
        return volume, number

    def walk(self, path, volume, number):
        """What is at a path and below it: (path, subvolume, number, inode), directories first. Damage is told, the rest goes on."""
        todo, been = [(path, volume, number, None)], set()
        while todo:
            path, volume, number, parent = todo.pop()
            try:
                inode = self.inode(volume, number)
                if inode.kind == 2:
                    need((volume.id, number) not in been, "a directory that has two places")
                    need(parent is None or inode.parent == parent, "a directory that says it is in another one")
                    been.add((volume.id, number))
                yield path, volume, number, inode
                if inode.kind == 2:
                    children = []
                    try:
                        for name, child, below in self.names(volume, number):
                            above = number if child is volume else below
                            children.append((path.rstrip(b"/") + b"/" + name, child, below, above))
                    finally:
                        todo += sorted(children, key=lambda entry: entry[0], reverse=True)
            except Damaged as error:
                warn(f"{show(path)}: {error}")

    def describe(self, path, volume, number, inode):
        children = len(self.places.get((volume.id, number), ()))
        links = inode.links if inode.kind != 2 else inode.rdev + 1 + children if inode.rdev else 1
        entry = dict(path=show(path), subvolume=volume.id, inode=shown_number(volume.slot, number), own_number=number)
        entry |= dict(type=KINDS[inode.kind], mode=f"{inode.mode:04o}", uid=inode.uid, gid=inode.gid, nlink=links)
        entry |= dict(size=inode.size + (children if inode.kind == 2 else 0), flags=inode.flags)
        entry |= dict(zip(("atime", "mtime", "ctime", "btime"), inode.times))
        attributes = self.xattrs(volume, number) if inode.xattrs else {}
        need(len(attributes) == inode.xattrs, f"{len(attributes)} extended attributes instead of {inode.xattrs}")
        entry["xattrs"] = {show(name): value.hex() for name, value in sorted(attributes.items())}
        if inode.kind in (6, 7):
            entry["rdev"] = inode.rdev
        if inode.kind == 3:
            entry["target"] = show(self.target(inode))
        if inode.kind == 1:
            name, value = self.digest(inode)
            entry[name] = value
        return entry


def be(number):
    return number.to_bytes(8, "big")


def zeros(length):
    while length > 0:
        yield bytes(min(length, SEGMENT))
        length -= SEGMENT


def name_is_sound(name):
    return 1 <= len(name) <= 255 and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def shown_number(slot, own):
    low = (own ^ slot * 0x9E3779B1) & 0xFFFFFFFF
    return low | slot << 32 | own >> 32 << 52


def parse_inode(value):
    kind, bits, *fields = take("BBHIIIIIIIIQQQQQQ", value, 0, "an inode record")
    mode, flags, uid, gid, links, rdev, project, xattrs, xattr_bytes, size, generation, change, parent, family, version = fields
    times = [list(take("qI", value, at, "an inode record")) for at in (84, 96, 108, 120)]
    length = take("H", value, 166, "an inode record")[0]
    need(0 < kind < 8 and bits < 4 and mode < 0o10000 and len(value) == 168 + length and size <= 1 << 62
         and not flags & ~255 and (bits & 1 or not length), "a malformed inode record")
    return Inode(kind, bits, mode, flags, uid, gid, links, rdev, project, xattrs, xattr_bytes, size, generation, change, parent,
                 family, version, times, value[168:])


def parse_extent(value, offset):
    """Kind (1 data, 2 hole, 3 reserved), blocks, first pool block."""
    form = value[0] if value else 0
    if form == 4 and len(value) == 8:
        extent = Extent(1, value[1] + 1, int.from_bytes(value[2:], "little"))
    elif form in (5, 6) and len(value) == 2:
        extent = Extent(form - 3, value[1] + 1, 0)
    else:
        need(form in (1, 2, 3) and len(value) == 36, "a malformed extent")
        codec, checksum, flags, address, stored, raw, begin, length = take("BBBQIIII", value, 1, "an extent")
        need(codec == flags == begin == 0 and checksum == (form == 1), "an extent of a kind that is not known")
        need(length % BLOCK == address % BLOCK == 0 and (form != 1 or stored == raw == length), "a malformed extent")
        extent = Extent(form, length // BLOCK, address // BLOCK)
    need(bool(extent.block) == (extent.kind == 1) and extent.blocks, "a malformed extent")
    need(offset % BLOCK == 0 and offset + extent.blocks * BLOCK <= SEGMENT, "an extent that crosses its segment")
    return extent


# Commands


def ls(pool, path, recursive):
    volume, number = pool.find(path)
    start = b"/" + path.strip(b"/")
    for path, volume, number, inode in pool.walk(start, volume, number) if recursive else listed(pool, start, volume, number):
        when = inode.times[1][0]
        kind = stat.filemode(MODES[inode.kind] | inode.mode)
        print(f"{kind} {inode.links:3} {inode.uid:6} {inode.gid:6} {inode.size:14} {when:12} {show(path)}")


def listed(pool, path, volume, number):
    inode = pool.inode(volume, number)
    if inode.kind != 2:
        yield path, volume, number, inode
        return
    for name, child, below in sorted(pool.names(volume, number), key=lambda entry: entry[0]):
        try:
            yield name, child, below, pool.inode(child, below)
        except Damaged as error:
            warn(f"{show(path)}/{show(name)}: {error}")


def cat(pool, path):
    volume, number = pool.find(path)
    inode = pool.inode(volume, number)
    need(inode.kind in (1, 3), f"{show(path)}: neither a file nor a symbolic link")
    for data in pool.plain(inode):
        sys.stdout.buffer.write(data)


def tree(pool):
    root = pool.subvolumes.get(2)
    need(root, "the pool has no first subvolume")
    for path, volume, number, inode in pool.walk(b"/", root, root.root):
        try:
            print(json.dumps(pool.describe(path, volume, number, inode)))
        except Damaged as error:
            warn(f"{show(path)}: {error}")


def info(pool):
    device, sb = pool.device, pool.sb
    profiles = {(1, 1): "single", (2, 1): "dup"}
    print(f"pool id        {device.pool.hex()}")
    print(f"size           {device.size} bytes, log {device.ring} bytes")
    print(f"superblock     generation {sb['generation']} at byte {sb['at']}, {device.slots} of 8 slots can be used")
    print(f"closed         {'yes' if sb['closed'] and not pool.log.batches else 'no'}")
    print(f"log            {len(pool.log.batches)} batches replayed, {pool.log.cut_off} cut off")
    print(f"copies         data {profiles.get(sb['data'], sb['data'])}, metadata {profiles.get(sb['metadata'], sb['metadata'])}")
    print(f"features       {sb['incompatible']:#x} incompatible, {sb['read_only']:#x} read-only, {sb['compatible']:#x} others")
    print(f"numbers        below {pool.ids} are taken")
    print(f"without names  {sum(1 for _ in pool.trees[ORPHANS].scan())}")
    for volume in pool.subvolumes.values():
        flags = [name for bit, name in ((1, "read-only"), (2, "pending"), (4, "being deleted")) if volume.flags & bit]
        snapshot = [f"snapshot of {volume.origin}"] if volume.origin else []
        print(f"subvolume {volume.id:4} {', '.join([path_of(pool, volume)] + snapshot + flags)}")


def path_of(pool, volume):
    """A subvolume's path, up from its place."""
    parts, been = [], set()
    while volume.place:
        need(volume.id not in been, "subvolumes that contain each other")
        been.add(volume.id)
        parts.append(volume.name)
        volume, number = pool.subvolumes.get(volume.place[0]), volume.place[1]
        if volume is None:
            return "(lost) " + show(b"/".join(parts[::-1]))
        while number != volume.root:
            parts.append(name_in(pool, volume, number))
            number = pool.inode(volume, number).parent
            need(len(parts) < 10000, "directories that contain each other")
    return show(b"/" + b"/".join(parts[::-1]))


def name_in(pool, volume, number):
    above = pool.inode(volume, number).parent
    return next((name for name, child, below in pool.names(volume, above) if child is volume and below == number), b"?")


def extract(pool, path, target):
    volume, number = pool.find(path)
    linked, later, target = {}, [], os.fsencode(target)
    need(not os.path.lexists(target), "what to extract to is there already")
    base = b"/" + path.strip(b"/")
    for path, volume, number, inode in pool.walk(base, volume, number):
        out = target + (path[len(base) :] if base != b"/" else path.rstrip(b"/"))
        try:
            first = linked.setdefault((volume.id, number), out)
            if first != out:
                os.link(first, out, follow_symlinks=False)
                continue
            make(pool, inode, out)
            if inode.kind == 2:
                later.append((out, volume, number, inode))
            else:
                attributes(pool, out, volume, number, inode)
        except (Damaged, OSError) as error:
            warn(f"{show(path)}: {error}")
    for out, volume, number, inode in reversed(later):
        try:
            attributes(pool, out, volume, number, inode)
        except (Damaged, OSError) as error:
            warn(f"{show(out)}: {error}")


def make(pool, inode, out):
    if inode.kind == 2:
        os.mkdir(out, 0o700)
    elif inode.kind == 3:
        os.symlink(pool.target(inode), out)
    elif inode.kind > 3:
        os.mknod(out, MODES[inode.kind] | 0o600, inode.rdev if inode.kind > 5 else 0)
    else:
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(file, inode.size)
            for offset, data in pool.contents(inode):
                while data:
                    written = os.pwrite(file, data, offset)
                    offset, data = offset + written, data[written:]
        finally:
            os.close(file)


def attributes(pool, out, volume, number, inode):
    mode = inode.mode
    try:
        os.chown(out, inode.uid, inode.gid, follow_symlinks=False)
    except OSError:
        mode &= 0o1777  # without its owner, a set-id bit would be somebody else's
    if inode.kind != 3:
        os.chmod(out, mode)
    try:
        for name, value in pool.xattrs(volume, number).items():
            os.setxattr(out, name, value, follow_symlinks=False)
    except OSError as error:
        warn(f"{show(out)}: extended attributes: {error.strerror}")
    stamps = tuple(seconds * 10**9 + nanoseconds for seconds, nanoseconds in inode.times[:2])
    os.utime(out, ns=stamps, follow_symlinks=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("-e", "--escaped", action="store_true", help="paths have the escapes in which names are printed")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info")
    command = commands.add_parser("ls")
    command.add_argument("-R", "--recursive", action="store_true")
    command.add_argument("path", nargs="?", default="/")
    commands.add_parser("cat").add_argument("path")
    commands.add_parser("tree").add_argument("--json", action="store_true", help="the only form there is")
    command = commands.add_parser("extract")
    command.add_argument("path")
    command.add_argument("dir")
    args = parser.parse_args()
    path = os.fsencode(getattr(args, "path", ""))
    path = unshow(path) if args.escaped else path
    try:
        pool = Pool(args.pool)
        run = dict(info=lambda: info(pool), ls=lambda: ls(pool, path, args.recursive), cat=lambda: cat(pool, path),
                   tree=lambda: tree(pool), extract=lambda: extract(pool, path, args.dir))
        run[args.command]()
        sys.stdout.flush()
    except Damaged as error:
        warn(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        warn(error)
    except (struct.error, IndexError, OverflowError) as error:
        warn(f"something malformed that no check had expected: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(1 if warn.count else 0)


if __name__ == "__main__":
    main()
