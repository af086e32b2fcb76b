//! Pools in memory, for the tests beside this.

use std::sync::Arc;

use varve_device::{Device, MemoryDevice};
use varve_fs::{Caller, Filesystem, FormatOptions, OpenOptions, Profile, StoreOptions};

use crate::clock::SystemClock;

/// An empty one.
pub fn format() -> Arc<MemoryDevice> {
    let memory = Arc::new(MemoryDevice::new(64 << 20));
    let device: Arc<dyn Device> = memory.clone();
    let format = FormatOptions {
        data: Profile::Single,
        metadata: Profile::Single,
        pool_id: [7; 16],
        hash_seed: 7,
        force: false,
    };
    Filesystem::format(std::slice::from_ref(&device), &format, Caller::ROOT, &SystemClock).expect("formats");
    memory
}

/// Opens it, or what a cut of power has left of it.
pub fn open(device: Arc<dyn Device>) -> Filesystem {
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 1 << 20,
        clock: Arc::new(SystemClock),
        on_data_logged: None,
    };
    Filesystem::open(vec![device], options).expect("opens").0
}
