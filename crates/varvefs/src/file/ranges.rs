//! Ranges that go from one file to another: copied, shared, found to be the same.

use std::sync::Arc;

use super::{File, no_range};
use crate::error::{Fault, Reason, Result};
use crate::shared::Entered;

impl File {
    /// The filesystem of both files, of which this one may be read and `to` written.
    fn shared_with(&self, to: &File) -> std::result::Result<Entered<'_>, Fault> {
        if !self.rights.read {
            return Err(Reason::NotOpenedFor("reading").into());
        }
        to.require_write()?;
        if !Arc::ptr_eq(self.open.shared(), to.open.shared()) {
            return Err(Reason::Invalid("the two files lie in different pools").into());
        }
        self.open.shared().enter()
    }

    /// Makes `len` bytes at `offset` a part of `to` at `to_offset` without copying them: both share the blocks until either
    /// is written to. Offsets and length are multiples of 4096, but the end of this file may become the end of the other;
    /// 0 bytes mean all to the end of this file; ranges of one file do not overlap. After an error a part of it, from the
    /// front, may be done. [`File::copy_range`] does the same where it can, and copies the rest.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.write("/old", vec![7; 1 << 20])?;
    /// let (old, new) = (fs.open("/old")?, fs.create("/new")?);
    /// old.clone_range(0, &new, 8192, 1 << 20)?;
    /// assert_eq!(fs.read("/new")?[8192..], vec![7; 1 << 20]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn clone_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<()> {
        let clone = || {
            let fs = self.shared_with(to)?;
            let _shared = to.open.order.read();
            fs.clone_range(to.caller, (self.open.ino, offset), (to.open.ino, to_offset), len)
                .map_err(no_range)
        };
        clone().map_err(|fault| fault.on("share a range of", &self.path))
    }

    /// Stores `len` bytes once that this file has at `offset` and `to` has at `to_offset`, if they are the same: they are
    /// compared first. Gives how many bytes from the beginning are the same, and stored once now; `None` if they differ in
    /// the first MiB. Fewer than asked: what follows differs, or is being written to, or the
    /// pool is being closed. Alignment as for
    /// [`File::clone_range`]; files of up to 1,700 bytes lie in their records and cannot be shared. Times stay as they are; space that
    /// `to` has set aside there becomes a hole where this file has one.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.write("/one", vec![7; 1 << 20])?;
    /// fs.write("/two", vec![7; 1 << 20])?;
    /// let (one, two) = (fs.open("/one")?, varvefs::OpenOptions::new().write(true).open(&fs, "/two")?);
    /// assert_eq!(one.dedupe_range(0, &two, 0, 1 << 20)?, Some(1 << 20));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn dedupe_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<Option<u64>> {
        let dedupe = || {
            let fs = self.shared_with(to)?;
            let _shared = to.open.order.read();
            // What is being closed keeps what is done.
            let go_on = || self.open.shared().go_on().is_ok();
            let (from, into) = ((self.open.ino, offset), (to.open.ino, to_offset));
            match fs.dedupe_range_while(from, into, len, &go_on).map_err(no_range)? {
                varve_fs::Deduped::Same(bytes) => Ok(Some(bytes)),
                varve_fs::Deduped::Differs => Ok(None),
            }
        };
        dedupe().map_err(|fault: Fault| fault.on("deduplicate a range of", &self.path))
    }

    /// Copies `len` bytes at `offset` to `to_offset` of another file of the pool, or elsewhere in this one where the two
    /// ranges do not overlap. Gives how many: fewer if this file ends before, or if something on the way fails: the next call
    /// says what.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.write("/old", b"header and the rest")?;
    /// let (old, new) = (fs.open("/old")?, fs.create("/new")?);
    /// assert_eq!(old.copy_range(11, &new, 0, u64::MAX)?, 8);
    /// assert_eq!(fs.read("/new")?, b"the rest");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn copy_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        let copy = || {
            let fs = self.shared_with(to)?;
            let _shared = to.open.order.read();
            let left = fs.getattr(self.open.ino)?.size.saturating_sub(offset);
            let (len, mut done) = (len.min(left), 0);
            // What is being closed takes no more, and keeps what it has taken.
            while done < len && (done == 0 || self.open.shared().go_on().is_ok()) {
                let (from, to_at) = ((self.open.ino, offset + done), to_offset.saturating_add(done));
                match fs.copy_range(to.caller, from, (to.open.ino, to_at), len - done) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    // What has been copied counts; the next call gets the error.
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(no_range(error)),
                }
            }
            Ok(done)
        };
        copy().map_err(|fault| fault.on_two("copy from", &self.path, &to.path))
    }
}
