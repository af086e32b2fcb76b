//! Groups of requests through io_uring: submit many, wait for all.
//!
//! Many threads run groups at once, and a ring serves one thread at a time: a pool of idle rings, at most
//! [`RINGS_MAX`]. A caller that finds none uses pread and pwrite instead.
//!
//! Invariant (memory safety rests on it): [`RingPool::run`] does not return while the kernel may still
//! touch a buffer of the group.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{DeviceError, Request};

/// Rings of one device, idle and busy.
const RINGS_MAX: usize = 16;
/// Requests in flight in one ring; a larger group goes in waves.
const RING_ENTRIES: u32 = 128;
/// Longest single transfer handed to the kernel; the rest of a longer request is carried on by the caller.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
/// Pause between looks at the completion queue when the kernel refuses to wait for us.
const RETRY_PAUSE: Duration = Duration::from_micros(100);

/// What became of one request of a group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    /// Bytes transferred; fewer than asked for means: carry on from there.
    pub done_bytes: usize,
    /// OS error number of a failed request.
    pub error: Option<i32>,
    /// Time from the start of the group until this request's completion was seen.
    pub latency: Duration,
}

struct Idle {
    rings: Vec<IoUring>,
    /// Rings in existence, idle or in use.
    made_count: usize,
}

/// The rings of one device.
pub(super) struct RingPool {
    idle: Mutex<Idle>,
}

impl RingPool {
    /// A pool with one ring in it, to find out whether io_uring works here.
    pub fn new() -> io::Result<Self> {
        let ring = make_ring()?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { idle: Mutex::new(Idle { rings: vec![ring], made_count: 1 }) })
    }

    /// Runs every request whose check is `Ok`, all in flight together. `None`: no ring is free, nothing was done.
    pub fn run(
        &self,
        file: &File,
        requests: &mut [Request<'_>],
        checks: &[Result<(), DeviceError>],
    ) -> Option<Vec<Outcome>> {
        let mut ring = self.take()?;
        let mut outcomes = vec![Outcome::default(); requests.len()];
        match run_group(&mut ring, file, requests, checks, &mut outcomes) {
            Ok(()) => self.idle.lock().rings.push(ring),
            Err(error) => {
                // Nothing is in flight any more; whatever was not transferred the caller carries on.
                tracing::warn!(%error, "io_uring failed: ring dropped");
                drop(ring);
                self.idle.lock().made_count -= 1;
            }
        }
        Some(outcomes)
    }

    fn take(&self) -> Option<IoUring> {
        {
            let mut idle = self.idle.lock();
            if let Some(ring) = idle.rings.pop() {
                return Some(ring);
            }
            if idle.made_count == RINGS_MAX {
                return None;
            }
            idle.made_count += 1;
        }
        match make_ring() {
            Ok(ring) => Some(ring),
            Err(_) => {
                self.idle.lock().made_count -= 1;
                None
            }
        }
    }
}

/// Whoever uses it waits for its completions in the kernel: nobody need be interrupted to hear of them. Kernels before 5.19
/// do not know that wish.
fn make_ring() -> io::Result<IoUring> {
    IoUring::builder().setup_coop_taskrun().build(RING_ENTRIES).or_else(|_| IoUring::new(RING_ENTRIES))
}

/// Pushes the requests, in waves of at most the ring's size, and reaps until none is in flight. On an error
/// of the ring itself nothing is in flight either: submitted requests have been waited for, unsubmitted ones
/// are forgotten with the ring, and their outcomes say that nothing was done.
fn run_group(
    ring: &mut IoUring,
    file: &File,
    requests: &mut [Request<'_>],
    checks: &[Result<(), DeviceError>],
    outcomes: &mut [Outcome],
) -> io::Result<()> {
    let started = Instant::now();
    let fd = types::Fd(file.as_raw_fd());
    let mut next = 0;
    // Pushed into the submission queue and not yet completed.
    let mut pending = 0;
    loop {
        while next < requests.len() && pending < RING_ENTRIES as usize {
            let index = next;
            next += 1;
            if checks[index].is_err() || requests[index].bytes().is_empty() {
                continue;
            }
            let entry = match &mut requests[index] {
                Request::Read { offset, buf } => {
                    let len = buf.len().min(TRANSFER_BYTES_MAX) as u32;
                    opcode::Read::new(fd, buf.as_mut_ptr(), len).offset(*offset).build()
                }
                Request::Write { offset, buf } => {
                    let len = buf.len().min(TRANSFER_BYTES_MAX) as u32;
                    opcode::Write::new(fd, buf.as_ptr(), len).offset(*offset).build()
                }
            };
            // SAFETY: the buffer and the file outlive the operation: this function reaps every submitted entry
            // before it returns, on all paths. A read's buffer is borrowed mutably by the group meanwhile.
            let pushed = unsafe { ring.submission().push(&entry.user_data(index as u64)) };
            pushed.expect("no more than the ring's entries are pending, so the queue has room");
            pending += 1;
        }
        if pending == 0 {
            return Ok(());
        }
        // Wait for half of them when more are to come, so that the queue does not run dry.
        let wanted = if next < requests.len() { pending / 2 } else { pending };
        let submitted = ring.submit_and_wait(wanted);
        pending -= reap(ring, outcomes, started);
        match submitted {
            Ok(_) => {}
            Err(error) if is_transient(&error) => {
                if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) {
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
            Err(error) => {
                // Entries still in the submission queue are unknown to the kernel; the others must end first.
                let unsubmitted = ring.submission().len();
                while pending > unsubmitted {
                    std::thread::sleep(RETRY_PAUSE);
                    pending -= reap(ring, outcomes, started);
                }
                return Err(error);
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    let transient = [Errno::INTR, Errno::AGAIN, Errno::BUSY];
    error.raw_os_error().is_some_and(|errno| transient.iter().any(|known| known.raw_os_error() == errno))
}

/// Takes what has completed; returns how many.
fn reap(ring: &mut IoUring, outcomes: &mut [Outcome], started: Instant) -> usize {
    let latency = started.elapsed();
    let mut count = 0;
    for completion in ring.completion() {
        count += 1;
        let outcome = &mut outcomes[completion.user_data() as usize];
        outcome.latency = latency;
        match usize::try_from(completion.result()) {
            Ok(done) => outcome.done_bytes = done,
            Err(_) => {
                let errno = -completion.result();
                // Interrupted or told to try again: nothing was transferred, the caller does it the simple way.
                if !is_transient(&io::Error::from_raw_os_error(errno)) {
                    outcome.error = Some(errno);
                }
            }
        }
    }
    count
}
