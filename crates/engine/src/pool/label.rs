//! Labels, superblock slots and foreign signatures: how a device is recognised, and how a pool is laid out on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use varve_device::{AlignedBuf, Device, DeviceError};
use varve_format::root::{NODE_COPIES_MAX, NodePtr};
use varve_format::superblock::{
    CHUNKS_MAX, Chunk, FORMAT_VERSION, INCOMPATIBLE_KNOWN, Label, POOL_BYTES_MAX, POOL_BYTES_MIN,
    ProfileField, RING_BYTES_MAX, RING_BYTES_MIN, RING_START, SLOT_BYTES, SLOTS_PER_END, Stripe, Superblock,
    TAIL_BYTES, slot_offset,
};
use varve_format::{BLOCK_BYTES, BLOCK_SHIFT, Lsn};

use crate::options::{FormatOptions, Profile};
use crate::problem::{Judge, Problem, ProblemKind as Kind, Problems};
use crate::{EngineError, store::DEVICES_MAX};

type Result<T> = std::result::Result<T, EngineError>;

const CHUNK_BYTES_MIN: u64 = 64 << 20;
/// No count of anything comes near this, and what is larger is not read.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Who writes counts on. From here he gets nowhere near the other bound, or the pool could never be opened again.
pub const NUMBER_TO_WRITE_MAX: u64 = 1 << 61;

fn refuse<T>(text: String) -> Result<T> {
    Err(EngineError::Refused(text))
}

/// The two slots a generation is written to, one at each end.
pub fn slots_of(generation: u64, size_bytes: u64) -> [u64; 2] {
    let i = generation % SLOTS_PER_END;
    [slot_offset(i, size_bytes), slot_offset(SLOTS_PER_END + i, size_bytes)]
}

/// Reads; a device that fails is asked once more, for that may have been for a moment.
pub fn read_twice(device: &dyn Device, offset: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
    device.read_at(offset, buf).or_else(|_| device.read_at(offset, buf))
}

/// Devices in label order, and their labels.
type Labelled = (Vec<Arc<dyn Device>>, Vec<Label>);

/// Reads a label from either end of each device, and puts the devices in order.
pub fn read_labels(devices: Vec<Arc<dyn Device>>) -> Result<Labelled> {
    let mut found: Vec<(Label, Arc<dyn Device>)> = Vec::new();
    for device in devices {
        let label = read_label(device.as_ref())?;
        if let Some((first, _)) = found.first()
            && first.pool_id != label.pool_id
        {
            return refuse(format!("{} belongs to another pool than {}", device.name(), found[0].1.name()));
        }
        if device.size_bytes() < label.size_bytes {
            return refuse(format!(
                "{} is {} bytes long, but its label says {}: the device has been truncated; restore its length before opening it",
                device.name(),
                device.size_bytes(),
                label.size_bytes
            ));
        }
        found.push((label, device));
    }
    found.sort_by_key(|(l, _)| l.device_index);
    let Some((first, _)) = found.first() else { return refuse("no device was given".into()) };
    let ring_bytes = first.ring_bytes;
    if found.iter().enumerate().any(|(i, (l, _))| l.device_index as usize != i || l.ring_bytes != ring_bytes)
    {
        return refuse("the devices of this pool are not all there, or one was given twice".into());
    }
    Ok(found.into_iter().map(|(l, d)| (d, l)).unzip())
}

/// Where a device may have a label: at its beginning, at its end, and, looked for only then, where a pool ends that is shorter, should
/// the device have become longer.
fn label_places(device: &dyn Device) -> impl Iterator<Item = u64> {
    let size = device.size_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let ends = [0, size.saturating_sub(BLOCK_BYTES as u64)];
    ends.into_iter().chain(std::iter::once_with(move || inner_places(device, size)).flatten())
}

/// By the superblocks at the beginning.
fn inner_places(device: &dyn Device, size_bytes: u64) -> BTreeSet<u64> {
    superblocks(device, size_bytes, SLOTS_PER_END)
        .iter()
        .flat_map(|found| found.last_label_places(size_bytes))
        .collect()
}

