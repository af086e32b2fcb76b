//! Pools that somebody has forged: an edited image of a small pool with everything in it is opened, checked, walked, written to and
//! closed. Nothing of that may panic, hang, or take memory without bound; errors are fine.
//!
//! An input is two bytes, which pool and what is done with it, and edits of [`edit::EDIT_BYTES`] each. All checksums are redone after
//! every edit, but for those whose subject is a checksum that does not match: else nothing would come past it.
#![no_main]

mod edit;
mod image;
mod mutate;
mod usage;
mod world;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use varve_device::Device;
use varve_fs::{Filesystem, OpenOptions, StoreOptions};

use edit::{EDIT_BYTES, Edit};
use image::Image;
use world::World;

/// What stands before the edits.
const HEAD_BYTES: usize = 2;
/// More edits than these say nothing new.
const EDITS_MAX: usize = 6;

/// Runs, those with an edit done, and those of them whose pool was opened for writing, could be checked, and was closed.
static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

fn count(which: usize) {
    COUNTS[which].fetch_add(1, Relaxed);
}

/// `VARVE_FUZZ_COUNT` in the environment: says now and then how far the runs come.
fn tell() {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let runs = COUNTS[0].load(Relaxed);
    if runs.is_multiple_of(2000) && *WANTED.get_or_init(|| std::env::var_os("VARVE_FUZZ_COUNT").is_some()) {
        let [runs, edited, opened, checked, closed] = COUNTS.each_ref().map(|count| count.load(Relaxed));
        eprintln!("runs {runs}, edited {edited}, opened {opened}, checked {checked}, closed {closed}");
    }
}

fn options(read_only: bool) -> OpenOptions {
    OpenOptions {
        store: StoreOptions {
            read_only,
            cache_bytes: 4 << 20,
            background: false,
            keyframe_entries: 1,
            ..StoreOptions::default()
        },
        dirty_bytes_max: 4 << 20,
        clock: Arc::new(world::FixedClock),
        on_data_logged: None,
    }
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate::mutate(data, size, max_size, seed)
});

fuzz_target!(|input: &[u8]| {
    static WORLDS: OnceLock<Vec<World>> = OnceLock::new();
    let worlds = WORLDS.get_or_init(world::all);
    let [which, how, edits @ ..] = input else { return };
    let world = &worlds[usize::from(*which) % worlds.len()];
    let mut image = Image::of(&world.device).expect("it was made just now");
    count(0);
    let mut edited = 0;
    for bytes in edits.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        edited += u32::from(Edit::of(bytes).apply(&mut image, world).is_some());
    }
    if edited > 0 {
        count(1);
    }
    tell();
    let devices = || vec![image.device.clone() as Arc<dyn Device>];
    if how & 1 != 0
        && let Ok((fs, _)) = Filesystem::open_to_check(devices(), options(true))
    {
        if fs.check(how & 2 != 0).is_ok() {
            count(3);
        }
        let _ = fs.close();
    }
    if how & 4 != 0
        && let Ok((fs, _)) = Filesystem::open(devices(), options(true))
    {
        usage::look(&fs);
        let _ = fs.close();
    }
    if how & 8 != 0 {
        return;
    }
    let Ok((fs, _)) = Filesystem::open(devices(), options(false)) else { return };
    count(2);
    usage::look(&fs);
    usage::change(&fs, *how);
    let closed = fs.close();
    drop(fs);
    if closed.is_ok() {
        count(4);
        let (fs, _) = Filesystem::open(devices(), options(false)).expect("it was closed without an error");
        let _ = fs.close();
    }
});
