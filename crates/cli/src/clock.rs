//! The time of day, for the filesystem's timestamps, and as those of other filesystems have it.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use varve_fs::{Clock, Timestamp};

/// The system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        timestamp(clock_gettime(ClockId::Realtime))
    }
}

/// The time that the kernel gives what is changed now; what is changed later has this one or a later one.
pub fn tick() -> Timestamp {
    timestamp(clock_gettime(ClockId::RealtimeCoarse))
}

/// Whether `time` is now, give or take `long`.
pub fn is_near(time: Timestamp, long: Duration) -> bool {
    are_near(SystemClock.now(), time, long)
}

/// Whether there is no more than that between two times.
pub fn are_near(one: Timestamp, other: Timestamp, long: Duration) -> bool {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    (nanoseconds(one) - nanoseconds(other)).unsigned_abs() <= long.as_nanos()
}

fn timestamp(time: Timespec) -> Timestamp {
    Timestamp {
        seconds: time.tv_sec,
        nanoseconds: u32::try_from(time.tv_nsec).expect("the kernel gives less than a billion"),
    }
}
