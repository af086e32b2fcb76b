//! Many threads on a small pool.

use super::*;

/// What one thread of the stress test owns: its keys and what they should hold.
struct Worker {
    id: u8,
    rng: Rng,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    blocks: BTreeMap<Vec<u8>, (Run, u8)>,
    refused: u64,
}

impl Worker {
    fn key(&mut self) -> Vec<u8> {
        let mut k = vec![self.id];
        k.extend_from_slice(&self.rng.below(300).to_be_bytes());
        k
    }

    fn step(&mut self, store: &Arc<Store>) {
        let mut tx = Transaction::new();
        let (mut values, mut blocks) = (self.values.clone(), self.blocks.clone());
        let mut reservation: Option<Reservation> = None;
        for _ in 0..1 + self.rng.below(5) {
            let k = self.key();
            if self.rng.chance(0.65) {
                let v = vec![self.rng.below(256) as u8; self.rng.below(900) as usize];
                tx.put(TREE, &k, &v);
                values.insert(k, v);
            } else {
                tx.delete(TREE, &k);
                values.remove(&k);
            }
        }
        if self.rng.chance(0.6) {
            let k = self.key();
            if let Some((run, _)) = blocks.remove(&k) {
                tx.free(run);
                tx.delete(EXTENTS, &k);
                tx.privileged();
            } else {
                let n = 1 + self.rng.below(8) as u32;
                let mut r = match store.reserve(u64::from(n), 1, 60) {
                    Ok(r) => r,
                    Err(EngineError::NoSpace) => return self.refused += 1,
                    Err(e) => panic!("{e}"),
                };
                let runs = store.allocate(&mut r, n, PoolAddr::NULL).expect("reserved");
                if runs.len() > 1 {
                    return store.deallocate(&mut r, &runs);
                }
                let fill = 1 + self.rng.below(255) as u8;
                if self.rng.chance(0.6) {
                    tx.place_riding(runs[0], block_data(fill, n));
                } else {
                    store.write_data(&[(runs[0], block_data(fill, n))]).expect("writes");
                    tx.place(runs[0], &block_data(fill, n));
                }
                tx.put(EXTENTS, &k, &runs[0].addr.0.to_le_bytes());
                blocks.insert(k, (runs[0], fill));
                reservation = Some(r);
            }
        }
        match store.apply(tx, reservation.as_mut()) {
            Ok(lsn) => {
                (self.values, self.blocks) = (values, blocks);
                match self.rng.below(20) {
                    0 => store.commit(lsn).expect("commits"),
                    1 => store.commit_then(lsn, Box::new(|r| r.expect("commits"))),
                    2 => drop(store.maintain()),
                    _ => {}
                }
            }
            Err(EngineError::NoSpace) => {
                self.refused += 1;
                if let Some((mut r, (run, _))) =
                    reservation.zip(blocks.iter().find(|b| !self.blocks.contains_key(b.0)).map(|b| *b.1))
                {
                    store.deallocate(&mut r, &[run]);
                }
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// Its own keys are only changed by itself, so a view of now shows exactly what it did.
    fn verify(&mut self, store: &Store) {
        let view = store.view();
        let mut seen = BTreeMap::new();
        view.scan(TREE, &[self.id], &mut |k, v| {
            k[0] == self.id && seen.insert(k.to_vec(), v.to_vec()).is_none()
        })
        .expect("scans");
        assert!(seen == self.values, "thread {}: values differ", self.id);
        let linger = self.rng.chance(0.3);
        for (k, (run, fill)) in &self.blocks {
            let v = view.get(EXTENTS, k).expect("reads").expect("there");
            assert_eq!(v, run.addr.0.to_le_bytes());
            let mut buf = AlignedBuf::new(run.bytes() as usize);
            store.read_data(run.addr, &mut buf).expect("verified read");
            assert!(buf.iter().all(|b| b == fill), "thread {}: wrong bytes at {run:?}", self.id);
            if linger {
                std::thread::yield_now();
            }
        }
    }
}

/// Threads apply, commit and verify for `time` on a small pool; then it is closed or killed, and opened again.
fn stress(seed: u64, time: Duration, threads: u8, background: bool) {
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    format(&device, Profile::Single, if seed.is_multiple_of(2) { Profile::Dup } else { Profile::Single });
    let options =
        StoreOptions { read_only: false, cache_bytes: 1 << 20, background, ..StoreOptions::default() };
    let (store, _) = Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("opens");
    let end = Instant::now() + time;
    let steps = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..threads)
        .map(|id| {
            let (store, steps) = (store.clone(), steps.clone());
            let rng = Rng::new(seed).fork(&id.to_string());
            std::thread::spawn(move || {
                let (values, blocks) = (BTreeMap::new(), BTreeMap::new());
                let mut w = Worker { id, rng, values, blocks, refused: 0 };
                while Instant::now() < end {
                    for _ in 0..1 + w.rng.below(60) {
                        w.step(&store);
                    }
                    if w.rng.chance(0.1) {
                        store.checkpoint().expect("checkpoint");
                    }
                    w.verify(&store);
                    steps.fetch_add(1, SeqCst);
                }
                w
            })
        })
        .collect();
    // Old views, held across checkpoints and read again: nothing they show may change.
    let mut old = Vec::new();
    while Instant::now() < end {
        let view = store.view();
        let sum = |view: &varve_engine::View| {
            let mut sum = 0u64;
            let each = &mut |k: &[u8], v: &[u8]| {
                sum = k.iter().chain(v).fold(sum, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(*b)));
                true
            };
            view.scan(TREE, &[], each).expect("scans");
            sum
        };
        let now = sum(&view);
        old.push((view, now));
        std::thread::sleep(Duration::from_millis(30));
        if old.len() > 4 {
            let (view, was) = old.remove(0);
            assert_eq!(sum(&view), was, "seed {seed}: an old view has changed");
        }
    }
    drop(old);
    let mut workers: Vec<_> = workers.into_iter().map(|w| w.join().expect("no panic")).collect();
    let runs: Vec<Run> = workers.iter().flat_map(|w| w.blocks.values().map(|b| b.0)).collect();
    let stats = store.stats();
    println!(
        "seed {seed}: {} transactions, {} batches, {} checkpoints, {} refused, {} rounds",
        stats.transactions_count,
        stats.journal_batches_count,
        stats.checkpoints_count,
        workers.iter().map(|w| w.refused).sum::<u64>(),
        steps.load(SeqCst)
    );
    if seed.is_multiple_of(3) {
        store.close().expect("closes");
    } else {
        store.commit(store.position()).expect("commits");
    }
    sound(&store, &runs);
    drop(store);
    // A power failure now loses nothing.
    let image = device.crash_image(device.mark(), &mut Rng::new(seed), CrashPolicy::DropAll);
    let device = Arc::new(RecordingDevice::from_image(image));
    let store = open(&device);
    workers.iter_mut().for_each(|w| w.verify(&store));
    sound(&store, &runs);
}

// Goal: many threads at once, checkpoints all the time, views held across them: everybody sees what he wrote, nothing
// panics or hangs, and all of it survives. Method: threads with keys of their own, each with a model, on a pool of
// 64 MiB with a cache of 1 MiB; VARVE_STRESS_SECONDS makes it longer.
#[test]
fn many_threads() {
    let seconds = std::env::var("VARVE_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4u64);
    let first = std::env::var("VARVE_STRESS_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0u64);
    for seed in first..first + seconds.div_ceil(2) {
        within(&format!("seed {seed}"), move || stress(seed, Duration::from_secs(2), 6, seed % 4 != 3));
    }
}

// Goal: nobody who waits for a commit is forgotten, and flushes do overlap. Method: threads
// that commit in every way, callbacks and checkpoints among them, on a device whose flushes take a while; all must end.
#[test]
fn everybody_is_woken() {
    for seed in 0..4u64 {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (now, peak) = (running.clone(), most.clone());
        device.on_flush(move |n| {
            peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            std::thread::sleep(Duration::from_micros(n * 37 % 400));
            now.fetch_sub(1, SeqCst);
            true
        });
        let (asked, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (asked.clone(), told.clone());
        within("a commit", move || {
            std::thread::scope(|scope| {
                for thread in 0..8u64 {
                    let (store, asked, told) = (&store, &asked, &told);
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed).fork(&thread.to_string());
                        for n in 0..150u64 {
                            let lsn = put(store, &[thread.to_be_bytes(), n.to_be_bytes()].concat(), b"v");
                            match rng.below(10) {
                                0..2 => {
                                    asked.fetch_add(1, SeqCst);
                                    let told = told.clone();
                                    let done = move |r: Result<(), EngineError>| {
                                        r.expect("commits");
                                        told.fetch_add(1, SeqCst);
                                    };
                                    store.commit_then(lsn, Box::new(done));
                                }
                                2 => store.maintain().expect("maintains"),
                                3 if rng.chance(0.1) => store.checkpoint().expect("checkpoint"),
                                4 => {}
                                _ => {
                                    store.commit(lsn).expect("commits");
                                    assert!(store.durable_position() >= lsn);
                                }
                            }
                        }
                    });
                }
            });
            store.commit(store.position()).expect("commits");
        });
        assert_eq!(counts.0.load(SeqCst), counts.1.load(SeqCst), "callbacks that were never called");
        // A flush may still be under way when a later one has covered its batch: there is no upper bound to assert.
        assert!(most.load(SeqCst) >= 2, "no flushes overlapped");
    }
}

// Goal: two threads that commit again and again share their flushes, and one alone never waits for anybody. Method: flushes
// that take 4 ms, so that patience (a quarter of it at most) is long beside what a thread does between two commits; they
// are counted.
#[test]
fn two_threads_share_their_flushes() {
    const EACH: u64 = 60;
    let flushes = |threads: u64| {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        device.on_flush(move |_| {
            counted.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(4));
            true
        });
        let begun = Instant::now();
        let elapsed = within("a commit", move || {
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let store = &store;
                    scope.spawn(move || {
                        for n in 0..EACH {
                            let lsn = put(store, &[thread.to_be_bytes(), n.to_be_bytes()].concat(), b"v");
                            store.commit(lsn).expect("commits");
                            assert!(store.durable_position() >= lsn);
                        }
                    });
                }
            });
            begun.elapsed()
        });
        (count.load(SeqCst) as u64, elapsed)
    };
    let (alone, _) = flushes(1);
    assert_eq!(alone, EACH, "flushes of one thread");
    // Whoever gets no processor for a millisecond shares nothing, so once in a while must do; threads that never share need twice as many.
    let shares = (0..20).any(|_| {
        let (shared, elapsed) = flushes(2);
        println!("{shared} flushes for two times {EACH} commits in {elapsed:?}");
        assert!(shared >= EACH, "{shared} flushes for two times {EACH} commits");
        shared < EACH * 3 / 2
    });
    assert!(shares, "two threads flush each for himself");
}

