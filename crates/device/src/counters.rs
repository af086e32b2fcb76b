//! What a device has done: counts, bytes and latency histograms, kept with relaxed atomics.
//!
//! A snapshot is not one instant: counters of operations running meanwhile may or may not be in it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error::Operation;

/// Number of buckets of a histogram: bucket `i` counts durations of `[2^i, 2^(i+1))` ns; 2^47 ns is 39 hours.
const BUCKETS_COUNT: usize = 48;

/// A concurrent histogram of durations with power-of-two buckets.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_COUNT],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS_COUNT],
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns.max(1).ilog2() as usize).min(BUCKETS_COUNT - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    /// Runs `what` and adds how long it took.
    pub fn time<T>(&self, what: impl FnOnce() -> T) -> T {
        let begun = Stopwatch::start();
        let result = what();
        self.record(begun.elapsed());
        result
    }

    /// The present contents.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Relaxed));
        HistogramSnapshot {
            buckets,
            count: buckets.iter().sum(),
            sum_ns: self.sum_ns.load(Relaxed),
            max_ns: self.max_ns.load(Relaxed),
        }
    }
}

/// The time since something began, for a [`Histogram`], and for how long a wait that is bounded anyway may last: no decision
/// depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Until now.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The contents of a [`Histogram`] at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Bucket `i` counts durations of `[2^i, 2^(i+1))` nanoseconds; the first also has 0, the last all above.
    pub buckets: [u64; BUCKETS_COUNT],
    /// Number of durations.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// The longest in nanoseconds, since the device was opened.
    pub max_ns: u64,
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS_COUNT], count: 0, sum_ns: 0, max_ns: 0 }
    }
}

impl HistogramSnapshot {
    /// An upper bound, in nanoseconds, of the fastest `percent` of the durations (0 to 100): the end of the
    /// bucket that holds the percentile, at most a factor of two too high. 0 if nothing was recorded.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((percent.clamp(0.0, 100.0) / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                let bucket_end_ns = if i + 1 == BUCKETS_COUNT { u64::MAX } else { (1 << (i + 1)) - 1 };
                return bucket_end_ns.min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The mean in nanoseconds, 0 if nothing was recorded.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// What was recorded after `earlier`, an older snapshot of the same histogram. `max_ns` stays the overall one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            buckets: std::array::from_fn(|i| self.buckets[i].saturating_sub(earlier.buckets[i])),
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            max_ns: self.max_ns,
        }
    }
}

/// The live counters of a device.
#[derive(Debug, Default)]
pub struct Counters {
    reads_count: AtomicU64,
    read_bytes: AtomicU64,
    writes_count: AtomicU64,
    write_bytes: AtomicU64,
    flushes_count: AtomicU64,
    discards_count: AtomicU64,
    discard_bytes: AtomicU64,
    errors_count: AtomicU64,
    read_latency: Histogram,
    write_latency: Histogram,
    flush_latency: Histogram,
}

impl Counters {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one finished operation of `len_bytes`. A failed one counts as an error and nothing else.
    pub fn record(&self, operation: Operation, len_bytes: u64, latency: Duration, succeeded: bool) {
        if !succeeded {
            self.errors_count.fetch_add(1, Relaxed);
            return;
        }
        match operation {
            Operation::Read => {
                self.reads_count.fetch_add(1, Relaxed);
                self.read_bytes.fetch_add(len_bytes, Relaxed);
                self.read_latency.record(latency);
            }
            Operation::Write => {
                self.writes_count.fetch_add(1, Relaxed);
                self.write_bytes.fetch_add(len_bytes, Relaxed);
                self.write_latency.record(latency);
            }
            Operation::Flush => {
                self.flushes_count.fetch_add(1, Relaxed);
                self.flush_latency.record(latency);
            }
            Operation::Discard => {
                self.discards_count.fetch_add(1, Relaxed);
                self.discard_bytes.fetch_add(len_bytes, Relaxed);
            }
            Operation::Open => {}
        }
    }

    /// The present values.
    #[must_use]
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            reads_count: self.reads_count.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes_count: self.writes_count.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            flushes_count: self.flushes_count.load(Relaxed),
            discards_count: self.discards_count.load(Relaxed),
            discard_bytes: self.discard_bytes.load(Relaxed),
            errors_count: self.errors_count.load(Relaxed),
            read_latency: self.read_latency.snapshot(),
            write_latency: self.write_latency.snapshot(),
            flush_latency: self.flush_latency.snapshot(),
        }
    }
}

/// What a device has done since it was opened. Failed operations are in `errors_count` alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Reads done.
    pub reads_count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes done.
    pub writes_count: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes done.
    pub flushes_count: u64,
    /// Discards done (also those the device ignored).
    pub discards_count: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Operations that failed.
    pub errors_count: u64,
    /// Time from submission of a read's group until the read was seen to be complete.
    pub read_latency: HistogramSnapshot,
    /// Time from submission of a write's group until the write was seen to be complete.
    pub write_latency: HistogramSnapshot,
    /// Duration of flushes.
    pub flush_latency: HistogramSnapshot,
}

impl StatsSnapshot {
    /// What was done after `earlier`, an older snapshot of the same device.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads_count: self.reads_count.saturating_sub(earlier.reads_count),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes_count: self.writes_count.saturating_sub(earlier.writes_count),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            flushes_count: self.flushes_count.saturating_sub(earlier.flushes_count),
            discards_count: self.discards_count.saturating_sub(earlier.discards_count),
            discard_bytes: self.discard_bytes.saturating_sub(earlier.discard_bytes),
            errors_count: self.errors_count.saturating_sub(earlier.errors_count),
            read_latency: self.read_latency.since(&earlier.read_latency),
            write_latency: self.write_latency.since(&earlier.write_latency),
            flush_latency: self.flush_latency.since(&earlier.flush_latency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: percentiles bound the truth from above by at most a factor of two. Method: 1..=1000 us, known ranks.
    #[test]
    fn percentiles_bound_the_truth() {
        let histogram = Histogram::new();
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count, 1000);
        for percent in [1.0, 50.0, 90.0, 99.0, 100.0] {
            let truth_ns = (percent * 10.0) as u64 * 1000;
            let bound_ns = snapshot.percentile_ns(percent);
            assert!(bound_ns >= truth_ns && bound_ns <= 2 * truth_ns, "{percent}: {bound_ns} for {truth_ns}");
        }
        assert_eq!(snapshot.max_ns, 1_000_000);
        assert_eq!(HistogramSnapshot::default().percentile_ns(50.0), 0);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.snapshot().percentile_ns(100.0), u64::MAX);
    }

    // Goal: counts and bytes add up per kind, failures apart. Method: a few of each, then the difference.
    #[test]
    fn snapshots_subtract() {
        let counters = Counters::new();
        counters.record(Operation::Write, 4096, Duration::from_micros(3), true);
        let before = counters.snapshot();
        counters.record(Operation::Write, 8192, Duration::from_micros(3), true);
        counters.record(Operation::Read, 4096, Duration::from_micros(3), false);
        counters.record(Operation::Flush, 0, Duration::from_micros(3), true);
        let delta = counters.snapshot().since(&before);
        assert_eq!((delta.writes_count, delta.write_bytes), (1, 8192));
        assert_eq!((delta.reads_count, delta.errors_count, delta.flushes_count), (0, 1, 1));
        assert_eq!(delta.write_latency.count, 1);
    }
}
