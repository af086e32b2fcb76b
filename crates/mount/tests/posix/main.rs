//! What POSIX and Linux promise, through the kernel: the filesystem on a device in memory, mounted. Needs `/dev/fuse`
//! and the right to mount; where they are missing every test says so and passes without having shown anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_device::{Device, MemoryDevice};
use varve_fs::{Caller, Clock, Filesystem, FormatOptions, OpenOptions, Profile, StoreOptions, Timestamp};
use varve_mount::{Flags, MountError, MountOptions, Mounted, unmount};

mod attributes;
mod data;
mod faults;
mod flags;
mod gone;
mod handles;
mod nodes;

struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
    }
}

fn mount_options(source: &str) -> MountOptions {
    let flags = Flags::default();
    MountOptions {
        source: source.into(),
        flags,
        allow_other: true,
        threads: 4,
        direct_io: false,
        rings: varve_mount::Rings::Offered,
    }
}

/// A mounted filesystem of its own.
struct Mount {
    fs: Arc<Filesystem>,
    at: PathBuf,
    mounted: Option<Mounted>,
    directory: tempfile::TempDir,
}

impl Mount {
    /// `None`: this machine cannot mount.
    fn start(test: &str, size_bytes: u64) -> Option<Mount> {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_path_buf();
        Mount::start_in(test, size_bytes, &at, directory)
    }

    /// As [`Mount::start`], with other options.
    fn start_by(test: &str, size_bytes: u64, options: &MountOptions) -> Option<Mount> {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_path_buf();
        Mount::start_as(test, size_bytes, &at, directory, options)
    }

    /// As [`Mount::start`], at a directory that somebody else looks after.
    fn start_at(test: &str, size_bytes: u64, at: &Path) -> Option<Mount> {
        Mount::start_in(test, size_bytes, at, tempfile::tempdir().unwrap())
    }

    fn start_in(test: &str, size_bytes: u64, at: &Path, directory: tempfile::TempDir) -> Option<Mount> {
        Mount::start_as(test, size_bytes, at, directory, &mount_options(test))
    }

    fn start_as(
        test: &str,
        size_bytes: u64,
        at: &Path,
        directory: tempfile::TempDir,
        options: &MountOptions,
    ) -> Option<Mount> {
        let mount_options = options;
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemoryDevice::new(size_bytes))];
        let format = FormatOptions {
            data: Profile::Single,
            metadata: Profile::Dup,
            pool_id: *b"a pool for posix",
            hash_seed: 7,
            force: false,
        };
        Filesystem::format(&devices, &format, Caller::ROOT, &RealClock).unwrap();
        let options = OpenOptions {
            store: StoreOptions { background: true, ..StoreOptions::default() },
            dirty_bytes_max: 64 << 20,
            clock: Arc::new(RealClock),
            on_data_logged: None,
        };
        let fs = Arc::new(Filesystem::open(devices, options).unwrap().0);
        match Mounted::start(fs.clone(), at, mount_options) {
            Ok(mounted) => Some(Mount { fs, at: at.to_path_buf(), mounted: Some(mounted), directory }),
            Err(error @ (MountError::NoFuse(_) | MountError::Mount { .. })) => {
                eprintln!("SKIPPED, nothing shown: {test}: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Mount::start`], for tests that act as several users.
    fn start_as_root(test: &str, size_bytes: u64) -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED, nothing shown: {test}: only root can act as other users");
            return None;
        }
        let mount = Mount::start(test, size_bytes)?;
        // The directory that holds the mount point is its maker's alone.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(mount.directory.path(), open).unwrap();
        Some(mount)
    }

    /// Unmounts and mounts again: the kernel knows nothing any more.
    fn again(&mut self) {
        // A program that another test is starting has for a moment what was open here.
        let mut tries = 0;
        while let Err(error) = unmount(&self.at, false) {
            tries += 1;
            assert!(error.kind() == std::io::ErrorKind::ResourceBusy && tries < 500, "{error}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self.mounted.take().unwrap().wait().unwrap();
        self.mounted = Some(Mounted::start(self.fs.clone(), &self.at, &mount_options("again")).unwrap());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let _ = unmount(&self.at, true);
            let _ = mounted.wait();
        }
        // The scan compares books that background work changes.
        let _stopped = self.fs.sync();
        for _ in 0..120_000 {
            if self.fs.reap_backlog() == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let problems = self.fs.check(true).unwrap().problems;
        self.fs.close().unwrap();
        if !std::thread::panicking() {
            assert!(problems.is_empty(), "check found: {problems:#?}");
        }
    }
}
