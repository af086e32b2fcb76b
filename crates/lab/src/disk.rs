//! The disks that targets lie on: equal in size, made by the lab, removed with the value.
//!
//! A loop device has its own file behind it, written full once (so that no later write has to allocate below the
//! experiment), direct I/O (so that no page cache is counted as a disk) and no discards (which would unallocate it again).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use varve_device::{Device, FileDevice, MemoryDevice, OpenMode};
use varvefs::MemoryDisk;

use crate::counters::Counters;
use crate::{Medium, tool};

const FILL_BYTES: usize = 1 << 20;

/// Why loop devices cannot be had here, if they cannot.
#[must_use]
pub fn loop_devices_missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("loop devices need root; run it with sudo".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no /dev/loop-control; load the module: modprobe loop".to_owned());
    }
    if tool::find("losetup").is_none() {
        return Some("losetup is not installed: apt-get install mount".to_owned());
    }
    None
}

/// A disk of the lab.
pub enum Disk {
    /// A loop device.
    Loop(LoopDevice),
    /// A regular file.
    File(ScratchFile),
    /// Memory.
    Memory(u64),
}

impl Disk {
    /// Makes a disk of `size_bytes`. Files are made in `directory`, named after `name`. With `fill` the whole file is
    /// written once.
    pub fn new(medium: Medium, directory: &Path, name: &str, size_bytes: u64, fill: bool) -> Result<Disk> {
        if medium == Medium::Memory {
            return Ok(Disk::Memory(size_bytes));
        }
        let file = ScratchFile::new(&directory.join(format!("{name}.img")), size_bytes, fill)?;
        match medium {
            Medium::Loop => Ok(Disk::Loop(LoopDevice::attach(file)?)),
            _ => Ok(Disk::File(file)),
        }
    }

    /// The path to open, if it has one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Disk::Loop(device) => Some(&device.path),
            Disk::File(file) => Some(&file.path),
            Disk::Memory(_) => None,
        }
    }

    /// The block layer's counters, where there is a block layer.
    pub fn counters(&self) -> Result<Option<Counters>> {
        match self {
            Disk::Loop(device) => Counters::read(&device.stat).map(Some),
            Disk::File(_) | Disk::Memory(_) => Ok(None),
        }
    }

    /// Opens it for bare reads, writes and flushes.
    pub fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(match self.path() {
            Some(path) => Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?),
            None => Arc::new(MemoryDevice::new(self.size_bytes())),
        })
    }

    /// Makes a pool on it and opens it in this process.
    pub fn create_pool(&self) -> Result<varvefs::Pool> {
        let options = varvefs::PoolOptions::new().force(true);
        Ok(match self.path() {
            Some(path) => options.format(path)?,
            None => options.create_on(&MemoryDisk::new(self.size_bytes()))?,
        })
    }

    /// Its size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match self {
            Disk::Loop(device) => device.file.size_bytes,
            Disk::File(file) => file.size_bytes,
            Disk::Memory(size_bytes) => *size_bytes,
        }
    }

    /// What it is, for the report.
    #[must_use]
    pub fn describe(&self) -> String {
        let mib = self.size_bytes() >> 20;
        match self {
            Disk::Loop(device) => format!(
                "{mib} MiB loop device over a file, direct I/O, {}",
                if device.rotational { "says it rotates" } else { "does not rotate" }
            ),
            Disk::File(_) => format!("{mib} MiB regular file, direct I/O; nothing is counted"),
            Disk::Memory(_) => format!("{mib} MiB of memory; nothing is counted"),
        }
    }
}

/// A file that goes with the value.
pub struct ScratchFile {
    path: PathBuf,
    size_bytes: u64,
}

impl ScratchFile {
    fn new(path: &Path, size_bytes: u64, fill: bool) -> Result<ScratchFile> {
        let doing = || format!("cannot make the file {} of {size_bytes} bytes", path.display());
        let mut file: File =
            OpenOptions::new().write(true).create_new(true).open(path).with_context(doing)?;
        let scratch = ScratchFile { path: path.to_path_buf(), size_bytes };
        file.set_len(size_bytes).with_context(doing)?;
        if fill {
            let zeros = vec![0; FILL_BYTES];
            let mut left = size_bytes;
            while left > 0 {
                crate::guard::check()?;
                let now = left.min(FILL_BYTES as u64);
                file.write_all(&zeros[..now as usize]).with_context(doing)?;
                left -= now;
            }
            file.sync_all().with_context(doing)?;
        }
        Ok(scratch)
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            crate::say(&format!("{} stays: {error}", self.path.display()));
        }
    }
}

/// A loop device and the file behind it.
pub struct LoopDevice {
    path: PathBuf,
    stat: PathBuf,
    rotational: bool,
    file: ScratchFile,
}

impl LoopDevice {
    fn attach(file: ScratchFile) -> Result<LoopDevice> {
        if let Some(missing) = loop_devices_missing() {
            bail!(missing);
        }
        let losetup = tool::find("losetup").context("losetup is not installed: apt-get install mount")?;
        let words = ["--find", "--show", "--direct-io=on"].map(Path::new);
        let shown = tool::run(&losetup, &[&words[..], &[file.path.as_path()]].concat())?;
        let path = PathBuf::from(shown.trim());
        let name = path.file_name().context("losetup did not name a device")?.to_owned();
        let block = Path::new("/sys/block").join(name);
        // From here on a failure detaches it.
        let mut device = LoopDevice { path, stat: block.join("stat"), rotational: false, file };
        let setting = |file: &str| std::fs::read_to_string(block.join(file)).unwrap_or_default();
        if setting("loop/dio").trim() != "1" {
            crate::say(&format!("{} does no direct I/O: the page cache takes part", device.path.display()));
        }
        device.rotational = setting("queue/rotational").trim() == "1";
        let discards = block.join("queue/discard_max_bytes");
        if let Err(error) = std::fs::write(&discards, "0") {
            crate::say(&format!("discards stay on: cannot write {}: {error}", discards.display()));
        }
        Counters::read(&device.stat)?;
        Ok(device)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = match tool::find("losetup") {
            Some(losetup) => tool::run(&losetup, &[Path::new("--detach"), &self.path]).map(|_| ()),
            None => Err(anyhow::anyhow!("losetup is gone")),
        };
        if let Err(error) = detached {
            crate::say(&format!("{} stays: {error:#}", self.path.display()));
        }
    }
}
