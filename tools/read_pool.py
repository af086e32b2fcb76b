#!/usr/bin/env python3
"""Reads VarveFS pools with nothing but SPEC.md and Python's standard library.

With pool_blocks.py this is a second implementation of the format, written from SPEC.md alone. It is for recovery by hand,
where no program of VarveFS runs, and it holds SPEC.md true: a test compares what it sees with what the library sees. It
opens the pool for reading, takes no lock and never writes to it. It starts from the newest superblock of either end of
the device, applies the log in memory, and verifies the checksum of every block that it uses; where one copy is bad it
takes another. What cannot be read is said on standard error, the rest goes on, and the exit status is 1. Do not use it on
a mounted pool.

    read_pool.py POOL info              what the pool is, and its subvolumes and snapshots
    read_pool.py POOL ls [-R] [PATH]    a directory; paths lead into subvolumes and snapshots as in a mounted pool
    read_pool.py POOL cat PATH          a file's contents, or what a symbolic link holds
    read_pool.py POOL tree --json       every inode of every subvolume, one JSON object a line, with a digest of its contents
    read_pool.py POOL extract PATH DIR  copy a file or a directory out, to DIR, which must not exist

Names are printed as `varve` prints them (docs/check.md, Names), and understood in the same way if -e is given.
"""

import argparse
import collections
import hashlib
import json
import os
import re
import stat
import struct
import sys
import unicodedata

from pool_blocks import BLOCK, NO_LIMIT, SEGMENT, Array, Damaged, Device, Log, Tree, crc32c, need, pointer, take, warn

INODES, NAMES, XATTRS, EXTENTS, VERSIONS, ORPHANS, SUBVOLUMES = range(1, 8)
TREES = 11
KINDS = [None, "file", "directory", "symlink", "fifo", "socket", "char_device", "block_device"]
MODES = [0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK]
DIGEST_MAX = 1 << 30  # files beyond are not hashed as a whole


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


Extent = collections.namedtuple("Extent", "kind blocks block")
Inode = collections.namedtuple(
    "Inode",
    "kind bits mode flags uid gid links rdev project xattrs xattr_bytes size generation change parent family version "
    "times inline",
)
Subvolume = collections.namedtuple("Subvolume", "id family version root slot flags place origin name")


class Pool:
    """The state that the next mount would find."""

    def __init__(self, path):
        self.device = Device(path)
        self.sb, self.keys = self.device.sb, hash_keys(self.device.sb["seed"])
        self.trees = {number: Tree(self, number) for number in range(1, TREES + 1)}
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
        entry |= dict(size=inode.size, flags=inode.flags)
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
