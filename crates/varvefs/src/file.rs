//! Open files: the std::io traits, positioned reads and writes, sync.

mod ranges;

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Fault, Reason, Result};
use crate::metadata::{Allocate, Flags, Metadata, Times, XattrMode};
use crate::pending::{Pending, place};
use crate::shared::{OpenInode, Shared};
use crate::verbs;

/// Bytes handed on at once: bounds the copies a large read or write makes.
const PIECE_BYTES: usize = 8 << 20;
/// Bytes of a file that is read whole that are asked for at once.
const READ_BYTES: usize = 64 << 20;
/// Largest position, in bytes.
const POSITION_MAX: u64 = varve_fs::FILE_BYTES_MAX;

/// What a handle may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub read: bool,
    pub write: bool,
    pub append: bool,
}

/// An open file (or directory, to sync it). It lives on while it is open, whatever happens to its names.
///
/// `Read`, `Write` and `Seek` share one position, also through `&File`; [`File::read_at`] and [`File::write_at`] leave it
/// alone, so that threads can use them side by side. Written data waits in memory until [`File::sync_all`], or for some
/// seconds; other handles see it at once.
pub struct File {
    open: Arc<OpenInode>,
    caller: varve_fs::Caller,
    path: Arc<[u8]>,
    rights: Rights,
    position: Mutex<u64>,
}

impl File {
    pub(crate) fn new(
        open: Arc<OpenInode>,
        caller: varve_fs::Caller,
        path: Arc<[u8]>,
        rights: Rights,
    ) -> File {
        File { open, caller, path, rights, position: Mutex::new(0) }
    }

    pub(crate) fn inode(&self) -> varve_fs::InodeId {
        self.open.ino
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.open.shared()
    }

    /// Runs a verb on the inode, and says what failed.
    pub(crate) fn run<T>(
        &self,
        doing: &'static str,
        verb: impl FnOnce(&varve_fs::Filesystem, varve_fs::InodeId) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.open
            .shared()
            .enter()
            .and_then(|fs| verb(&fs, self.open.ino))
            .map_err(|fault| fault.on(doing, &self.path))
    }

