//! A file that a thread changes in every way there is, and what may be found of it after a crash.
//!
//! Data that is not synced is logged in no promised order, so a page may be as any state since the last sync of the file
//! has it. A page that none of them explains, and a size beyond what they had, are violations.

use std::sync::Arc;

use varve_fs::{Allocate, Caller, Filesystem, FsError, InodeId, SetAttr};
use varve_sim::Rng;

use crate::call::{fill, write};
use crate::session::Violation;
use crate::violation;

/// The file's name in its thread's directory.
pub const NAME: &[u8] = b"patchwork";

const PAGE: usize = 4096;
const EOPNOTSUPP: i32 = 95;
/// It grows no further than this, and one change.
const BYTES_MAX: usize = 400_000;
/// Most that one change touches.
const CHANGE_BYTES_MAX: u64 = 60_000;

/// The file, with what it holds while the filesystem runs.
pub struct Patchwork {
    pub ino: InodeId,
    bytes: Arc<Vec<u8>>,
    changes: u64,
}

impl Patchwork {
    /// The file `ino`, which is empty.
    pub fn new(ino: InodeId) -> Patchwork {
        Patchwork { ino, bytes: Arc::default(), changes: 0 }
    }

    /// What it holds now.
    pub fn bytes(&self) -> Arc<Vec<u8>> {
        self.bytes.clone()
    }

    /// Changes it in one of all ways. `other` is another file and what it holds. An error comes with the
    /// name of the verb.
    pub fn change(
        &mut self,
        fs: &Filesystem,
        rng: &mut Rng,
        seed: u64,
        other: Option<(InodeId, Vec<u8>)>,
    ) -> Result<(), (&'static str, FsError)> {
        self.changes += 1;
        let (caller, ino) = (Caller::ROOT, self.ino);
        let bytes = Arc::make_mut(&mut self.bytes);
        let size = bytes.len();
        let offset = rng.below(1 + size.min(BYTES_MAX) as u64) as usize;
        let len = 1 + rng.below(CHANGE_BYTES_MAX) as usize;
        let end = offset + len;
        // Of the rest, what must be whole blocks.
        let (block, blocks) = (offset / PAGE * PAGE, len.div_ceil(PAGE) * PAGE);
        let keep_size = rng.below(2) == 0;
        let allocate = |how| fs.fallocate(caller, ino, offset as u64, len as u64, how);
        match rng.below(14) {
            0..3 => {
                let data = fill(seed ^ self.changes << 40, len);
                let mut done = 0;
                while done < len {
                    let written = write(fs, caller, ino, (offset + done) as u64, &data[done..]);
                    done += written.map_err(|error| ("write", error))?;
                }
                put(bytes, offset, &data);
            }
            3 => {
                allocate(Allocate::Reserve { keep_size }).map_err(|error| ("reserving", error))?;
                bytes.resize(if keep_size { size } else { size.max(end) }, 0);
            }
            4 | 5 => {
                allocate(Allocate::Punch).map_err(|error| ("punching", error))?;
                bytes[offset..end.min(size)].fill(0);
            }
            6 => {
                allocate(Allocate::Zero { keep_size }).map_err(|error| ("zeroing", error))?;
                bytes[offset..end.min(size)].fill(0);
                bytes.resize(if keep_size { size } else { size.max(end) }, 0);
            }
            7 if block + blocks < size => match fs.collapse_range(caller, ino, block as u64, blocks as u64) {
                // Somebody's snapshot shares it.
                Err(error) if error.errno() == EOPNOTSUPP => {}
                done => {
                    done.map_err(|error| ("collapse", error))?;
                    bytes.drain(block..block + blocks);
                }
            },
            8 if block < size && size < BYTES_MAX => {
                match fs.insert_range(caller, ino, block as u64, blocks as u64) {
                    Err(error) if error.errno() == EOPNOTSUPP => {}
                    done => {
                        done.map_err(|error| ("insert", error))?;
                        bytes.splice(block..block, std::iter::repeat_n(0, blocks));
                    }
                }
            }
            9 if let Some((from, contents)) = other => {
                let first = rng.index(contents.len());
                let data = &contents[first..contents.len().min(first + len)];
                copy(fs, (from, first), (ino, offset), data.len())?;
                put(bytes, offset, data);
            }
            10 => {
                // To behind where it is taken from, so that they do not overlap.
                let data = bytes[offset..end.min(size)].to_vec();
                let to = (offset + data.len() + rng.index(2 * PAGE)).min(BYTES_MAX + len);
                if to >= offset + data.len() {
                    copy(fs, (ino, offset), (ino, to), data.len())?;
                    put(bytes, to, &data);
                }
            }
            11 if let Some((from, contents)) = other => {
                // All from a page on, where its end becomes the end of the file, or whole pages.
                let first = rng.index(contents.len()) / PAGE * PAGE;
                let data = &contents[first..];
                let (to, len) = match block + data.len() >= size {
                    true => (block, 0),
                    false => (block, data.len() / PAGE * PAGE),
                };
                if to < BYTES_MAX && (len > 0 || block + data.len() >= size) {
                    let data = if len > 0 { &data[..len] } else { data };
                    let (from, place) = ((from, first as u64), (ino, to as u64));
                    fs.clone_range(caller, from, place, len as u64)
                        .map_err(|error| ("cloning a range", error))?;
                    put(bytes, to, data);
                }
            }
            12 if block + PAGE <= size => {
                // To behind where it is taken from, as above.
                let whole = (size - block).min(blocks) / PAGE * PAGE;
                let to = block + whole + rng.index(3) * PAGE;
                if to < BYTES_MAX {
                    let data = bytes[block..block + whole].to_vec();
                    let (from, place) = ((ino, block as u64), (ino, to as u64));
                    fs.clone_range(caller, from, place, whole as u64)
                        .map_err(|error| ("cloning a range", error))?;
                    put(bytes, to, &data);
                }
            }
            _ => {
                let set = SetAttr { size: Some(offset as u64 / 2), ..SetAttr::default() };
                fs.setattr(caller, ino, set).map_err(|error| ("truncate", error))?;
                bytes.truncate(offset / 2);
            }
        }
        Ok(())
    }