/// The valid superblocks in the first `count` slots of a device of this size.
fn superblocks(device: &dyn Device, size_bytes: u64, count: u64) -> Vec<Superblock> {
    let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
    let mut found = Vec::new();
    for at in (0..count).map(|i| slot_offset(i, size_bytes)) {
        if at + SLOT_BYTES <= size_bytes && device.read_at(at, &mut slot).is_ok() {
            found.extend(Superblock::decode(&slot));
        }
    }
    found
}

/// The newest superblock on a device that has no label: there was a pool.
fn superblock_without_label(device: &dyn Device, size_bytes: u64) -> Option<Superblock> {
    let count = if size_bytes < TAIL_BYTES { SLOTS_PER_END } else { 2 * SLOTS_PER_END };
    superblocks(device, size_bytes, count).into_iter().max_by_key(|superblock| superblock.generation)
}

fn hexadecimal(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_label(device: &dyn Device) -> Result<Label> {
    let size = device.size_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if size < 2 * BLOCK_BYTES as u64 {
        return Err(EngineError::NoPool(format!("{} is too small to hold a pool", device.name())));
    }
    let mut block = AlignedBuf::new(BLOCK_BYTES);
    let (mut why, mut unreadable, mut newer) = (None, None, None);
    for offset in label_places(device) {
        if let Err(e) = device.read_at(offset, &mut block) {
            unreadable = Some(e);
            continue;
        }
        match Label::decode(&block) {
            // Of a label of another version nothing else is known, not even whether it is damaged: then the other one says better.
            Ok(label) if label.version != FORMAT_VERSION => newer = newer.or(Some(label.version)),
            Ok(label) => return Ok(label),
            Err(e) => why = why.or(Some(e)),
        }
    }
    if let Some(version) = newer {
        return refuse(format!(
            "{} has format version {version}, and this program knows version {FORMAT_VERSION}: open it with a program that knows that version",
            device.name()
        ));
    }
    if let Some(e) = unreadable {
        return Err(e.into());
    }
    let foreign = foreign_signature(device)?;
    let why = why.map(|w| w.to_string()).unwrap_or_default();
    match superblock_without_label(device, size) {
        Some(superblock) => {
            let why = foreign.map_or(why, |what| format!("{what} is there"));
            refuse(what_is_left(device, size, &superblock, &why))
        }
        None => Err(EngineError::NoPool(what_is_there(device, size, foreign, &why)?)),
    }
}

/// What to say of a pool whose labels are damaged or cut off: whoever took the device for free would make an end of it. `varve inspect` says the
/// same.
fn what_is_left(device: &dyn Device, size_bytes: u64, superblock: &Superblock, why: &str) -> String {
    let (name, pool_bytes) = (device.name(), superblock.device_bytes_min());
    let next = if size_bytes < pool_bytes {
        format!(
            "It is {size_bytes} bytes long, and that pool had {pool_bytes} at least: make a copy, give that its length again (truncate -s \
             {pool_bytes} COPY), and varve inspect COPY superblock shows what is left"
        )
    } else {
        format!("varve inspect {name} superblock shows what is left")
    };
    format!(
        "no label of {name} can be read ({why}), but superblocks of pool {} are there: do not create a pool on it. {next}",
        hexadecimal(&superblock.pool_id)
    )
}

/// What is on a device without a label, in a sentence. What is anything may be somebody's, or a damaged pool: only where there is nothing
/// is a pool to be made.
fn what_is_there(device: &dyn Device, size_bytes: u64, foreign: Option<&str>, why: &str) -> Result<String> {
    let name = device.name();
    if let Some(what) = foreign {
        return Ok(format!(
            "{name} holds {what}, not a VarveFS pool; nothing was changed: is the name right?"
        ));
    }
    let Some(at) = written_at_ends(device, size_bytes)? else {
        return Ok(format!("{name} is not a VarveFS pool, and empty at both ends; `varve create` makes one"));
    };
    // What is shorter never was a whole pool.
    let look = match size_bytes < POOL_BYTES_MIN {
        true => String::new(),
        false => format!("; varve inspect {name} superblock shows what is left"),
    };
    Ok(format!(
        "{name} is not a VarveFS pool ({why}), and not empty: something is written at byte {at}; nothing was changed: is the name right? If \
         it was a pool, it is damaged: make a copy of it before anything else{look}"
    ))
}

/// Why it is not known whether there is a newer superblock than the one that was found. `None`: there is none.
pub struct Newer(Option<String>);

impl Newer {
    /// Refuses who writes: what only the older one needs may have been overwritten. Who reads is told, and gets the reason.
    pub fn judge(self, read_only: bool, judge: &mut Judge) -> Result<Option<String>> {
        match &self.0 {
            Some(why) if !read_only => refuse(format!(
                "{why}; so the pool is not opened for writing. Try again, or look at the device; `varve export`, or a mount with -o ro, \
                 brings what was there before to safety"
            )),
            Some(why) => {
                judge.mention(Kind::SuperblockDamaged, why.clone());
                Ok(self.0)
            }
            None => Ok(None),
        }
    }
    /// An error where it is not known.
    pub fn require_none(self) -> Result<()> {
        self.0.map_or(Ok(()), refuse)
    }
}

/// What a look at one of the two slots of a superblock has found.
pub enum Slot {
    /// That superblock.
    Holds,
    /// Something else, or nothing.
    Differs,
    /// The device has failed.
    Unread(DeviceError),
}

/// What was found, of each device, in the two slots of the newest superblock.
pub type NewestSlots = Vec<[Slot; 2]>;

/// The newest valid superblock on any device, and where it was found. Whether there is a newer one is not known if a device fails to read
/// both slots of the next generation. One that cannot be read beside one that can is as good as one that was torn.
pub fn newest_superblock(
    devices: &[Arc<dyn Device>],
    labels: &[Label],
) -> Result<(Superblock, NewestSlots, Newer)> {
    let mut valid: Vec<(usize, u64, Superblock)> = Vec::new();
    let (mut why, mut unreadable) = (None, Vec::new());
    let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
    for (device_index, (device, label)) in devices.iter().zip(labels).enumerate() {
        for i in 0..2 * SLOTS_PER_END {
            let at = slot_offset(i, label.size_bytes);
            if let Err(e) = read_twice(device.as_ref(), at, &mut slot) {
                unreadable.push((device_index, i, e));
                continue;
            }
            if slot[..8] == [0; 8] {
                continue;
            }
            match decode_slot(&slot) {
                Ok(s) if s.pool_id != label.pool_id => {}
                Ok(s) => valid.push((device_index, i, s)),
                Err(e) => why = Some(e),
            }
        }
    }
    // Of several the first.
    let Some(best) = valid.iter().rev().map(|(.., s)| s).max_by_key(|s| s.generation).cloned() else {
        if let Some((.., e)) = unreadable.pop() {
            return Err(e.into());
        }
        return Err(match why {
            Some(e) => EngineError::corrupt(format!("every superblock of {}", devices[0].name()), e),
            None => EngineError::Refused(format!(
                "{} has a label and no superblock: either its creation was interrupted, and nothing is in it, or what comes behind \
                 the label was overwritten later; only if nothing was in it, create it again with --force",
                devices[0].name()
            )),
        });
    };
    if best.incompatible & !INCOMPATIBLE_KNOWN != 0 {
        return refuse(format!(
            "{} uses features this program does not know ({:#x}): open it with a newer program",
            devices[0].name(),
            best.incompatible & !INCOMPATIBLE_KNOWN
        ));
    }
    if best.device_count as usize != devices.len() {
        return refuse(format!(
            "the pool has {} devices, and {} were given",
            best.device_count,
            devices.len()
        ));
    }
    let numbers = [best.generation, best.epoch, best.log_sequence, best.log_start, best.position.0];
    if numbers.iter().any(|n| *n > NUMBER_MAX)
        || best.log_sequence == 0
        || !(1..=NODE_COPIES_MAX).contains(&usize::from(best.metadata.copies))
    {
        let why = varve_format::Corrupt { what: "numbers out of bounds", at: 0 };
        return Err(EngineError::corrupt(format!("the superblock of {}", devices[0].name()), why));
    }
    let mut stripes = Vec::new();
    for chunk in &best.chunks {
        if chunk.stripes.len() != usize::from(chunk.profile.copies) {
            return refuse(format!("{}: a chunk has not as many stripes as copies", devices[0].name()));
        }
        if chunk.profile != best.data {
            return refuse(format!("{}: a chunk keeps other copies than the pool", devices[0].name()));
        }
        for s in &chunk.stripes {
            let label = &labels[s.device as usize];
            if s.offset + chunk.len_bytes > label.size_bytes - TAIL_BYTES {
                return refuse(format!("{}: a chunk lies outside its device", devices[0].name()));
            }
            if s.offset < RING_START + label.ring_bytes || !s.offset.is_multiple_of(BLOCK_BYTES as u64) {
                return refuse(format!(
                    "{}: a chunk lies where the log is, or between blocks",
                    devices[0].name()
                ));
            }
            stripes.push((s.device, s.offset, s.offset + chunk.len_bytes));
        }
    }
    stripes.sort_unstable();
    if stripes.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2) {
        return refuse(format!("{}: chunks lie over each other", devices[0].name()));
    }
    if best.chunks.iter().rev().skip(1).any(|c| c.len_bytes != best.chunks[0].len_bytes) {
        return refuse(format!("{}: chunks of unequal length", devices[0].name()));
    }
    let next = (best.generation + 1) % SLOTS_PER_END;
    let unread = |device: usize, i: u64| unreadable.iter().find(|u| (u.0, u.1) == (device, i));
    let newer = (0..devices.len())
        .find_map(|device| unread(device, next).filter(|_| unread(device, SLOTS_PER_END + next).is_some()));
    let why = |e: &DeviceError| {
        format!(
            "there may be a newer superblock than that of generation {}, which cannot be read: {e}",
            best.generation
        )
    };
    let newer = Newer(newer.map(|(.., e)| why(e)));
    let at = best.generation % SLOTS_PER_END;
    let look = |device: usize, i: u64| match unread(device, i) {
        Some((.., e)) => Slot::Unread(e.clone()),
        None if valid.iter().any(|(d, j, s)| (*d, *j) == (device, i) && *s == best) => Slot::Holds,
        None => Slot::Differs,
    };
    let slots = (0..devices.len()).map(|device| [at, SLOTS_PER_END + at].map(|i| look(device, i))).collect();
    Ok((best, slots, newer))
}