    /// Reads at `offset` until `buf` is full or the file ends; gives the number of bytes. Holes read as zeros. The
    /// handle's position stays.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.run("read", |fs, ino| {
            if !self.rights.read {
                return Err(Reason::NotOpenedFor("reading").into());
            }
            let mut done = 0;
            loop {
                if done > 0 {
                    self.open.shared().go_on()?;
                }
                let wanted = (buf.len() - done).min(PIECE_BYTES);
                let Some(at) = offset.checked_add(done as u64) else { return Ok(done) };
                let count = fs.read_into(ino, at, &mut buf[done..done + wanted])?;
                done += count;
                if count < wanted || done == buf.len() {
                    return Ok(done);
                }
            }
        })
    }

    /// Adds to `contents` what there is from `offset` to the end. After an error it has what came before.
    pub(crate) fn read_rest(&self, contents: &mut Vec<u8>, offset: u64) -> Result<()> {
        let begun = contents.len();
        // Where there is nothing to read, too, it is found out whether this may be read at all.
        self.read_at(&mut [], offset)?;
        // A file that grows meanwhile is read on to its end.
        loop {
            let here = offset.saturating_add((contents.len() - begun) as u64);
            let left = self.metadata()?.len.saturating_sub(here);
            let reserved = usize::try_from(left).ok().filter(|left| contents.try_reserve(*left).is_ok());
            let Some(left) = reserved else {
                return Err(Fault::from(Reason::OutOfMemory).on("read", &self.path));
            };
            if left == 0 {
                return Ok(());
            }
            let len = contents.len();
            contents.resize(len + left.min(READ_BYTES), 0);
            let read = self.read_at(&mut contents[len..], here);
            contents.truncate(len + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Ok(());
            }
        }
    }

    /// Reads exactly `buf.len()` bytes at `offset`; a file that ends before is an error of kind `UnexpectedEof`.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? < buf.len() {
            let text = "the file ends before the bytes that were to be read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(())
    }

    /// Writes `data` at `offset`; gives the number of bytes, which is smaller only if something on the way fails: space runs out,
    /// the file would be too large, the pool is closed or an error is met behind the first 8 MiB. Those bytes are written, and
    /// a write of the rest says what it was. Beyond the end the file grows, with a hole between. The handle's position stays.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.run("write", |fs, ino| {
            self.require_write()?;
            let _shared = self.open.order.read();
            self.write_pieces(fs, ino, data, offset)
        })
    }

    /// Writes all of `data` at `offset`. After an error a part of it, from the front, may have been written.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let written = self.write_at(&data[done..], offset.saturating_add(done as u64))?;
            if written == 0 {
                return Err(Fault::from(Reason::NoSpace).on("write", &self.path));
            }
            done += written;
        }
        Ok(())
    }

    fn require_write(&self) -> std::result::Result<(), Fault> {
        if self.rights.write { Ok(()) } else { Err(Reason::NotOpenedFor("writing").into()) }
    }

    fn write_pieces(
        &self,
        fs: &varve_fs::Filesystem,
        ino: varve_fs::InodeId,
        data: &[u8],
        offset: u64,
    ) -> std::result::Result<usize, Fault> {
        let mut done = 0;
        loop {
            let piece = &data[done..data.len().min(done + PIECE_BYTES)];
            // What is being closed takes no more, and keeps what it has taken.
            if done > 0 && self.open.shared().go_on().is_err() {
                return Ok(done);
            }
            match fs.write(self.caller, ino, offset.saturating_add(done as u64), piece) {
                Ok(written) => {
                    done += written;
                    if written < piece.len() || done == data.len() {
                        return Ok(done);
                    }
                }
                // What has been written counts; the next write gets the error.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes at the end, alone; gives the number of bytes and the new end.
    fn append(&self, data: &[u8]) -> Result<(usize, u64)> {
        self.run("append to", |fs, ino| {
            let _alone = self.open.order.write();
            let end = fs.getattr(ino)?.size;
            let written = self.write_pieces(fs, ino, data, end)?;
            Ok((written, end + written as u64))
        })
    }

    /// Cuts the file, or lets it grow with a hole, to `len` bytes.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.run("change the length of", |fs, _| {
            self.require_write()?;
            self.resize(fs, len)
        })
    }

    pub(crate) fn resize(&self, fs: &varve_fs::Filesystem, len: u64) -> std::result::Result<(), Fault> {
        let _shared = self.open.order.read();
        let set = varve_fs::SetAttr { size: Some(len), ..varve_fs::SetAttr::default() };
        fs.setattr(self.caller, self.open.ino, set)?;
        Ok(())
    }

    /// Sets space aside for a range, makes it a hole or makes it zeros: fallocate(2). See [`Allocate`]. An error may leave
    /// a part done, from the front.
    ///
    /// ```
    /// use varvefs::{Allocate, Pool};
    /// # let fs = Pool::in_memory(64 << 20)?.filesystem();
    /// let file = fs.create("/database")?;
    /// // Writes to these 8 MiB cannot fail for lack of space from here on.
    /// file.allocate(0, 8 << 20, Allocate::Reserve { keep_size: false })?;
    /// assert_eq!(file.metadata()?.len, 8 << 20);
    /// file.write_all_at(&[1; 100_000], 0)?;
    /// // Gives back what is no longer needed.
    /// file.allocate(4096, 8192, Allocate::Punch)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn allocate(&self, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.run("allocate space for", |fs, ino| {
            self.require_write()?;
            let _shared = self.open.order.read();
            fs.fallocate(self.caller, ino, offset, len, how.below()).map_err(no_range)
        })
    }

    /// Where the next data is, at or after `offset`; `None` if only a hole follows. What was written and is not yet on the
    /// device is data; reserved space is a hole.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// let file = fs.create("/image")?;
    /// file.write_all_at(&[7; 4096], 1 << 30)?;
    /// file.set_len(1 << 40)?;
    /// assert_eq!(file.seek_data(0)?, Some(1 << 30));
    /// assert_eq!(file.seek_hole(1 << 30)?, Some((1 << 30) + 4096));
    /// assert_eq!(file.seek_data((1 << 30) + 4096)?, None);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.run("look for data in", |fs, ino| Ok(fs.seek(ino, offset, varve_fs::SeekTo::Data)?))
    }

    /// Where the next hole is, at or after `offset`; every file ends with one. `None` at and beyond the end.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.run("look for holes in", |fs, ino| Ok(fs.seek(ino, offset, varve_fs::SeekTo::Hole)?))
    }

    /// Takes `len` bytes at `offset` out of the file: what lies behind moves there. Both are multiples of 4096, and the
    /// range ends before the end of the file. Nothing is copied, and a crash leaves all of it or nothing; a file in more
    /// than some 26,000 pieces behind the range (contiguous data has one piece a MiB) is refused with
    /// [`Reason::TooFragmented`].
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.write("/log", [[b'a'; 4096], [b'b'; 4096], [b'c'; 4096]].concat())?;
    /// let log = varvefs::OpenOptions::new().write(true).open(&fs, "/log")?;
    /// log.collapse_range(0, 4096)?;
    /// assert_eq!(fs.read("/log")?, [[b'b'; 4096], [b'c'; 4096]].concat());
    /// log.insert_range(4096, 4096)?;
    /// assert_eq!(fs.read("/log")?, [[b'b'; 4096], [0; 4096], [b'c'; 4096]].concat());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn collapse_range(&self, offset: u64, len: u64) -> Result<()> {
        self.run("take a range out of", |fs, ino| {
            self.require_write()?;
            let _alone = self.open.order.write();
            fs.collapse_range(self.caller, ino, offset, len).map_err(no_range)
        })
    }

    /// Puts a hole of `len` bytes into the file at `offset`: what lies there and behind moves. Both are multiples of 4096,
    /// and `offset` lies before the end of the file. As [`File::collapse_range`] otherwise.
    pub fn insert_range(&self, offset: u64, len: u64) -> Result<()> {
        self.run("put a range into", |fs, ino| {
            self.require_write()?;
            let _alone = self.open.order.write();
            fs.insert_range(self.caller, ino, offset, len).map_err(no_range)
        })
    }

    /// Makes the file durable: its contents, its attributes, and every change of names made before, its own creation
    /// included. Concurrent syncs share a flush of the device.
    pub fn sync_all(&self) -> Result<()> {
        self.run("sync", |fs, ino| Ok(fs.fsync(ino)?))
    }

    /// The same as [`File::sync_all`]: both cost one flush.
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    /// Begins a sync: as [`File::sync_all`], but without the flush, which [`Pending::wait`] or [`crate::wait_all`] does
    /// for any number of files at once.
    ///
    /// If nobody waits, a pool with background threads ([`PoolOptions::background`](crate::PoolOptions::background)) makes it durable by
    /// itself: in about two seconds if nothing else is logged meanwhile, and in about six however much is, if the device keeps up. Without
    /// them that takes another sync, [`Pool::maintain`](crate::Pool::maintain) or the close.
    pub fn start_sync(&self) -> Result<Pending> {
        let upto = self.run("sync", |fs, ino| {
            fs.flush_file(ino)?;
            place(fs)
        })?;
        Ok(Pending::new(self.open.shared().clone(), upto, Some(self.path.clone())))
    }

    /// The attributes.
    pub fn metadata(&self) -> Result<Metadata> {
        self.run("look at", |fs, ino| Ok(Metadata::of(&fs.getattr(ino)?)))
    }

    /// Sets the permission bits (07777).
    pub fn set_permissions(&self, mode: u32) -> Result<()> {
        self.run("set the permissions of", |fs, ino| verbs::set_permissions(fs, self.caller, ino, mode))
    }

    /// Sets user and group; `None` leaves one as it is.
    pub fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> Result<()> {
        self.run("set the owner of", |fs, ino| verbs::set_owner(fs, self.caller, ino, (user, group)))
    }

    /// [`crate::Filesystem::set_flags`] of what is open, for whatever it was opened. What the flags forbid is refused to handles that
    /// are open already, too.
    pub fn set_flags(&self, flags: Flags) -> Result<()> {
        self.run("set the flags of", |fs, ino| verbs::set_flags(fs, ino, flags))
    }

    /// Sets times.
    pub fn set_times(&self, times: Times) -> Result<()> {
        self.run("set the times of", |fs, ino| verbs::set_times(fs, self.caller, ino, times))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>, mode: XattrMode) -> Result<()> {
        // Before the verb begins: what panics in the user's code is not half done.
        let (name, value) = (name.as_ref(), value.as_ref());
        self.run("set an extended attribute of", |fs, ino| Ok(fs.setxattr(ino, name, value, mode.below())?))
    }

    /// The value of an extended attribute; `None` if there is none of that name.
    pub fn get_xattr(&self, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        self.run("read an extended attribute of", |fs, ino| verbs::get_xattr(fs, ino, name))
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.run("list the extended attributes of", |fs, ino| Ok(fs.listxattr(ino)?))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        let name = name.as_ref();
        self.run("remove an extended attribute of", |fs, ino| Ok(fs.removexattr(ino, name)?))
    }
}

