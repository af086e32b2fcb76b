//! How a file gets into the pool, and what becomes of one that is changed while it is read.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use rustix::fs::OFlags;
use rustix::io::Errno;
use varve_fs::{Attr, Caller, FileKind, InodeId, NewNameless, SetAttr, Timestamp};

use super::{Import, Level, PIECE_BYTES, Step, caller};
use crate::clock;
use crate::pages;
use crate::transfer::finisher::Written;
use crate::transfer::held::Held;
use crate::transfer::host::{self, HostStat};
use crate::transfer::replaced;
use crate::transfer::tally::Trouble;

/// From this size on a new file is copied without a name. Of a smaller one a half may be left under its name if this is killed: that takes no
/// more space than this until the next import has replaced it. Nothing is read while such a file is written out, which tells in smaller ones.
const NAMELESS_BYTES_MIN: u64 = 64 << 20;
/// Longest that two changes have the same time: the longest tick of a kernel's clock, twice.
const TICK: Duration = Duration::from_millis(20);
/// Looks at a file that is changed all the time.
const LOOKS_MAX: u32 = 3;

impl Import {
    /// Has a filesystem written back, once, and gives when that began: what is dirty in it by now has times from then on, or later ones. (One in
    /// user space knows neither data nor times of what the kernel has not yet written back to it.)
    pub(super) fn settle(&mut self, source: &OwnedFd, stat: &HostStat) -> Timestamp {
        *self.settled.entry(stat.id.0).or_insert_with(|| {
            self.tally.progress.note("having it written back");
            let begun = clock::tick();
            // What somebody else's data cannot be written for is told to who syncs it; what is read here is what the kernel has.
            let _ = match host::is_in_user_space(source) {
                true => pages::write_back_filesystem(source),
                false => host::sync_filesystem(source).map_err(Into::into),
            };
            begun
        })
    }

    /// Looks at an open file so that whatever is changed in it from then on moves its times. `false`: that cannot be had, as it is
    /// changed all the time.
    ///
    /// A store through mmap moves them when it makes a page dirty; later ones into that page do not, until it has been written back. So times
    /// are believed that are older than the last time when everything was, or that are still the same when the file was once more.
    fn look(&mut self, source: &OwnedFd) -> Step<(HostStat, bool)> {
        pages::write_back(source);
        let mut stat = host::stat_of(source)?;
        if stat.kind != FileKind::File {
            return Err(replaced());
        }
        let settled = self.settle(source, &stat);
        for _ in 0..LOOKS_MAX {
            if stat.ctime < settled {
                return Ok((stat, true));
            }
            let seen = stat.ctime;
            // A change within the same tick would have the same time.
            if clock::is_near(seen, TICK) {
                thread::sleep(TICK);
            }
            host::write_back(source);
            stat = host::stat_of(source)?;
            if stat.ctime == seen {
                return Ok((stat, true));
            }
        }
        Ok((stat, false))
    }

    /// Gives what was made, and of which file: that whose further names are its own.
    pub(super) fn copy(
        &mut self,
        dir: &Level,
        name: &[u8],
        existing: Option<Attr>,
    ) -> Step<(InodeId, HostStat)> {
        let source = host::open_at(dir.source.as_fd(), name, OFlags::empty())?;
        // What is open may be another file than what was looked at: this one counts.
        let (stat, tells_changes) = self.look(&source)?;
        if !tells_changes && existing.is_some() {
            return Err(changed());
        }
        self.open_up(dir, existing)?;
        let attr = match existing {
            Some(existing) => self.in_place_of(dir, name, existing, &source, &stat)?,
            None if stat.size >= NAMELESS_BYTES_MIN => self.large(dir, name, &source, &stat)?,
            None => self.small(dir, name, &source, &stat)?,
        };
        self.attributes(attr, &stat, &Held::of(&source), None)?;
        let flags = host::flags(source.as_fd()).filter(|flags| *flags != attr.flags);
        // Without its time it will be copied anew.
        require_unchanged(&source, &stat)?;
        if !tells_changes {
            return Err(changed());
        }
        self.tally.summary.files_copied_count += 1;
        let (now, last) = if stat.links > 1 { (None, flags) } else { (flags, None) };
        self.flags_last.extend(last.map(|flags| (attr.ino, flags)));
        let written = Written { ino: attr.ino, atime: stat.atime, mtime: stat.mtime, flags: now };
        if !self.finisher.push(written, stat.size) {
            return Err(Trouble::Fatal(anyhow!("the pool failed")));
        }
        Ok((attr.ino, stat))
    }