/// What is wrong with the two labels of a device, of which one at least is good.
pub fn examine_labels(device: &dyn Device, size_bytes: u64, problems: &mut Problems) {
    let mut block = AlignedBuf::new(BLOCK_BYTES);
    let mut labels = Vec::new();
    for offset in [0, size_bytes - BLOCK_BYTES as u64] {
        let found = read_twice(device, offset, &mut block).map_err(|e| e.to_string());
        match found.and_then(|()| Label::decode(&block).map_err(|e| e.to_string())) {
            Ok(label) if label.version != FORMAT_VERSION => {
                let text = format!(
                    "the label at byte {offset} of {}: format version {}",
                    device.name(),
                    label.version
                );
                problems.add(Problem::new(Kind::LabelDamaged, text));
            }
            Ok(label) => labels.push(label),
            Err(why) => {
                let text = format!("the label at byte {offset} of {}: {why}", device.name());
                problems.add(Problem::new(Kind::LabelDamaged, text));
            }
        }
    }
    if let [first, second] = &labels[..]
        && first != second
    {
        let text = format!("the labels at both ends of {} do not say the same", device.name());
        problems.add(Problem::new(Kind::LabelsDiffer, text));
    }
}

/// What is wrong with the superblock slots of a device. What a crash explains is left out: it may have torn slots of the present generation (of
/// which one is good) and of the next, but those of the present one no more once the log has `named` it. `None`: somebody has the pool open.
pub fn examine_slots(
    device: &dyn Device,
    size_bytes: u64,
    current: &Superblock,
    named: Option<u64>,
    problems: &mut Problems,
) {
    let at = current.generation % SLOTS_PER_END;
    let was_written = named.is_some_and(|named| named >= current.generation);
    let may_be_torn = |i: u64| i == (at + 1) % SLOTS_PER_END || i == at && !was_written;
    let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
    let mut found: Vec<Option<Superblock>> = Vec::new();
    let mut newest_is_unread = false;
    for i in 0..2 * SLOTS_PER_END {
        let offset = slot_offset(i, size_bytes);
        let place = || format!("slot {i} (byte {offset}) of {}", device.name());
        let mut problem = |kind, text| problems.add(Problem::new(kind, text));
        if let Err(e) = read_twice(device, offset, &mut slot) {
            problem(Kind::SuperblockDamaged, format!("{}: {e}", place()));
            newest_is_unread |= i % SLOTS_PER_END == at;
            found.push(None);
            continue;
        }
        let empty = slot.iter().all(|byte| *byte == 0);
        found.push(match Superblock::decode(&slot) {
            _ if empty => {
                if was_written && i % SLOTS_PER_END == at {
                    problem(Kind::SuperblockDamaged, format!("{}: it is empty", place()));
                }
                None
            }
            Err(why) => {
                if !may_be_torn(i % SLOTS_PER_END) {
                    problem(Kind::SuperblockDamaged, format!("{}: {why}", place()));
                }
                None
            }
            Ok(s) if s.pool_id != current.pool_id => {
                problem(Kind::SuperblockForeign, format!("{} holds a superblock of another pool", place()));
                None
            }
            Ok(s) if s.generation % SLOTS_PER_END != i % SLOTS_PER_END => {
                let text = format!("{} holds generation {}, which belongs elsewhere", place(), s.generation);
                problem(Kind::SuperblockMisplaced, text);
                None
            }
            Ok(s) => Some(s),
        });
    }
    let (front, back) = found.split_at(SLOTS_PER_END as usize);
    for (i, pair) in front.iter().zip(back).enumerate() {
        if let (Some(a), Some(b)) = pair
            && a != b
            && (a.generation == b.generation || !may_be_torn(i as u64))
        {
            let generations = format!("{} and {}", a.generation, b.generation);
            let text = format!("slots {i} at both ends of {} (generations {generations})", device.name());
            problems.add(Problem::new(Kind::SuperblocksDiffer, text));
        }
    }
    let newest = [&front[at as usize], &back[at as usize]];
    let holds = |slot: &Option<Superblock>| slot.as_ref() == Some(current);
    if named.is_some() && !was_written && !newest_is_unread && !newest.into_iter().all(holds) {
        problems.warnings.push(format!(
            "the newest superblock of {} stands in one slot only: power may have failed while the other was written; opened for writing, the \
             pool has it in both again",
            device.name()
        ));
    }
}