/// Says of arguments that make no sense that they are a range.
fn no_range(error: varve_fs::FsError) -> Fault {
    match error {
        varve_fs::FsError::Invalid => Reason::Invalid(
            "the range is empty, overlaps the other one, or is not made of whole blocks inside the file",
        )
        .into(),
        error => error.into(),
    }
}

impl io::Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let count = self.read_at(buf, *position)?;
        *position += count as u64;
        Ok(count)
    }

    /// Asks for the memory for all of it first, as std's does: an error of kind `OutOfMemory` if there is not so much.
    fn read_to_end(&mut self, contents: &mut Vec<u8>) -> io::Result<usize> {
        let mut position = self.position.lock();
        let begun = contents.len();
        let result = self.read_rest(contents, *position);
        let count = contents.len() - begun;
        *position += count as u64;
        result?;
        Ok(count)
    }

    fn read_to_string(&mut self, text: &mut String) -> io::Result<usize> {
        let mut contents = Vec::new();
        self.read_to_end(&mut contents)?;
        let count = contents.len();
        let read = String::from_utf8(contents).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, "what the file contains is not valid UTF-8")
        })?;
        if text.is_empty() {
            *text = read;
        } else {
            text.try_reserve(count)?;
            text.push_str(&read);
        }
        Ok(count)
    }
}

