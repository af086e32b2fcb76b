//! Where a pool lies: a regular file, a block device, or memory.
//!
//! A new pool's file appears under its own name only when the pool in it is whole: if power fails before, the next
//! attempt begins anew over what is left of the first.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::error::{Fault, Reason};

/// What is appended to the name of a pool while it is being made.
const UNFINISHED: &str = ".creating";

/// Opens what is at `path`.
pub(crate) fn open(path: &Path, read_only: bool) -> Result<Arc<dyn varve_device::Device>, Fault> {
    let mode = if read_only { varve_device::OpenMode::ReadOnly } else { varve_device::OpenMode::ReadWrite };
    Ok(Arc::new(varve_device::FileDevice::open(path, mode)?))
}

/// Makes the sparse file `path` of `size_bytes`, which must not exist, and lets `format` fill it.
pub(crate) fn create(
    path: &Path,
    size_bytes: u64,
    format: impl FnOnce(Arc<dyn varve_device::Device>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(Reason::Exists.into());
    }
    let unfinished = unfinished(path)?;
    let mode = varve_device::OpenMode::Create {
        size_bytes: size_bytes - size_bytes % varve_device::ALIGN_BYTES as u64,
    };
    let options = varve_device::FileOptions { reuse_existing: true, ..varve_device::FileOptions::from_env() };
    let device = Arc::new(varve_device::FileDevice::open_with(&unfinished, mode, options)?);
    // The file stays locked until it has its name, so that of two who create the same pool one is refused.
    let made = format(device.clone()).and_then(|()| {
        rename_new(&unfinished, path).and_then(|()| sync_parent(path)).map_err(|error| os_fault(&error))
    });
    if made.is_err() {
        // The first error is the news; what is left is written over at the next attempt.
        let _ = fs::remove_file(&unfinished);
    }
    made
}

fn unfinished(path: &Path) -> Result<PathBuf, Fault> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(Reason::Invalid("the path of a pool ends with its name"))?);
    name.push(UNFINISHED);
    Ok(path.with_file_name(name))
}

/// Renames over nothing.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(io::Error::from) {
        // Filesystems that do not know the flag: the look before is all there is.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(from, to)
        }
        result => result,
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

fn os_fault(error: &io::Error) -> Fault {
    let reason = match error.kind() {
        io::ErrorKind::AlreadyExists => Reason::Exists,
        io::ErrorKind::NotFound => Reason::NotFound,
        io::ErrorKind::PermissionDenied => Reason::AccessDenied(error.to_string()),
        _ => Reason::Device(error.to_string()),
    };
    reason.into()
}
