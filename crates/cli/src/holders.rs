//! What keeps a mount in use without being a process: fuser(1) shows none of it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::mountinfo::MountTable;
use crate::names::Shown;

/// Each that is found, in words, with what ends it.
pub fn of(table: &MountTable, mountpoint: &Path) -> Vec<String> {
    let inside = table.mounted_in(mountpoint).map(|mount| {
        let place = mount.mountpoint.shown();
        format!("{place} is mounted in it (umount {place})")
    });
    let loops = loop_devices().filter(|(_, file)| file.starts_with(mountpoint)).map(|(device, file)| {
        let (device_shown, file) = (device.shown(), file.shown());
        // It goes with the last of them, and stays where it has been made without a mount.
        let places: Vec<String> =
            table.of_source(&device).map(|mount| format!("umount {}", mount.mountpoint.shown())).collect();
        match &places[..] {
            [] => format!("{file} is the loop device {device_shown} (losetup -d {device_shown})"),
            places => format!(
                "{file} is the loop device {device_shown}, which is mounted ({}; then losetup -d {device_shown}, should it still be there)",
                places.join("; ")
            ),
        }
    });
    inside.chain(loops).collect()
}

/// All that are in use, and their files as the kernel names them for this process: one that was removed has a word behind its name.
fn loop_devices() -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.filter_map(|device| {
        let mut file = fs::read(device.path().join("loop/backing_file")).ok()?;
        file.pop_if(|last| *last == b'\n');
        Some((Path::new("/dev").join(device.file_name()), OsString::from_vec(file).into()))
    })
}
