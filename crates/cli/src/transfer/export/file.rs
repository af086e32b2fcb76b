//! How a file gets out of the pool.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use anyhow::anyhow;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use varve_fs::{Attr, SeekTo};

use super::{Export, Level, PATH_BYTES_MAX, Step, WAITING_BYTES_MAX, WAITING_FILES_MAX, Waiting, unreadable};
use crate::transfer::held::Held;
use crate::transfer::host::{self, Flagged, HostStat};
use crate::transfer::tally::Trouble;
use crate::transfer::target::{place, sync_file};

/// Contents copied with one read and one write.
const PIECE_BYTES: u64 = 1 << 20;

impl Export<'_> {
    pub(super) fn file(
        &mut self,
        dir: &Level,
        path: &Path,
        name: &[u8],
        from: &Attr,
        existing: Option<HostStat>,
    ) -> Step<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        let durable = existing.is_some() || self.kept_times.get_mut().may_be_now(&dir.target, from.mtime);
        // It gets its name when it is whole, so that nobody finds half of it there when this ends before.
        let nameless = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let (target, given) = match rustix::fs::openat(&dir.target, ".", nameless, mode) {
            Ok(target) => {
                self.contents(from, &target, durable)?;
                let given = self.give(from, &target);
                place(&dir.target, name, existing, |name| {
                    Ok(host::give_name(&target, dir.target.as_fd(), name)?)
                })?;
                (target, given)
            }
            // Not every filesystem has files without a name.
            Err(_) => place(&dir.target, name, existing, |name| {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let target = rustix::fs::openat(&dir.target, name, flags, mode)?;
                if let Err(trouble) = self.contents(from, &target, durable) {
                    // Half a file is worse than none. What went wrong is the news.
                    let _ = rustix::fs::unlinkat(&dir.target, name, AtFlags::empty());
                    return Err(trouble);
                }
                let given = self.give(from, &target);
                Ok((target, given))
            })?,
        };
        // Its contents count for more than what it could not be given.
        given?;
        let have = host::stat_of(&target)?;
        let mut flags = Flagged::of(Some(target.as_fd()));
        let (each, deep) = (self.filesystems.wants_each(have.id.0), path.as_os_str().len() > PATH_BYTES_MAX);
        if each || deep {
            // To be synced by itself, or too deep to be found again by its path.
            rustix::fs::fsync(&target)?;
            Held::of(&target).set_times(&host::times(from.atime, from.mtime))?;
            if deep || from.links == 1 {
                self.flag(&mut flags, from.flags);
            } else if from.flags != flags.now {
                self.flags_last.push((path.to_path_buf(), from.flags, have.uid));
            }
            return Ok(sync_file(&target, each)?);
        }
        let flags = (from.flags != flags.now).then_some(from.flags);
        let (now, last) = if from.links > 1 { (None, flags) } else { (flags, None) };
        self.flags_last.extend(last.map(|flags| (path.to_path_buf(), flags, have.uid)));
        if self.waiting.is_empty() {
            self.waiting_since = Instant::now();
        }
        let (atime, mtime) = (from.atime, from.mtime);
        self.waiting.push(Waiting { path: path.to_path_buf(), atime, mtime, uid: have.uid, flags: now });
        if self.waiting.len() >= WAITING_FILES_MAX
            || self.waiting_bytes >= WAITING_BYTES_MAX
            || self.waiting_since.elapsed() >= self.waiting_time_max
        {
            self.finish_waiting()?;
        }
        Ok(())
    }

    /// Copies what is in a file, and makes it `durable`. What is going to take the place of something has to be: if power fails after the rename and
    /// before the next sync of the target, the name may lead to the new file, and the older copy is gone.
    fn contents(&mut self, from: &Attr, target: &OwnedFd, durable: bool) -> Step<()> {
        let mut end = 0;
        while let Some(begin) = self.filesystem.seek(from.ino, end, SeekTo::Data).map_err(unreadable)? {
            let stop = self.filesystem.seek(from.ino, begin, SeekTo::Hole).map_err(unreadable)?;
            let stop = stop.unwrap_or(from.size);
            let mut at = begin;
            while at < stop {
                self.stop.look()?;
                let wanted = (stop - at).min(PIECE_BYTES) as usize;
                let data = self.filesystem.read(from.ino, at, wanted).map_err(unreadable)?;
                if data.is_empty() {
                    break;
                }
                let mut done = 0;
                while done < data.len() {
                    match rustix::io::pwrite(target, &data[done..], at + done as u64) {
                        Err(Errno::INTR) => {}
                        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::ROFS)) => {
                            return Err(Trouble::Fatal(anyhow!(
                                "writing to the target failed: {}; make room there and run the same command again",
                                std::io::Error::from(errno)
                            )));
                        }
                        result => done += result?,
                    }
                }
                self.tally.data(data.len() as u64);
                self.waiting_bytes += data.len() as u64;
                at += data.len() as u64;
            }
            end = stop;
        }
        if end < from.size {
            rustix::fs::ftruncate(target, from.size)?;
        }
        if durable {
            rustix::fs::fdatasync(target)?;
        }
        Ok(())
    }
}