    /// Whether the running filesystem reads what was written.
    pub fn compare(&self, fs: &Filesystem) -> Result<(), Violation> {
        let read = fs.read(self.ino, 0, self.bytes.len() + 1);
        let read = read.map_err(|error| violation!("reading the patchwork fails: {error}"))?;
        match read.iter().zip(self.bytes.iter()).position(|(is, should)| is != should) {
            Some(at) => Err(violation!("the patchwork holds other bytes from {at} on")),
            None if read.len() != self.bytes.len() => {
                Err(violation!("the patchwork has {} bytes instead of {}", read.len(), self.bytes.len()))
            }
            None => Ok(()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    bytes.resize(bytes.len().max(at + data.len()), 0);
    bytes[at..at + data.len()].copy_from_slice(data);
}

fn copy(
    fs: &Filesystem,
    from: (InodeId, usize),
    to: (InodeId, usize),
    len: usize,
) -> Result<(), (&'static str, FsError)> {
    let mut done = 0;
    while done < len {
        let place = |(ino, offset): (InodeId, usize)| (ino, (offset + done) as u64);
        let copied = fs.copy_range(Caller::ROOT, place(from), place(to), (len - done) as u64);
        done += copied.map_err(|error| ("copying", error))? as usize;
    }
    Ok(())
}

/// Whether `found` can be what a crash leaves when the file went through `states` and only the first was synced.
pub fn explains(states: &[&Arc<Vec<u8>>], found: &[u8]) -> Result<(), String> {
    let sizes = states.iter().map(|state| state.len());
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    if !(least..=most).contains(&found.len()) {
        return Err(format!("it has {} bytes, and {least} to {most} are possible", found.len()));
    }
    for (number, page) in found.chunks(PAGE).enumerate() {
        let known = states.iter().any(|state| {
            let should = &state[state.len().min(number * PAGE)..state.len().min((number + 1) * PAGE)];
            let both = page.len().min(should.len());
            // What lies behind the end of either is zeros in the other, or not there.
            page[..both] == should[..both] && page[both..].iter().all(|byte| *byte == 0)
        });
        if !known {
            return Err(format!("no state explains its page {number}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the judge finds what must not be. Method: states by hand; pages of an older and of a newer state beside each
    /// other are possible; a page of none, one at another place, zeros where no state has any, and a size beyond or below
    /// all are not.
    #[test]
    fn judge_takes_pages_of_any_state_and_no_others() {
        let page = |byte: u8| vec![byte; PAGE];
        let (old, new) =
            (Arc::new([page(1), page(2)].concat()), Arc::new([page(3), page(2), page(4)].concat()));
        let states = [&old, &new];
        assert!(explains(&states, &[page(1), page(2)].concat()).is_ok());
        assert!(explains(&states, &[page(1), page(2), page(4)].concat()).is_ok());
        assert!(explains(&states, &[page(0), page(2)].concat()).is_err());
        assert!(explains(&states, &[page(2), page(2)].concat()).is_err());
        assert!(explains(&states, &[page(1), page(9)].concat()).is_err());
        assert!(explains(&states, &[page(1), page(2), page(4), page(0)].concat()).is_err());
        assert!(explains(&states, &page(1)).is_err());
    }
}
