//! The recording device in use: what reads see, power off, reboot; and the faulty device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use varve_device::{AlignedBuf, Device, DeviceError, Discarded, MemoryDevice, Operation, Request};

use super::{random_step, stamped};
use crate::{
    CrashCutter, CrashPoint, CrashPolicy, Event, Fault, FaultRule, FaultyDevice, Image, PAGE_BYTES,
    RecordingDevice, Rng, Trigger, WriteEvent,
};

const SIZE_BYTES: u64 = 1 << 20;

fn contents(device: &dyn Device) -> AlignedBuf {
    let mut buf = AlignedBuf::new(device.size_bytes() as usize);
    device.read_at(0, &mut buf).unwrap();
    buf
}

// Goal: the recording device is a device like any other, KeepAll is what it shows and a reboot from it shows the
// same. Method: random steps beside a memory device.
#[test]
fn recording_agrees_with_memory() {
    for seed in 0..10 {
        let (recorded, memory) = (RecordingDevice::new(SIZE_BYTES), MemoryDevice::new(SIZE_BYTES));
        let (mut a, mut b) = (Rng::new(seed), Rng::new(seed));
        let (mut write_a, mut write_b) = (0, 0);
        for _ in 0..200 {
            random_step(&recorded, &mut a, &mut write_a);
            random_step(&memory, &mut b, &mut write_b);
        }
        assert!(contents(&recorded) == contents(&memory), "seed {seed}");
        assert_eq!(recorded.stats().write_bytes, memory.stats().write_bytes);
        assert_eq!(recorded.flushes(), memory.stats().flushes_count);
        assert_eq!(recorded.flush_boundaries().len() as u64, 2 * recorded.flushes());
        let image = recorded.crash_image(recorded.mark(), &mut a, CrashPolicy::KeepAll);
        assert_eq!(image.first_difference(&recorded.live_image()), None);
        assert!(contents(&RecordingDevice::from_image(image)) == contents(&memory), "seed {seed}");
    }
}

// Goal: what was flushed before power failed is there after any crash at any later instant. Method: a page a write,
// never overwritten; at random points the flushed ones are looked for under the seeded policy.
#[test]
fn flushed_data_survives() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let device = RecordingDevice::new(SIZE_BYTES);
        let mut flushed: Vec<(CrashPoint, u64)> = vec![(CrashPoint(0), 0)];
        for page in 0..100 {
            device.write_at(page * PAGE_BYTES as u64, &stamped(page + 1, 1)).unwrap();
            if rng.chance(0.3) {
                device.flush().unwrap();
                flushed.push((device.mark(), page + 1));
            }
        }
        for _ in 0..300 {
            let at = CrashPoint(rng.index(device.events() + 1));
            let image = device.crash_image(at, &mut rng, CrashPolicy::Seeded);
            let (_, safe) = flushed.iter().rev().find(|(point, _)| *point <= at).unwrap();
            for page in 0..*safe {
                assert!(image.page(page)[..] == stamped(page + 1, 1)[..], "seed {seed} {at:?} page {page}");
            }
        }
    }
}

// Goal: power off stops everything at the very event asked for, also inside a group or a flush, and nothing is recorded
// after it. Method: every point of a short life.
#[test]
fn power_goes_off_anywhere() {
    let life = |device: &RecordingDevice| -> Result<(), DeviceError> {
        let (a, b) = (stamped(1, 1), stamped(2, 2));
        let requests = &mut [Request::Write { offset: 0, buf: &a }, Request::Write { offset: 8192, buf: &b }];
        for result in device.run(requests) {
            result?;
        }
        device.flush()?;
        device.write_at(4096, &a)
    };
    let whole = RecordingDevice::new(SIZE_BYTES);
    life(&whole).unwrap();
    // Two writes and their end, flush begin and end, one write and its end.
    assert_eq!(whole.events(), 7);
    for point in 0..7 {
        let device = RecordingDevice::new(SIZE_BYTES);
        device.power_off_at(CrashPoint(point));
        assert!(matches!(life(&device), Err(DeviceError::PoweredOff { .. })), "point {point}");
        assert!(device.is_powered_off());
        assert_eq!(device.mark(), CrashPoint(point));
        let mut buf = AlignedBuf::new(4096);
        assert!(matches!(device.read_at(0, &mut buf), Err(DeviceError::PoweredOff { .. })));
        assert!(matches!(device.flush(), Err(DeviceError::PoweredOff { .. })));
        assert!(matches!(device.discard(0, 4096), Err(DeviceError::PoweredOff { .. })));
        let kept = device.crash_image(CrashPoint(point), &mut Rng::new(0), CrashPolicy::DropAll);
        assert_eq!(kept.pages_count(), if point >= 5 { 3 } else { 0 }, "point {point}");
    }
    whole.power_off();
    assert!(matches!(whole.flush(), Err(DeviceError::PoweredOff { .. })));
}

