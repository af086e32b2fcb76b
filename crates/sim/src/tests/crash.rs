//! Crash images against a model that looks at every sector and every event by itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::stamped;
use crate::{
    CrashCutter, CrashPoint, CrashPolicy, Event, Fate, Image, PAGE_BYTES, Recording, Rng, SECTOR_BYTES,
    WriteEvent,
};

const PAGES: u64 = 12;

/// Events of many threads: groups and flushes begin and end in any interleaving, writes overlap.
fn random_recording(rng: &mut Rng, events_count: usize) -> Recording {
    let mut base = Image::new(PAGES * PAGE_BYTES as u64);
    base.write(0, &stamped(0xbeef, 3));
    let mut recording = Recording::new(CrashCutter::new(base));
    let (mut groups, mut flushes) = (Vec::new(), Vec::new());
    let mut id = 0;
    while recording.events().len() < events_count {
        id += 1;
        match rng.below(8) {
            0..=2 => {
                for _ in 0..1 + rng.below(3) {
                    let len = 1 + rng.below(3);
                    let offset = rng.below(PAGES - len + 1) * PAGE_BYTES as u64;
                    let bytes = stamped(recording.events().len() as u64 + 1, len as usize);
                    recording.push(Event::Write(WriteEvent::new(id, offset, &bytes)));
                }
                groups.push(id);
            }
            3..=4 if !groups.is_empty() => {
                let group = groups.swap_remove(rng.index(groups.len()));
                recording.push(Event::GroupDone { group });
            }
            5 => {
                recording.push(Event::FlushBegin { flush: id });
                flushes.push(id);
            }
            6 if !flushes.is_empty() => {
                let flush = flushes.swap_remove(rng.index(flushes.len()));
                // Of one in eight nothing is heard any more.
                match rng.below(8) {
                    0 => {}
                    1 | 2 => recording.push(Event::FlushFailed { flush }),
                    _ => recording.push(Event::FlushDone { flush }),
                }
            }
            _ => {}
        }
    }
    recording
}

/// What the naive model says about one instant: for every sector the durable bytes, and all admissible ones.
struct Model {
    durable: Vec<Vec<u8>>,
    admissible: Vec<HashSet<Vec<u8>>>,
}

fn model_at(base: &Image, events: &[Event], point: usize) -> Model {
    let sectors = (base.size_bytes() as usize) / SECTOR_BYTES;
    let events = &events[..point];
    let index_of = |wanted: &dyn Fn(&Event) -> bool| events.iter().position(wanted);
    let begin_of = |flush: u64| index_of(&|e| matches!(e, Event::FlushBegin { flush: f } if *f == flush));
    // Whether a flush that began between `from` and `to` has its end, good or bad, by `by`: the index of that.
    let ended = |flush: u64, good: bool, by: usize| {
        events[..by].iter().position(|event| match event {
            Event::FlushDone { flush: f } => good && *f == flush,
            Event::FlushFailed { flush: f } => !good && *f == flush,
            _ => false,
        })
    };
    let begun = |from: usize, to: usize| {
        events[from..to].iter().filter_map(|event| match event {
            Event::FlushBegin { flush } => Some(*flush),
            _ => None,
        })
    };
    // When a write that had completed at `done` became durable, or was let go.
    let fate = |done: usize| {
        (done..events.len()).find_map(|i| match events[i] {
            Event::FlushDone { flush } => begin_of(flush).is_some_and(|begin| begin > done).then_some(true),
            Event::FlushFailed { flush } => {
                let begin = begin_of(flush).filter(|begin| *begin > done)?;
                // Unless one that began earlier may still have it.
                let running = |f: u64| ended(f, true, i).is_none() && ended(f, false, i).is_none();
                (!begun(done, begin).any(running)).then_some(false)
            }
            _ => None,
        })
    };
    // (done index, issue index, write) of every durable write; the rest apart, and by when one must be durable to replace it.
    let (mut durable_writes, mut doubtful) = (Vec::new(), Vec::new());
    for (i, event) in events.iter().enumerate() {
        let Event::Write(write) = event else { continue };
        let done = index_of(&|e| matches!(e, Event::GroupDone { group } if *group == write.group));
        match done.map(|done| (done, fate(done))) {
            Some((done, Some(true))) => durable_writes.push((done, i, write)),
            Some((done, _)) => doubtful.push(((done, i), write)),
            None => doubtful.push(((usize::MAX, i), write)),
        }
    }
    durable_writes.sort_by_key(|(done, issued, _)| (*done, *issued));
    let mut bytes = vec![0; base.size_bytes() as usize];
    base.read(0, &mut bytes);
    for (_, _, write) in &durable_writes {
        for (i, page) in write.pages.iter().enumerate() {
            let at = write.offset as usize + i * PAGE_BYTES;
            bytes[at..at + PAGE_BYTES].copy_from_slice(&page[..]);
        }
    }
    let durable: Vec<Vec<u8>> = bytes.chunks(SECTOR_BYTES).map(<[u8]>::to_vec).collect();
    let mut admissible: Vec<HashSet<Vec<u8>>> = durable.iter().map(|d| HashSet::from([d.clone()])).collect();
    for (place, write) in doubtful {
        for (i, page) in write.pages.iter().enumerate() {
            let offset = write.offset + (i * PAGE_BYTES) as u64;
            let replaces = |(done, issued, later): &(usize, usize, &WriteEvent)| {
                (*done, *issued) > place && (later.offset..later.offset + later.len_bytes()).contains(&offset)
            };
            if durable_writes.iter().any(replaces) {
                continue;
            }
            for (j, sector) in page.chunks(SECTOR_BYTES).enumerate() {
                let index = (write.offset as usize + i * PAGE_BYTES) / SECTOR_BYTES + j;
                admissible[index].insert(sector.to_vec());
            }
        }
    }
    assert_eq!(durable.len(), sectors);
    Model { durable, admissible }
}

