//! What programs have changed through mmap: the kernel keeps it to itself until it writes it back. A mount hears of it only then, so
//! what goes another way than through the kernel has it written back first. (write(2) reaches a FUSE filesystem at once.)

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::mountinfo::{self, Mount};

/// So long a moment is waited for in which a mount has nothing to do: where it is always busy, what came first has been done by then.
const PATIENCE: Duration = Duration::from_millis(250);
/// And so long where it cannot be seen: most writes are answered in a tenth of that.
const PATIENCE_UNSEEN: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(500);

/// Has the kernel write back what it has of an open file, and waits for that. FUSE does so whenever a descriptor of it is closed
/// (older kernels only where the filesystem wants to hear of that); others need not be asked.
pub fn write_back(file: impl AsFd) {
    // What cannot be written back is told to whoever syncs the file.
    drop(file.as_fd().try_clone_to_owned());
}

/// The same of the file that `path` leads to. Nothing, if this user may not read it.
pub fn write_back_at(path: &Path) {
    if let Ok(file) = open(path) {
        write_back(&file);
    }
}

/// The same of everything in a filesystem in user space, as far as can be: the kernel has asked for all of it when syncfs(2) returns,
/// and does not wait for the answers. Where it tells how many requests wait, a moment with none is waited for.
pub fn write_back_filesystem(file: impl AsFd) -> io::Result<()> {
    rustix::fs::syncfs(&file)?;
    // The kernel's own form of the number: of a filesystem on a block device it has a major part.
    let device = rustix::fs::fstat(&file)?.st_dev;
    let number = rustix::fs::major(device) << 20 | rustix::fs::minor(device);
    let waiting = format!("/sys/fs/fuse/connections/{number}/waiting");
    let begun = Instant::now();
    loop {
        // Not there (nobody has mounted it), or not for this user: then the answers come unseen.
        let (is_idle, patience) = match std::fs::read(&waiting) {
            Ok(count) => (count.trim_ascii() == b"0", PATIENCE),
            Err(_) => (false, PATIENCE_UNSEEN),
        };
        if is_idle || begun.elapsed() >= patience {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
}

/// The same of the mount that `inside` lies in. Nothing, if this user is not let in.
pub fn write_back_mount(mount: &Mount, inside: &Path) -> io::Result<()> {
    write_back_device(mount.device, inside)
}

/// The same of the mount with this device number, if `inside` lies in it.
pub fn write_back_device(device: (u32, u32), inside: &Path) -> io::Result<()> {
    let is_here = |place: &&Path| {
        place.metadata().is_ok_and(|metadata| {
            (metadata.is_dir() || metadata.is_file()) && mountinfo::device(&metadata) == device
        })
    };
    match inside.ancestors().filter(is_here).find_map(|place| open(place).ok()) {
        Some(file) => write_back_filesystem(&file),
        None => Ok(()),
    }
}

/// To read, without a trace where that is allowed.
fn open(path: &Path) -> io::Result<File> {
    let open = |flags: OFlags| File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    open(flags | OFlags::NOATIME).or_else(|_| open(flags))
}
