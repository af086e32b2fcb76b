//! Crashes: what was cut stays dead, what was kept is told from damage, any number of times.

use super::*;

// Goal: a pool that is killed while idle can be opened any number of times. Method: one committed change, then 200
// openings without a close and without a change.
#[test]
fn any_number_of_crashes_without_a_change() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let lsn = put(&store, b"k", b"v");
    store.commit(lsn).expect("commits");
    drop(store);
    for n in 0..200 {
        let (store, _) = try_open(&device).unwrap_or_else(|e| panic!("opening {n}: {e}"));
        assert_eq!(store.get(TREE, b"k").expect("reads").as_deref(), Some(&b"v"[..]));
    }
}

// Goal: a batch that was torn when power failed never counts later. Method: the ring has been used, the pool was closed
// cleanly; the first sector of the first batch lands and the rest does not; the next life's first batch loses
// exactly that sector, so that together they would be the old batch.
#[test]
fn a_torn_first_batch_stays_dead() {
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    // Once around the ring with bytes that are not zero.
    for n in 0..3u64 << 11 {
        let lsn = put(&store, &(n % 64).to_be_bytes(), &[0xee; 1900]);
        if n % 2 == 1 {
            store.commit(lsn).expect("commits");
        }
    }
    store.close().expect("closes");
    drop(store);
    let crash = |device: &Arc<RecordingDevice>, key: &[u8], first_sector: bool| {
        let (store, _) = try_open(device).expect("opens");
        let before = device.mark();
        let lsn = put(&store, key, b"v");
        device.power_off_at(varve_sim::CrashPoint(before.0 + 2));
        store.commit(lsn).expect_err("the power fails in the flush");
        let cutter = device.cutter_at(device.mark());
        let image = cutter.image_with(|_, w| {
            let n = w.sectors_count();
            let prefix = SectorSet::prefix(n, 1);
            if first_sector {
                return Fate::Tear(prefix);
            }
            let mut rng = Rng::new(0);
            std::iter::repeat_with(|| SectorSet::torn(n, &mut rng))
                .find(|s| (0..n).all(|i| s.has(i) != prefix.has(i)))
                .map(Fate::Tear)
                .expect("one of the styles")
        });
        Arc::new(RecordingDevice::from_image(image))
    };
    let device = crash(&device, b"first life", true);
    let device = crash(&device, b"other life", false);
    let store = open(&device);
    assert_eq!(store.get(TREE, b"first life").expect("reads"), None, "cut by a crash, and back again");
}

// Goal: what opening relies on is durable before anything is written over what it replaces. Method: close the pool
// while flushes are lost after the last superblock was written (a killed process: its writes are in the page cache),
// open it, and count the flushes before the first reuse.
#[test]
fn a_clean_opening_makes_its_superblock_durable() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    store.close().expect("closes");
    drop(store);
    device.on_flush(|_| true);
    let (_store, report) = try_open(&device).expect("opens");
    assert!(report.clean);
    assert!(device.flushes.load(SeqCst) >= 1, "the superblock may be in the page cache alone");
}

// Goal: damage to what an earlier recovery kept is told from a crash. Method: three batches, a crash that keeps them, an
// opening that writes nothing; then the second batch is damaged.
#[test]
fn damage_before_a_cut_is_refused() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    for n in 0..3u8 {
        let lsn = put(&store, &[n], b"v");
        store.commit(lsn).expect("commits");
    }
    drop(store);
    drop(open(&device));
    device.inner.write_at(RING_START + 4096, &AlignedBuf::new(4096)).expect("writes");
    for _ in 0..2 {
        match try_open(&device) {
            Err(EngineError::Refused(_)) => {}
            Err(e) => panic!("{e}"),
            Ok((_, report)) => panic!("acknowledged changes are gone: {report:?}"),
        }
    }
}

// Goal: positions are never given out twice, also when the last transactions changed nothing. Method: an empty
// transaction is committed, then the process is gone.
#[test]
fn an_empty_transaction_keeps_its_position() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    let lsn = store.apply(Transaction::new(), None).expect("applies");
    store.commit(lsn).expect("commits");
    drop(store);
    let (store, report) = try_open(&device).expect("opens");
    assert_eq!(report.end, lsn);
    assert_eq!(put(&store, b"k", b"w"), Lsn(lsn.0 + 1));
}

// Goal: no crash leaves anything that a check calls a problem, before the pool is opened for writing again or after a crash of that opening: a slot
// that power tore is none, though the log names generations. Method: changes, commits and checkpoints, a crash at every instant by chance, a
// check of the image; there the same again.
#[test]
fn no_crash_is_a_problem_to_a_check() {
    let work = |device: &Arc<RecordingDevice>| {
        let store = open(device);
        for n in 0..6u8 {
            let lsn = put(&store, &[n], b"v");
            store.commit(lsn).expect("commits");
            if n % 2 == 1 {
                store.checkpoint().expect("checkpoint");
            }
        }
        store.close().expect("closes");
    };
    let mut rng = Rng::new(7);
    let mut check = |device: &RecordingDevice, at: usize| {
        let image = device.crash_image(varve_sim::CrashPoint(at), &mut rng, CrashPolicy::Seeded);
        let found = damaged::checked(Arc::new(RecordingDevice::from_image(image.clone())), &[]);
        assert!(found.is_empty(), "event {at}: {found:?}");
        image
    };
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    format(&device, Profile::Single, Profile::Dup);
    let begun = device.mark().0;
    work(&device);
    for at in begun..=device.mark().0 {
        let image = check(&device, at);
        let again = Arc::new(RecordingDevice::from_image(image));
        work(&again);
        // A third of them, another one each time.
        for at in (at % 3..=again.mark().0).step_by(3) {
            check(&again, at);
        }
    }
}
