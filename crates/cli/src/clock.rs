//! The time of day, for the filesystem's timestamps.

use rustix::time::{ClockId, clock_gettime};
use varve_fs::{Clock, Timestamp};

/// The system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = clock_gettime(ClockId::Realtime);
        Timestamp {
            seconds: now.tv_sec,
            nanoseconds: u32::try_from(now.tv_nsec).expect("the kernel gives less than a billion"),
        }
    }
}
