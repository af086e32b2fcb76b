//! A new file that appears under its own name only when what is to be in it is whole: if power fails or the process is killed
//! before, the next attempt begins anew over what is left of the first.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::open::sync_parent;
use super::{FileDevice, FileOptions, OpenMode};
use crate::error::Operation;
use crate::{ALIGN_BYTES, DeviceError};

/// What is appended to the name of a file while it is being made.
const UNFINISHED: &str = ".creating";

impl FileDevice {
    /// Makes the sparse file `path` of `size_bytes`, rounded down to whole blocks, and lets `fill` fill it. It has that name, durably,
    /// when this returns without an error, and not before.
    ///
    /// Errors: [`DeviceError::AlreadyExists`] if there is anything at `path`, or somebody else is making it; those of
    /// [`FileDevice::open`]; what `fill` says.
    pub fn create_whole<E: From<DeviceError>>(
        path: &Path,
        size_bytes: u64,
        fill: impl FnOnce(Arc<FileDevice>) -> Result<(), E>,
    ) -> Result<(), E> {
        let name = path.display().to_string();
        let os_error = |error: io::Error| DeviceError::from_os(Operation::Open, &name, 0, 0, &error);
        if fs::symlink_metadata(path).is_ok() {
            return Err(DeviceError::AlreadyExists { device: name }.into());
        }
        let Some(unfinished) = unfinished(path) else {
            let text = "its path does not end in a name".to_owned();
            return Err(DeviceError::Unsupported { device: name, text }.into());
        };
        let mode = OpenMode::Create { size_bytes: size_bytes - size_bytes % ALIGN_BYTES as u64 };
        let options = FileOptions { reuse_existing: true, ..FileOptions::from_env() };
        // Whoever had its lock may have removed it, or given it its name: then it is looked at once more.
        let open = || FileDevice::open_with(&unfinished, mode, options);
        let device = open().or_else(|error| match error {
            DeviceError::AlreadyExists { .. } if fs::symlink_metadata(path).is_err() => open(),
            error => Err(error),
        });
        let device = device.map_err(|error| error.called(&name))?;
        let device = Arc::new(device);
        // The file stays locked until it has its name, so that of two who make the same one is refused.
        let made = fill(device.clone()).and_then(|()| {
            let named = rename_new(&unfinished, path).and_then(|()| sync_parent(path));
            Ok(named.map_err(os_error)?)
        });
        if made.is_err() {
            // The first error is the news; what is left is written over at the next attempt.
            let _ = fs::remove_file(&unfinished);
        }
        made
    }
}

fn unfinished(path: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name()?);
    name.push(UNFINISHED);
    Some(path.with_file_name(name))
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
