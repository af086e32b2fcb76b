"""What lies under the files of a VarveFS pool, as SPEC.md has it: labels, superblocks, the log, trees and arrays.

Of `read_pool.py`, which says what it is for. Everything here reads; every block is compared with its checksum before it is
believed; what is wrong raises `Damaged`, or is told on standard error where one can go on.
"""

import bisect
import collections
import os
import struct
import sys

BLOCK = 4096
SEGMENT = 1 << 20
RING_START = 1 << 20
SLOT = 64 << 10
TAIL = 512 << 10
INCOMPATIBLE_KNOWN = 15
NO_LIMIT = (1 << 64) - 1
LIMIT_62 = 1 << 62
ZEROS = bytes(BLOCK)


class Damaged(Exception):
    """What is on the device is not what SPEC.md allows, or cannot be read."""


def warn(text):
    warn.count += 1
    if warn.count <= 1000:
        print(f"read_pool: {text}", file=sys.stderr)


warn.count = 0


def crc_tables():
    """CRC-32C of a byte in four planes, and what 64 bytes of zeros make of each byte of the register."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)

    def later(register):
        for _ in range(LANE):
            register = table[register & 255] ^ (register >> 8)
        return register

    planes = [bytes(value >> shift & 255 for value in table) for shift in (0, 8, 16, 24)]
    return table, planes, [[later(byte << shift) for byte in range(256)] for shift in (0, 8, 16, 24)]


LANE = 64
CRC_TABLE, CRC_PLANES, CRC_LATER = crc_tables()


def crc32c(data):
    """Of all pieces of 64 bytes at once, a byte of each at a time: the registers' bytes lie in four large numbers."""
    crc, lanes = 0xFFFFFFFF, len(data) // LANE
    number, (plane0, plane1, plane2, plane3) = int.from_bytes, CRC_PLANES
    low = second = third = high = 0
    for at in range(LANE):
        at = (low ^ number(data[at : lanes * LANE : LANE], "little")).to_bytes(lanes, "little")
        low = number(at.translate(plane0), "little") ^ second
        second = number(at.translate(plane1), "little") ^ third
        third = number(at.translate(plane2), "little") ^ high
        high = number(at.translate(plane3), "little")
    later0, later1, later2, later3 = CRC_LATER
    for lane in zip(*(part.to_bytes(lanes, "little") for part in (low, second, third, high))):
        crc = later0[crc & 255] ^ later1[crc >> 8 & 255] ^ later2[crc >> 16 & 255] ^ later3[crc >> 24]
        crc ^= lane[0] | lane[1] << 8 | lane[2] << 16 | lane[3] << 24
    for byte in data[lanes * LANE :]:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def take(layout, data, at, what):
    """Fields at an offset, little-endian."""
    if at < 0 or at + struct.calcsize("<" + layout) > len(data):
        raise Damaged(f"{what} is too short")
    return struct.unpack_from("<" + layout, data, at)


def need(condition, what):
    if not condition:
        raise Damaged(what)


Pointer = collections.namedtuple("Pointer", "addresses generation checksum")
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
                block = self.parse_superblock(slot_at(0, slot))
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
            block = self.parse_superblock(slot_at(self.size - TAIL if end else 0, slot))
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


def slot_at(end, slot):
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