impl io::Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        if self.rights.append {
            let (count, end) = self.append(data)?;
            *position = end;
            return Ok(count);
        }
        let count = self.write_at(data, *position)?;
        *position += count as u64;
        Ok(count)
    }

    /// Writes the parts as one, so that an append of them lands whole: up to 8 MiB at once, or a first part that is longer.
    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut parts = parts.iter().filter(|part| !part.is_empty()).peekable();
        let Some(first) = parts.next() else { return self.write(&[]) };
        if first.len() >= PIECE_BYTES || parts.peek().is_none() {
            return self.write(first);
        }
        let mut data = first.to_vec();
        for part in parts {
            let room = PIECE_BYTES - data.len();
            data.extend_from_slice(&part[..part.len().min(room)]);
        }
        self.write(&data)
    }

    /// Does nothing: nothing is held back by the handle. [`File::sync_all`] makes what was written durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for &File {
    /// Positions beyond the end are allowed: a write there leaves a hole.
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            io::SeekFrom::Start(offset) => Some(offset),
            io::SeekFrom::Current(delta) => position.checked_add_signed(delta),
            io::SeekFrom::End(delta) => {
                let end = self.run("look at", |fs, ino| Ok(fs.getattr(ino)?.size))?;
                end.checked_add_signed(delta)
            }
        };
        match target.filter(|target| *target <= POSITION_MAX) {
            Some(target) => {
                *position = target;
                Ok(target)
            }
            None => {
                let reason = Reason::Invalid("the position lies before the start or beyond the largest file");
                Err(Fault::from(reason).on("seek in", &self.path).into())
            }
        }
    }
}

impl io::Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &*self, buf)
    }

    fn read_to_end(&mut self, contents: &mut Vec<u8>) -> io::Result<usize> {
        io::Read::read_to_end(&mut &*self, contents)
    }

    fn read_to_string(&mut self, text: &mut String) -> io::Result<usize> {
        io::Read::read_to_string(&mut &*self, text)
    }
}

impl io::Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut &*self, data)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        io::Write::write_vectored(&mut &*self, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        io::Seek::seek(&mut &*self, to)
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &crate::error::path_buf(&self.path))
            .field("inode", &self.open.ino.0)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}