// Goal: who is expected and does not come holds nobody up for good. Method: two threads commit together, then one leaves.
#[test]
fn who_leaves_is_not_waited_for() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    device.on_flush(|_| {
        std::thread::sleep(Duration::from_millis(4));
        true
    });
    within("a commit", move || {
        for round in 0..20u64 {
            std::thread::scope(|scope| {
                for thread in 0..2u64 {
                    let store = &store;
                    scope.spawn(move || {
                        for n in 0..1 + thread * 3 {
                            let key = [round.to_be_bytes(), thread.to_be_bytes(), n.to_be_bytes()].concat();
                            store.commit(put(store, &key, b"v")).expect("commits");
                        }
                    });
                }
            });
        }
    });
}

// Goal: who finds that a checkpoint is due while one is being written does not write another one behind it. Method: the log grows by
// the same few keys until a checkpoint cuts it; while its superblock is written another thread makes a change, which finds the
// log as long as before and goes for a checkpoint of its own.
#[test]
fn one_checkpoint_cuts_the_log_once() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    let before = store.stats().checkpoints_count;
    let late: Arc<Mutex<Option<std::thread::JoinHandle<Lsn>>>> = Arc::default();
    let (weak, spawned) = (Arc::downgrade(&store), late.clone());
    device.on_request(move |offset, write| {
        // Only what writes a superblock may wait here for the other thread.
        if !write || offset >= RING_START {
            return;
        }
        let mut spawned = spawned.lock().expect("lock");
        if spawned.is_some() {
            return;
        }
        let store = weak.upgrade().expect("it is open");
        let position = store.position();
        let writer = store.clone();
        *spawned = Some(std::thread::spawn(move || put(&writer, b"late", b"change")));
        let end = Instant::now() + PATIENCE;
        while store.position() == position {
            assert!(Instant::now() < end, "a change waits for the checkpoint");
            std::thread::yield_now();
        }
    });
    let mut number = 0_u32;
    while late.lock().expect("lock").is_none() {
        number += 1;
        put(&store, &[number as u8 % 8], &[number as u8; 500]);
        assert!(number < 100_000, "the log is never cut");
    }
    let thread = late.lock().expect("lock").take().expect("just seen");
    within("the late change", move || thread.join().expect("no panic"));
    assert_eq!(store.stats().checkpoints_count, before + 1);
    sound(&store, &[]);
}