fn sector(image: &Image, index: usize) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR_BYTES];
    image.read((index * SECTOR_BYTES) as u64, &mut bytes);
    bytes
}

// Goal: every image consists of sectors that a crash at that instant could leave: flushed data always, the rest
// from any write in doubt; and in all every admissible sector does occur. Method: random interleavings of groups
// and flushes, every policy at every point, against a model that shares no code with the cutter.
#[test]
fn every_sector_is_explained() {
    let policies = [
        CrashPolicy::KeepAll,
        CrashPolicy::Random { tear: 0.4, keep: 0.5 },
        CrashPolicy::TearOne { index: 1 },
        CrashPolicy::TearRange { start: 0, end: 8192 },
        CrashPolicy::Subset { kept: 0x5a5a },
    ];
    let (mut possible_count, mut seen_count) = (0, 0);
    for seed in 0..25 {
        let mut rng = Rng::new(seed);
        let recording = random_recording(&mut rng, 60);
        let base = recording.cutter().durable().clone();
        let mut cutter = recording.cutter();
        for point in 0..=recording.last_point().0 {
            recording.advance(&mut cutter, CrashPoint(point));
            let model = model_at(&base, recording.events(), point);
            let mut seen: HashMap<usize, HashSet<Vec<u8>>> = HashMap::new();
            let seeded = (0..60).map(|_| CrashPolicy::Seeded);
            for policy in policies.into_iter().chain(seeded) {
                let image = cutter.image(&mut rng, policy);
                for (i, admissible) in model.admissible.iter().enumerate() {
                    let bytes = sector(&image, i);
                    assert!(
                        admissible.contains(&bytes),
                        "seed {seed} point {point} {policy:?}: sector {i} holds {:x?}",
                        &bytes[..8]
                    );
                    seen.entry(i).or_default().insert(bytes);
                }
            }
            let none = cutter.image(&mut rng, CrashPolicy::DropAll);
            for (i, durable) in model.durable.iter().enumerate() {
                assert_eq!(&sector(&none, i), durable, "seed {seed} point {point}: DropAll, sector {i}");
            }
            // Of many candidates for one sector some stay unseen within 65 images.
            for (i, admissible) in model.admissible.iter().enumerate().filter(|(_, set)| set.len() <= 3) {
                possible_count += admissible.len();
                seen_count += seen[&i].len();
            }
        }
    }
    assert!(seen_count * 1000 >= possible_count * 995, "{seen_count} of {possible_count} seen");
}