// Goal: nobody can rely on discarded bytes, nor on when they go. Method: discard, read; before a flush both old and new may
// survive, and the discard may come after a later write to its place; after the flush that write stays.
#[test]
fn discarded_bytes_are_strange() {
    let (old, pages) = (stamped(1, 12), 12 * PAGE_BYTES);
    let mut image = Image::new(SIZE_BYTES);
    image.write(0, &old);
    let device = RecordingDevice::from_image(image);
    assert_eq!(device.discard(0, pages as u64 - 4096), Ok(Discarded::Done));
    let bytes = contents(&device);
    let kinds = |wanted: &dyn Fn(&[u8]) -> bool| {
        bytes[..pages - PAGE_BYTES].chunks(PAGE_BYTES).filter(|page| wanted(page)).count()
    };
    let zeros = kinds(&|page| page.iter().all(|b| *b == 0));
    let marked = kinds(&|page| page.iter().all(|b| *b == crate::event::DISCARDED_BYTE));
    assert!(zeros > 0 && marked > 0 && zeros + marked < 11, "{zeros} zero, {marked} marked");
    assert_eq!(kinds(&|page| old.chunks(PAGE_BYTES).any(|before| before == page)), 0, "all of them went");
    assert_eq!(bytes[pages - PAGE_BYTES..pages], old[pages - PAGE_BYTES..], "and nothing else");
    let cut = |policy, seed| device.crash_image(device.mark(), &mut Rng::new(seed), policy);
    assert!(cut(CrashPolicy::DropAll, 0).page(0)[..] == old[..4096]);

    let new = stamped(2, 1);
    device.write_at(0, &new).unwrap();
    assert!(cut(CrashPolicy::KeepAll, 0).page(0)[..] == new[..]);
    let first_sector = |seed| cut(CrashPolicy::TearOne { index: 0 }, seed).page(0)[..512].to_vec();
    assert!((0..20).any(|seed| first_sector(seed) == bytes[..512]), "it may come after the write");
    assert!((0..20).any(|seed| first_sector(seed) == new[..512]));
    device.flush().unwrap();
    let durable = cut(CrashPolicy::DropAll, 0);
    assert!(durable.page(0)[..] == new[..]);
    assert!(durable.page(1)[..] == bytes[4096..8192]);
    assert_eq!((device.stats().discards_count, device.stats().discard_bytes), (1, pages as u64 - 4096));
}