#[cfg(not(feature = "planted"))]
fn decode_slot(slot: &[u8]) -> std::result::Result<Superblock, varve_format::Corrupt> {
    Superblock::decode(slot)
}

#[cfg(feature = "planted")]
fn decode_slot(slot: &[u8]) -> std::result::Result<Superblock, varve_format::Corrupt> {
    use crate::planted::{Planted, is};
    let mut copy = slot.to_vec();
    if is(Planted::TornSuperblock) {
        // The planted error: whatever the checksum says, the slot is taken as good.
        let len = u32::from_le_bytes([copy[12], copy[13], copy[14], copy[15]]) as usize;
        if (64..copy.len() - 4).contains(&len) {
            let sum = varve_format::block_checksum(&copy[..len]);
            copy[len..len + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    Superblock::decode(&copy)
}

/// What a device holds that is not ours, as words for a message.
fn foreign_signature(device: &dyn Device) -> Result<Option<&'static str>> {
    let mut head = AlignedBuf::new((128 << 10).min(device.size_bytes() as usize / BLOCK_BYTES * BLOCK_BYTES));
    device.read_at(0, &mut head)?;
    Ok(signature_in(&head).map(|(_, what)| what))
}

/// What a member of a Linux RAID array begins its superblock with: where, its version says.
pub const ARRAY_SIGN: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];

/// What these first bytes of a device say that it holds, as words for a message, and where they say so.
pub fn signature_in(head: &[u8]) -> Option<(usize, &'static str)> {
    let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    let known: [(usize, &[u8], &'static str); 14] = [
        (0, b"XFSB", "an XFS filesystem"),
        (512, b"LABELONE", "a physical volume of LVM"),
        (0, &ARRAY_SIGN, "a member of a RAID array"),
        (4096, &ARRAY_SIGN, "a member of a RAID array"),
        (4120, &[0xc6, 0x85, 0x73, 0xf6], "a device of bcache or bcachefs"),
        (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS filesystem"),
        (32769, b"CD001", "an ISO 9660 image"),
        (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 filesystem"),
        (65600, b"_BHRfS_M", "a btrfs filesystem"),
        (4086, b"SWAPSPACE2", "swap space"),
        (0, b"LUKS\xba\xbe", "an encrypted (LUKS) volume"),
        (512, b"EFI PART", "a GPT partition table"),
        (0, b"hsqs", "a squashfs image"),
        (510, &[0x55, 0xaa], "a partition table or boot sector"),
    ];
    known.iter().find(|(at, magic, _)| has(*at, magic)).map(|k| (k.0, k.2))
}

/// Bytes at either end of a device in which whatever is on it, known by its signature or not, has left something: volume managers,
/// RAID members and filesystems begin or end there.
const ENDS_BYTES: u64 = 1 << 20;

/// The first byte at either end of a device that is not zero.
fn written_at_ends(device: &dyn Device, size_bytes: u64) -> Result<Option<u64>> {
    let len = ENDS_BYTES.min(size_bytes);
    let mut end = AlignedBuf::new(len as usize);
    for start in [0, size_bytes - len] {
        device.read_at(start, &mut end)?;
        if let Some(at) = end.iter().position(|byte| *byte != 0) {
            return Ok(Some(start + at as u64));
        }
    }
    Ok(None)
}

/// Read and, where there is something in it, zeroed at a time.
const PIECE_BYTES: u64 = 64 << 10;

/// Zeroes both ends of a device, slots and labels with them: a sign of somebody else that stays there brings his array or volume back at
/// the next boot. What is zero is not written, so that a sparse file stays one. Not flushed.
fn clear_ends(device: &dyn Device, size_bytes: u64) -> Result<()> {
    let nothing = AlignedBuf::new(PIECE_BYTES as usize);
    let mut piece = AlignedBuf::new(PIECE_BYTES as usize);
    for start in [0, size_bytes - ENDS_BYTES] {
        for at in (start..start + ENDS_BYTES).step_by(PIECE_BYTES as usize) {
            // What cannot be read may be there again once it has been written.
            if device.read_at(at, &mut piece).is_err() || piece.iter().any(|byte| *byte != 0) {
                device.write_at(at, &nothing)?;
            }
        }
    }
    Ok(())
}

/// Bytes of ring for a pool of `size_bytes`.
pub fn geometry(size_bytes: u64) -> u64 {
    (size_bytes / 64).clamp(RING_BYTES_MIN, RING_BYTES_MAX) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

fn profile_field(p: Profile) -> ProfileField {
    match p {
        Profile::Single => ProfileField { copies: 1, width: 1 },
        Profile::Dup => ProfileField { copies: 2, width: 1 },
    }
}

/// Writes labels to the devices and returns the superblock to begin with (generation 0, nothing written for it yet).
/// The slots are emptied first, with all else at both ends, so that an interrupted creation is recognised.
pub fn format_devices(devices: &[Arc<dyn Device>], options: &FormatOptions) -> Result<Superblock> {
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        return refuse(format!("a pool has one device for now, and {} were given", devices.len()));
    }
    let device = devices[0].as_ref();
    let size_bytes = device.size_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if size_bytes < POOL_BYTES_MIN {
        return refuse(format!(
            "{} is {} MiB, and the smallest pool is {} MiB",
            device.name(),
            size_bytes >> 20,
            POOL_BYTES_MIN >> 20
        ));
    }
    if size_bytes > POOL_BYTES_MAX {
        return refuse(format!(
            "{} is {} TiB, and the largest pool is {} TiB",
            device.name(),
            size_bytes >> 40,
            POOL_BYTES_MAX >> 40
        ));
    }
    if !options.force {
        if let Some(what) = foreign_signature(device)? {
            return refuse(format!("{} holds {what}; --force overwrites it", device.name()));
        }
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        for offset in label_places(device) {
            device.read_at(offset, &mut block)?;
            if Label::decode(&block).is_ok() {
                return refuse(format!("{} holds a VarveFS pool; --force overwrites it", device.name()));
            }
        }
        if let Some(superblock) = superblock_without_label(device, size_bytes) {
            return refuse(format!(
                "{} holds superblocks of pool {}, whose labels are damaged; --force overwrites it",
                device.name(),
                hexadecimal(&superblock.pool_id)
            ));
        }
        if let Some(at) = written_at_ends(device, size_bytes)? {
            return refuse(format!(
                "{} is not empty: something is written at byte {at}; --force overwrites it",
                device.name()
            ));
        }
    }
    let ring_bytes = geometry(size_bytes);
    let data_start = RING_START + ring_bytes;
    let copies = u64::from(profile_field(options.data).copies);
    let usable = (size_bytes - TAIL_BYTES - data_start) / copies / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let chunk_bytes =
        usable.div_ceil(CHUNKS_MAX as u64 / 2).next_power_of_two().max(CHUNK_BYTES_MIN).min(usable);
    let mut chunks = Vec::new();
    let (mut start, mut offset) = (0, data_start);
    while start < usable {
        let len_bytes = chunk_bytes.min(usable - start);
        let stripes = (0..copies).map(|i| Stripe { device: 0, offset: offset + i * len_bytes }).collect();
        chunks.push(Chunk {
            start,
            len_bytes,
            kind: 0,
            profile: profile_field(options.data),
            write_pointer: 0,
            stripes,
        });
        start += len_bytes;
        offset += len_bytes * copies;
    }
    let label = Label {
        version: FORMAT_VERSION,
        pool_id: options.pool_id,
        device_id: options.pool_id,
        device_index: 0,
        size_bytes,
        ring_bytes,
    };
    clear_ends(device, size_bytes)?;
    device.write_at(RING_START, &AlignedBuf::new(BLOCK_BYTES))?;
    device.flush()?;
    let label = AlignedBuf::from_slice(&label.encode());
    device.write_at(0, &label)?;
    device.write_at(size_bytes - BLOCK_BYTES as u64, &label)?;
    Ok(Superblock {
        generation: 0,
        pool_id: options.pool_id,
        incompatible: INCOMPATIBLE_KNOWN,
        read_only_compatible: 0,
        compatible: 0,
        hash_seed: options.hash_seed,
        hash_kind: 1,
        closed: true,
        data: profile_field(options.data),
        metadata: profile_field(options.metadata),
        device_count: 1,
        total_blocks: usable >> BLOCK_SHIFT,
        position: Lsn(0),
        root: NodePtr::NULL,
        log_start: 0,
        log_sequence: 1,
        log_previous: 0,
        epoch: 1,
        cuts: Vec::new(),
        chunks,
    })
}
