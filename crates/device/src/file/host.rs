//! A sparse file whose filesystem has become full, or a thin volume whose store has.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::FileDevice;
use crate::{DeviceError, Request};

/// Between two attempts, at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl FileDevice {
    /// From now on a write for which the filesystem that holds this file, or what is under this block device, has no space (ENOSPC,
    /// EDQUOT) is tried again for as long as `patience` before it fails; who writes waits. An error in the log says so at once: somebody has to make room.
    pub fn wait_for_host(&self, patience: Duration) {
        self.patience_ms.store(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Tries again what found no space.
    pub(super) fn outlast(&self, requests: &mut [Request<'_>], results: &mut [Result<(), DeviceError>]) {
        let patience = Duration::from_millis(self.patience_ms.load(Relaxed));
        let is_full = |result: &Result<(), DeviceError>| {
            let full = [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error()));
            matches!(result, Err(DeviceError::Io { errno, .. }) if full.contains(errno))
        };
        if patience.is_zero() || !results.iter().any(is_full) {
            return;
        }
        let (device, seconds) = (self.path.display(), patience.as_secs());
        let host = if self.is_block_device {
            format!("what stores the blocks of {device} (a thin volume?)")
        } else {
            format!("the filesystem that holds {device}")
        };
        tracing::error!(
            "{host} is full: what is to be written waits up to {seconds} seconds for space there, then the pool stops"
        );
        let (begun, mut pause) = (Instant::now(), Duration::from_millis(50));
        while results.iter().any(is_full) && begun.elapsed() < patience {
            let (mutex, nobody) = (Mutex::new(()), Condvar::new());
            nobody.wait_for(&mut mutex.lock(), pause);
            pause = (pause * 2).min(PAUSE_MAX);
            for (request, result) in requests.iter_mut().zip(results.iter_mut()) {
                if is_full(result) {
                    *result = self.run_one_by_one(std::slice::from_mut(request)).pop().unwrap_or(Ok(()));
                    if is_full(result) {
                        break;
                    }
                }
            }
        }
        if !results.iter().any(is_full) {
            tracing::warn!("{host} has space again");
        }
    }
}