// Goal: threads using one recording device at once lose nothing and their flushes are honest. Method: each thread
// overwrites its own page, flushes, notes the point; DropAll there has at least that.
#[test]
fn concurrent_flushes_are_honest() {
    let device = Arc::new(RecordingDevice::new(SIZE_BYTES));
    let notes: Vec<(CrashPoint, u64, u64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|thread| {
                let device = Arc::clone(&device);
                scope.spawn(move || {
                    (1..=100u64)
                        .map(|round| {
                            device.write_at(thread * PAGE_BYTES as u64, &stamped(round, 1)).unwrap();
                            device.flush().unwrap();
                            (device.mark(), thread, round)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(notes.len(), 400);
    let mut rng = Rng::new(0);
    for (point, thread, round) in notes {
        let image = device.crash_image(point, &mut rng, CrashPolicy::DropAll);
        let stamp = u64::from_le_bytes(image.page(thread)[..8].try_into().unwrap()) >> 24;
        assert!(stamp >= round, "{point:?} thread {thread}: {stamp} after round {round} was flushed");
    }
}

// Goal: each kind of fault does what it says, when it says. Method: one rule at a time on a small device.
#[test]
fn faults_strike_as_ruled() {
    let device = FaultyDevice::new(MemoryDevice::new(SIZE_BYTES), 1, Vec::new());
    let (old, new) = (stamped(1, 1), stamped(2, 1));
    let mut buf = AlignedBuf::new(4096);
    device.write_at(0, &old).unwrap();

    device.set_rules(vec![FaultRule::new(Operation::Write, Trigger::Nth(2), Fault::Error)]);
    let results = device.run(&mut [
        Request::Write { offset: 4096, buf: &new },
        Request::Write { offset: 0, buf: &new },
        Request::Read { offset: 0, buf: &mut buf },
    ]);
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err().errno(), Some(5));
    assert!(buf == old, "a failed write changed the medium");

    device.set_rules(vec![FaultRule::new(Operation::Flush, Trigger::From(2), Fault::Error)]);
    let flushes: Vec<bool> = (0..4).map(|_| device.flush().is_ok()).collect();
    assert_eq!(flushes, [true, false, false, false]);

    device.set_rules(vec![FaultRule::new(Operation::Write, Trigger::Every(1), Fault::Lose)]);
    device.write_at(0, &new).unwrap();
    device
        .set_rules(vec![FaultRule::new(Operation::Read, Trigger::Every(2), Fault::FlipBit).within(0..4096)]);
    let ones = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(x, y)| (x ^ y).count_ones()).sum::<u32>();
    let wrong_bits: Vec<u32> = (0..4)
        .map(|_| {
            device.read_at(0, &mut buf).unwrap();
            ones(&buf, &old)
        })
        .collect();
    assert_eq!(wrong_bits, [0, 1, 0, 1]);
    device.read_at(8192, &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == 0), "a read outside the range was spoilt");

    device.set_rules(vec![FaultRule::new(Operation::Write, Trigger::Nth(1), Fault::FlipBit)]);
    device.write_at(0, &new).unwrap();
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(ones(&buf, &new), 1);

    let pause = Duration::from_millis(30);
    device.set_rules(vec![FaultRule::new(Operation::Read, Trigger::Nth(1), Fault::Stall(pause))]);
    let started = Instant::now();
    device.read_at(0, &mut buf).unwrap();
    assert!(started.elapsed() >= pause);

    device.set_rules(vec![FaultRule::new(Operation::Read, Trigger::Chance(0.3), Fault::Error)]);
    let failed = (0..1000).filter(|_| device.read_at(0, &mut buf).is_err()).count();
    assert!((200..400).contains(&failed), "{failed}");
    assert_eq!(device.injected_count() as usize, 1 + 3 + 1 + 2 + 1 + 1 + failed);
}

// Goal: what a killed process has written is there for the next one, and in doubt until that one flushes. Method: a flushed write, one that
// has completed and one in flight when the process is killed; reads, crashes before and after the next flush, and one of a device that
// was made of the first recording's end.
#[test]
fn what_was_written_before_a_kill_stays_in_doubt() {
    let device = RecordingDevice::new(1 << 20);
    let write = |at: u64, n: u64| device.write_at(at, &stamped(n, 1)).unwrap();
    write(0, 1);
    device.flush().unwrap();
    write(4096, 2);
    write(8192, 3);
    // Before the third has completed: its issue is the last event but one.
    let at = CrashPoint(device.mark().0 - 1);
    let next = RecordingDevice::from_cutter(device.cutter_at(at).killed(|write| write.pages.len()));
    let block = |device: &dyn Device, at: u64| {
        let mut block = AlignedBuf::new(4096);
        device.read_at(at, &mut block).unwrap();
        block
    };
    let stamps = [1, 2, 3].map(|n| stamped(n, 1));
    for (i, stamp) in stamps.iter().enumerate() {
        assert!(block(&next, i as u64 * 4096)[..] == stamp[..], "block {i}");
    }
    let there = |image: &Image, i: usize| image.page(i as u64)[..] == stamps[i][..];
    let mut rng = Rng::new(1);
    let image = next.crash_image(next.mark(), &mut rng, CrashPolicy::DropAll);
    assert_eq!([0, 1, 2].map(|i| there(&image, i)), [true, false, false]);
    assert_eq!(next.cutter_at(next.mark()).pending_count(), 2);
    next.flush().unwrap();
    let image = next.crash_image(next.mark(), &mut rng, CrashPolicy::DropAll);
    assert_eq!([0, 1, 2].map(|i| there(&image, i)), [true; 3]);
}

// Goal: of what was on its way when a process was killed as much is there as is said, from the front. Method: a write of three pages in
// flight, of which each number lands.
#[test]
fn part_of_a_write_lands_before_a_kill() {
    let device = RecordingDevice::new(1 << 20);
    device.write_at(0, &stamped(1, 3)).unwrap();
    for landed in 0..=3 {
        let cutter = device.cutter_at(CrashPoint(1)).killed(|_| landed);
        assert_eq!(cutter.pending_count(), usize::from(landed > 0));
        let next = RecordingDevice::from_cutter(cutter);
        let there = |page: usize| {
            next.live_image().page(page as u64)[..] == stamped(1, 3)[page * PAGE_BYTES..][..PAGE_BYTES]
        };
        assert_eq!([0, 1, 2].map(there), [0, 1, 2].map(|page| page < landed));
    }
}

// Goal: no later flush makes durable what a failed one should have, but for what is written again. Method: pages written before and
// after the failure, some again; images in which nothing in doubt survives, after a flush that began meanwhile.
#[test]
fn a_failed_flush_is_not_healed() {
    let device = Arc::new(RecordingDevice::new(SIZE_BYTES));
    let told = Arc::clone(&device);
    let rules = vec![FaultRule::new(Operation::Flush, Trigger::Nth(2), Fault::Error)];
    let faulty = FaultyDevice::new(Arc::clone(&device), 1, rules).on_failed_flush(move || told.fail_flush());
    let write = |page: u64, stamp: u64, pages: usize| {
        faulty.write_at(page * PAGE_BYTES as u64, &stamped(stamp, pages)).unwrap();
    };
    write(0, 1, 1);
    faulty.flush().unwrap();
    write(1, 2, 3);
    assert!(faulty.flush().is_err());
    write(4, 3, 1);
    faulty.flush().unwrap();
    let durable = |page: u64| {
        let image = device.crash_image(device.mark(), &mut Rng::new(0), CrashPolicy::DropAll);
        image.page(page).iter().any(|byte| *byte != 0)
    };
    assert_eq!([0, 1, 2, 3, 4].map(durable), [true, false, false, false, true]);
    // The middle of the three again: that one is safe, and the old one never comes back over it.
    write(2, 4, 1);
    faulty.flush().unwrap();
    assert_eq!([1, 2, 3].map(durable), [false, true, false]);
    let kept = device.crash_image(device.mark(), &mut Rng::new(0), CrashPolicy::KeepAll);
    assert_eq!(kept.first_difference(&device.live_image()), None);
    assert!(kept.page(2)[..] == stamped(4, 1)[..]);
}

// Goal: a flush that had begun before a failing one still counts for what it covers. Method: events by hand.
#[test]
fn an_earlier_flush_outlives_a_failed_one() {
    let mut cutter = CrashCutter::new(Image::new(SIZE_BYTES));
    let write = |group: u64| Event::Write(WriteEvent::new(group, group * 4096, &stamped(group + 1, 1)));
    let mut feed = |event: &Event| cutter.feed(event);
    feed(&write(0));
    feed(&Event::GroupDone { group: 0 });
    feed(&Event::FlushBegin { flush: 10 });
    feed(&write(1));
    feed(&Event::GroupDone { group: 1 });
    feed(&Event::FlushBegin { flush: 11 });
    feed(&Event::FlushFailed { flush: 11 });
    feed(&Event::FlushBegin { flush: 12 });
    feed(&Event::FlushDone { flush: 12 });
    feed(&Event::FlushDone { flush: 10 });
    let there = |page: u64| cutter.durable().page(page).iter().any(|byte| *byte != 0);
    assert_eq!([0, 1].map(there), [true, false]);
    assert_eq!(cutter.pending_count(), 1);
}

// Goal: of a write that fails in part, pages from its front are there and no others. Method: many writes that fail.
#[test]
fn a_failed_write_lands_in_part() {
    let mut seen = [0; 4];
    for seed in 0..40 {
        let rules = vec![FaultRule::new(Operation::Write, Trigger::Nth(1), Fault::ErrorInPart)];
        let device = FaultyDevice::new(MemoryDevice::new(SIZE_BYTES), seed, rules);
        let new = stamped(1, 3);
        assert!(device.write_at(4096, &new).is_err());
        let bytes = contents(&device);
        let landed = bytes[4096..].chunks(4096).take_while(|page| page.iter().any(|byte| *byte != 0)).count();
        assert!(bytes[4096..][..landed * 4096] == new[..landed * 4096]);
        assert!(bytes[4096 + landed * 4096..].iter().all(|byte| *byte == 0));
        seen[landed] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
