//! Handles of files (name_to_handle_at, open_by_handle_at): what NFS servers and backup programs keep instead of paths.

use std::ffi::{CString, c_char, c_int};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use varve_fs::{Caller, ROOT_INODE};

use super::Mount;

/// Room that is enough for a handle of any filesystem.
const HANDLE_BYTES_MAX: usize = 128;
const AT_FDCWD: c_int = -100;
const ESTALE: i32 = 116;

/// As the C library has it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Handle {
    len: u32,
    kind: c_int,
    /// Here: the inode's number, its upper half first, and its generation, each half or whole 32 bits.
    bytes: [u8; HANDLE_BYTES_MAX],
}

unsafe extern "C" {
    fn name_to_handle_at(
        dir: c_int,
        path: *const c_char,
        handle: *mut Handle,
        mount_id: *mut c_int,
        flags: c_int,
    ) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut Handle, flags: c_int) -> c_int;
}

fn handle_of(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { len: HANDLE_BYTES_MAX as u32, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount_id = 0;
    // SAFETY: the path ends with a NUL; `handle` has room for the `len` bytes that it says.
    let result = unsafe { name_to_handle_at(AT_FDCWD, path.as_ptr(), &mut handle, &mut mount_id, 0) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mount: &Mount, handle: &Handle) -> io::Result<File> {
    let at = File::open(&mount.at).unwrap();
    let mut handle = *handle;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // SAFETY: `handle` holds the `len` bytes that it says.
    match unsafe { open_by_handle_at(at.as_raw_fd(), &mut handle, flags.bits() as c_int) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor that nobody else knows.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}

/// Whether a handle leads nowhere, in the end: nobody waits for the kernel to say that a file is closed, and until it has,
/// what has no name any more can still be opened.
fn leads_nowhere(mount: &Mount, handle: &Handle) -> bool {
    (0..12).any(|tries| {
        let failed = open(mount, handle).err();
        if failed.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1 << tries));
        }
        failed.is_some_and(|error| {
            assert_eq!(error.raw_os_error(), Some(ESTALE), "{error}");
            true
        })
    })
}

fn path_of(file: &File) -> std::path::PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

// Goal: a handle leads to its file when the kernel has forgotten all about it, whatever became of its name, and to nothing
// when the file is gone. Method: handles of files, directories, one in a subvolume, and one that is deleted; unmount and
// mount; and handles that nobody was given.
#[test]
fn handles_outlive_the_kernels_memory() {
    let Some(mut mount) = Mount::start_as_root("handles_outlive_the_kernels_memory", 64 << 20) else {
        return;
    };
    fs::create_dir_all(mount.path("one/two/three")).unwrap();
    mount.fs.create_subvolume(Caller::ROOT, ROOT_INODE, b"sub", 0o755).unwrap();
    let names = ["file", "one/two/three/file", "sub/file", "moved", "gone", "gone later"];
    for name in names {
        fs::write(mount.path(name), name).unwrap();
    }
    let handles = names.map(|name| handle_of(&mount.path(name)));
    let directories = [".", "one", "one/two/three", "sub"].map(|name| (name, handle_of(&mount.path(name))));
    if let Err(error) = open(&mount, &handles[0]) {
        eprintln!("SKIPPED, nothing shown: handles cannot be opened here: {error}");
        return;
    }
    fs::rename(mount.path("moved"), mount.path("one/elsewhere")).unwrap();
    fs::remove_file(mount.path("gone")).unwrap();
    assert!(leads_nowhere(&mount, &handles[4]));
    for round in 0..2 {
        mount.again();
        for (name, handle) in names.iter().zip(&handles).take(4) {
            let mut text = String::new();
            open(&mount, handle).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, *name);
        }
        for (name, handle) in &directories {
            let file = open(&mount, handle).unwrap();
            let there = mount.at.join(name).canonicalize().unwrap();
            assert_eq!(path_of(&file), there);
            let up =
                rustix::fs::openat(&file, "..", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let above = there.parent().unwrap();
            assert_eq!(
                File::from(up).metadata().unwrap().ino(),
                fs::metadata(above).unwrap().ino(),
                "{name}"
            );
        }
        assert_eq!(open(&mount, &handles[4]).unwrap_err().raw_os_error(), Some(ESTALE));
        let (mut other, mut generation, mut nowhere) = (handles[0], handles[0], handles[0]);
        other.bytes[4..8].copy_from_slice(&0x7fff_ffffu32.to_ne_bytes());
        nowhere.bytes[0..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        generation.bytes[8] ^= 1;
        for handle in [other, nowhere, generation] {
            assert_eq!(open(&mount, &handle).unwrap_err().raw_os_error(), Some(ESTALE));
        }
        if round == 0 {
            // The first open of it after a mount comes when the name is gone and the file is open.
            let held = open(&mount, &handles[5]).unwrap();
            fs::remove_file(mount.path("gone later")).unwrap();
            assert_eq!(held.metadata().unwrap().nlink(), 0);
            drop(held);
            // An unmount may keep the kernel from saying that it is closed; this filesystem outlives the mount.
            assert!(leads_nowhere(&mount, &handles[5]), "the kernel says when a file is closed");
        }
    }
    assert_eq!(open(&mount, &handles[5]).unwrap_err().raw_os_error(), Some(ESTALE));
    // The root was asked for by its number, and is sound.
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"file");
}