    /// Makes a file that is there by its name while it is copied.
    fn small(&mut self, dir: &Level, name: &[u8], source: &OwnedFd, stat: &HostStat) -> Step<Attr> {
        let attr = self.filesystem.create(caller(stat), dir.target.ino, name, stat.mode)?;
        if let Err(trouble) = self.contents(source, stat, attr.ino) {
            // Half a file is worse than none. What went wrong is the news.
            let _ = self.filesystem.unlink(dir.target.ino, name);
            return Err(trouble);
        }
        Ok(attr)
    }

    /// Makes a file that has its name when it is whole.
    fn large(&mut self, dir: &Level, name: &[u8], source: &OwnedFd, stat: &HostStat) -> Step<Attr> {
        self.nameless(dir, source, stat, |import, ino| {
            Ok(import.filesystem.link(ino, dir.target.ino, name)?)
        })
    }

    /// The same in the place of what is `existing`, if it was not changed meanwhile.
    pub(super) fn in_place_of(
        &mut self,
        dir: &Level,
        name: &[u8],
        existing: Attr,
        source: &OwnedFd,
        stat: &HostStat,
    ) -> Step<Attr> {
        self.nameless(dir, source, stat, |import, ino| {
            require_unchanged(source, stat)?;
            import.replace(dir, name, existing, ino)
        })
    }

    /// Copies a file without a name, which `give` gives it. If this ends before, it goes when the pool is next opened.
    fn nameless(
        &mut self,
        dir: &Level,
        source: &OwnedFd,
        stat: &HostStat,
        give: impl FnOnce(&Import, InodeId) -> Step<Attr>,
    ) -> Step<Attr> {
        let new = NewNameless { mode: stat.mode, umask: 0, linkable: true, set_gid_judged: false };
        let made = self.filesystem.tmpfile(caller(stat), dir.target.ino, new)?;
        let copied = self.contents(source, stat, made.ino);
        let named = copied.and_then(|()| {
            // Whoever finds it by its name finds its contents, also after a crash.
            self.filesystem.flush_file(made.ino)?;
            give(self, made.ino)
        });
        let released = self.filesystem.release_inode(made.ino);
        named.and_then(|attr| Ok(released.map(|()| attr)?))
    }

    /// Gives a file without a name that of what is `existing`, in one step: who is killed leaves the one or the other there, and nothing
    /// beside it.
    fn replace(&self, dir: &Level, name: &[u8], existing: Attr, ino: InodeId) -> Step<Attr> {
        self.freed(existing, || Ok(self.filesystem.link_over(ino, dir.target.ino, name)?))?;
        Ok(self.filesystem.getattr(ino)?)
    }

    fn contents(&mut self, source: &OwnedFd, stat: &HostStat, ino: InodeId) -> Step<()> {
        let mut end = 0;
        while let Some((begin, stop)) = host::next_data(source, end, stat.size)? {
            let mut at = begin;
            while at < stop {
                self.stop.look()?;
                let wanted = (stop - at).min(PIECE_BYTES as u64) as usize;
                let count = match rustix::io::pread(source, &mut self.buffer[..wanted], at) {
                    // Shorter than it was: that shows in its time.
                    Ok(0) => break,
                    Err(Errno::INTR) => continue,
                    result => result?,
                };
                let mut done = 0;
                while done < count {
                    let piece = &self.buffer[done..count];
                    done += self.filesystem.write(Caller::ROOT, ino, at + done as u64, piece)?;
                }
                self.tally.data(count as u64);
                at += count as u64;
            }
            end = stop;
        }
        if end < stat.size {
            let set = SetAttr { size: Some(stat.size), ..SetAttr::default() };
            self.filesystem.setattr(Caller::ROOT, ino, set)?;
        }
        self.require_end(source, stat)
    }

    /// Refuses a file that goes on behind its size; one that has grown meanwhile is seen by its times.
    pub(super) fn require_end(&mut self, source: &OwnedFd, stat: &HostStat) -> Step<()> {
        let goes_on = loop {
            match rustix::io::pread(source, &mut self.buffer[..], stat.size) {
                Err(Errno::INTR) => {}
                // No file can be longer.
                Err(Errno::INVAL) if stat.size > 0 => break false,
                result => break result? > 0,
            }
        };
        if goes_on && require_unchanged(source, stat).is_ok() {
            return Err(Trouble::Entry(format!(
                "it says that it has {} bytes, as files of /proc do, and has more; read it into another file (cat) and import that",
                stat.size
            )));
        }
        Ok(())
    }
}

/// Refuses a file that is not as it was when it was looked at.
fn require_unchanged(source: &OwnedFd, stat: &HostStat) -> Step<()> {
    // In user space what the kernel has not sent has moved no time.
    pages::write_back(source);
    let now = host::stat_of(source)?;
    if (now.size, now.mtime, now.ctime) != (stat.size, stat.mtime, stat.ctime) {
        return Err(changed());
    }
    Ok(())
}

fn changed() -> Trouble {
    Trouble::Entry("it was changed while it was read; run the same command again to copy it anew".to_owned())
}
