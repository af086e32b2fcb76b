//! What tests of parts of the engine begin with.

use std::sync::Arc;

use varve_device::{Device, MemoryDevice};

use crate::{FormatOptions, Profile, Store, StoreOptions};

impl Store {
    /// A new pool in memory, open, and the device it is on.
    pub(crate) fn in_memory() -> (Arc<dyn Device>, Arc<Store>) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
        let options = FormatOptions {
            data: Profile::Single,
            metadata: Profile::Single,
            pool_id: [1; 16],
            hash_seed: 7,
            force: false,
        };
        Store::format(std::slice::from_ref(&device), &options).expect("formats");
        let options = StoreOptions { background: false, ..StoreOptions::default() };
        let (store, _) = Store::open(vec![device.clone()], options).expect("opens");
        (device, store)
    }
}