// Goal: walking forward, starting again and forgetting the past give the same images. Method: random points in any
// order against a fresh walk.
#[test]
fn the_way_to_a_point_does_not_matter() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let recording = random_recording(&mut rng, 80);
        let mut forgetful = recording.clone();
        forgetful.forget_before(CrashPoint(30));
        assert_eq!(
            (forgetful.first_point(), forgetful.last_point()),
            (CrashPoint(30), recording.last_point())
        );
        let mut wandering = recording.cutter();
        let mut late = forgetful.cutter();
        for _ in 0..40 {
            let point = CrashPoint(30 + rng.index(recording.last_point().0 - 29));
            let mut fresh = recording.cutter();
            recording.advance(&mut fresh, point);
            recording.advance(&mut wandering, point);
            forgetful.advance(&mut late, point);
            let chosen = rng.next_u64();
            let expected = fresh.image(&mut Rng::new(chosen), CrashPolicy::Seeded);
            for other in [&wandering, &late] {
                let got = other.image(&mut Rng::new(chosen), CrashPolicy::Seeded);
                assert_eq!(expected.first_difference(&got), None, "seed {seed} {point:?}");
            }
        }
    }
}

// Goal: images share what they have in common, so that a hundred thousand of them are affordable. Method: a full
// 64 MiB image, a crash with one page in doubt: all other pages are the same allocation.
#[test]
fn images_share_their_pages() {
    let mut base = Image::new(64 << 20);
    for page in 0..base.size_bytes() / PAGE_BYTES as u64 {
        base.page_mut(page)[0] = 1;
    }
    let mut cutter = CrashCutter::new(base.clone());
    cutter.feed(&Event::Write(WriteEvent::new(1, 5 * PAGE_BYTES as u64, &stamped(9, 1))));
    let mut rng = Rng::new(1);
    let images: Vec<Image> = (0..2000).map(|_| cutter.image(&mut rng, CrashPolicy::Seeded)).collect();
    for image in &images {
        for page in [0, 4, 6, 127, 128, 16383] {
            assert!(Arc::ptr_eq(image.shared_page(page).unwrap(), base.shared_page(page).unwrap()));
        }
    }
    assert_eq!(base.page(5)[1..], [0; PAGE_BYTES - 1], "the base is untouched");
    assert!(images.iter().any(|image| image.page(5) != base.page(5)));
}

// Goal: fates chosen one by one are applied to exactly those writes. Method: all 2^n subsets of four disjoint writes
// by number and by choice.
#[test]
fn subsets_enumerate() {
    let mut cutter = CrashCutter::new(Image::new(64 << 10));
    for i in 0..4u64 {
        cutter.feed(&Event::Write(WriteEvent::new(i, i * 8192, &stamped(i + 1, 1))));
    }
    assert_eq!(cutter.pending_count(), 4);
    let mut rng = Rng::new(0);
    for kept in 0..16u64 {
        let image = cutter.image(&mut rng, CrashPolicy::Subset { kept });
        let chosen = cutter.image_with(|i, _| if kept >> i & 1 == 1 { Fate::Keep } else { Fate::Drop });
        assert_eq!(image.first_difference(&chosen), None);
        for i in 0..4 {
            let expected =
                if kept >> i & 1 == 1 { stamped(i + 1, 1)[..].to_vec() } else { vec![0; PAGE_BYTES] };
            assert_eq!(image.page(i * 2)[..], expected[..], "subset {kept:04b} write {i}");
        }
    }
}

// Goal: images survive a file. Method: save, load, compare; the file is sparse.
#[test]
fn images_save_and_load() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut image = Image::new(16 << 20);
    image.write((3 << 20) - 100, &stamped(1, 2));
    image.save(&path).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 16 << 20);
    assert!(metadata.blocks() < 1000, "not sparse: {} blocks", metadata.blocks());
    let loaded = Image::load(&path).unwrap();
    assert_eq!(image.first_difference(&loaded), None);
    image.page_mut(4000)[17] = 1;
    assert_eq!(image.first_difference(&loaded), Some(4000 * PAGE_BYTES as u64));
}
