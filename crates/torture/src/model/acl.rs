//! POSIX access control lists as the model understands them: from acl(5) and Linux's form of the attribute, not from the
//! filesystem.

use super::Errno;
use super::apply::EINVAL;

/// Tags of entries.
const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP_OWNER: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NO_ID: u32 = u32::MAX;

/// An access list's attribute.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of what a directory's new entries get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// (tag, permissions, id), as they are stored.
pub type Entries = Vec<(u16, u16, u32)>;

/// The attribute's value for the owner, the group and others, and for named users and groups below a mask. With
/// neither named, there is no mask.
pub fn list(mode: u32, users: &[(u32, u16)], groups: &[(u32, u16)], mask: u16) -> Vec<u8> {
    let class = |shift: u32| (mode >> shift & 7) as u16;
    let mut entries: Entries = vec![(OWNER, class(6), NO_ID)];
    entries.extend(users.iter().map(|(id, permissions)| (USER, *permissions, *id)));
    entries.push((GROUP_OWNER, class(3), NO_ID));
    entries.extend(groups.iter().map(|(id, permissions)| (GROUP, *permissions, *id)));
    if entries.len() > 2 {
        entries.push((MASK, mask, NO_ID));
    }
    entries.push((OTHER, class(0), NO_ID));
    encode(&entries)
}

/// The stored form.
pub fn encode(entries: &Entries) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// The entries of a value that [`list`] made; none for an empty list.
pub fn decode(value: &[u8]) -> Result<Entries, Errno> {
    let body = value.strip_prefix(&[2, 0, 0, 0]).ok_or(EINVAL)?;
    if body.len() % 8 != 0 {
        return Err(EINVAL);
    }
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let entry = |b: &[u8]| (number(b), number(&b[2..]), u32::from_le_bytes([b[4], b[5], b[6], b[7]]));
    Ok(body.chunks(8).map(entry).collect())
}

fn group_class(entries: &Entries) -> u16 {
    if entries.iter().any(|(tag, ..)| *tag == MASK) { MASK } else { GROUP_OWNER }
}

/// The permission bits a file with this list shows.
pub fn mode(entries: &Entries) -> u32 {
    let of =
        |wanted: u16| entries.iter().find(|(tag, ..)| *tag == wanted).map_or(0, |entry| u32::from(entry.1));
    of(OWNER) << 6 | of(group_class(entries)) << 3 | of(OTHER)
}

/// The entries that equal permission bits, after `change` has had (entry, bits of `mode`).
pub fn with_mode(entries: &Entries, mode: u32, change: fn(u16, u16) -> u16) -> Entries {
    let group = group_class(entries);
    let bits = |tag: u16| match tag {
        OWNER => Some(mode >> 6),
        OTHER => Some(mode),
        _ => (tag == group).then_some(mode >> 3),
    };
    let changed = |(tag, permissions, id): &(u16, u16, u32)| {
        (*tag, bits(*tag).map_or(*permissions, |bits| change(*permissions, (bits & 7) as u16)), *id)
    };
    entries.iter().map(changed).collect()
}

/// Whether the permission bits say as much: then no access list is kept.
pub fn is_minimal(entries: &Entries) -> bool {
    entries.len() == 3
}
