//! Groups of requests through io_uring: submit many, wait for all.
//!
//! Many threads run groups at once, and a ring serves one thread at a time: a pool of idle rings, at most
//! [`RINGS_MAX`]. A caller that finds none uses pread and pwrite instead.
//!
//! A thread that comes often has a ring of its own, for whatever device ([`OWN_AFTER_GROUPS`]). Such a ring may put off all
//! that a completion brings with it until its thread asks, so that whoever waits for two requests is woken once and not
//! twice; which the kernel grants only where one thread alone submits.
//!
//! Invariant (memory safety rests on it): [`RingPool::run`] does not return while the kernel may still
//! touch a buffer of the group.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{DeviceError, Process, Request};

/// Rings of one device, idle and busy.
const RINGS_MAX: usize = 16;
/// Groups of a thread before it gets a ring of its own: a ring costs as much as some of them to make.
const OWN_AFTER_GROUPS: u32 = 8;
/// Threads with a ring of their own, in this process.
const OWN_RINGS_MAX: usize = 64;
/// Requests in flight in one ring; a larger group goes in waves.
const RING_ENTRIES: u32 = 128;
/// Most bytes and most requests that are handed to the kernel as one, when they are writes of neighbours. A request costs some
/// microseconds of processor time, whatever its size; larger ones than this gain nothing from each other.
const JOINED_BYTES_MAX: usize = 512 << 10;
const JOINED_REQUESTS_MAX: usize = 256;
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
    /// Time from when the caller began until this request's completion was seen.
    pub latency: Duration,
}

/// Rings that belong to threads.
static OWN_RINGS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own { groups: 0, ring: None }) };
}

/// The ring of a thread.
struct Own {
    /// Groups it has run through the pool.
    groups: u32,
    ring: Option<OwnRing>,
}

/// A ring that only the thread which has made it may use, and not that thread's copy in a forked child.
struct OwnRing {
    ring: IoUring,
    process: Process,
}

/// Instead of a number of groups: this thread gets no ring.
const NEVER: u32 = u32::MAX;

impl OwnRing {
    /// `Ok(None)`: there are enough just now. Kernels before 6.1 have none.
    fn make() -> io::Result<Option<OwnRing>> {
        let made = match OWN_RINGS.fetch_add(1, Relaxed) < OWN_RINGS_MAX {
            true => {
                let mut builder = IoUring::builder();
                builder.setup_single_issuer().setup_defer_taskrun().build(RING_ENTRIES).map(Some)
            }
            false => Ok(None),
        };
        if !matches!(made, Ok(Some(_))) {
            OWN_RINGS.fetch_sub(1, Relaxed);
        }
        Ok(made?.map(|ring| OwnRing { ring, process: Process::current() }))
    }
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        OWN_RINGS.fetch_sub(1, Relaxed);
    }
}

impl Own {
    /// The ring, made when it is time.
    fn ring(&mut self) -> Option<&mut IoUring> {
        // The queues of a parent's ring lie in memory that is shared with it: what is put there the parent would submit.
        if self.ring.as_ref().is_some_and(|own| !own.process.is_current()) {
            self.ring = None;
        }
        if self.ring.is_none() && self.groups < NEVER {
            self.groups += 1;
            if self.groups > OWN_AFTER_GROUPS {
                match OwnRing::make() {
                    Ok(made) => {
                        self.ring = made;
                        // If there are enough: asked again later, when other threads may have ended.
                        self.groups = 0;
                    }
                    Err(_) => self.groups = NEVER,
                }
            }
        }
        self.ring.as_mut().map(|own| &mut own.ring)
    }

    /// Runs a group as [`run_group`] does. `None`: this thread has no ring, nothing was done.
    fn run(
        &mut self,
        file: &File,
        requests: &mut [Request<'_>],
        checks: &[Result<(), DeviceError>],
        outcomes: &mut [Outcome],
        started: Instant,
    ) -> Option<io::Result<()>> {
        let result = run_group(self.ring()?, file, requests, checks, outcomes, started);
        if result.is_err() {
            self.ring = None;
            self.groups = NEVER;
        }
        Some(result)
    }
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
        let wanted = [opcode::Read::CODE, opcode::Write::CODE, opcode::Writev::CODE];
        if !wanted.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { idle: Mutex::new(Idle { rings: vec![ring], made_count: 1 }) })
    }

    /// Runs every request whose check is `Ok`, all in flight together; latencies count from `started`. `None`: no ring is free,
    /// nothing was done.
    pub fn run(
        &self,
        file: &File,
        requests: &mut [Request<'_>],
        checks: &[Result<(), DeviceError>],
        started: Instant,
    ) -> Option<Vec<Outcome>> {
        let mut outcomes = vec![Outcome::default(); requests.len()];
        // Threads that are about to end have none any more.
        let own = OWN.try_with(|own| own.borrow_mut().run(file, requests, checks, &mut outcomes, started));
        if let Some(result) = own.ok().flatten() {
            if let Err(error) = result {
                tracing::warn!(%error, "io_uring failed: the thread's ring dropped");
            }
            return Some(outcomes);
        }
        let mut ring = self.take()?;
        match run_group(&mut ring, file, requests, checks, &mut outcomes, started) {
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

/// How many requests from the first of these on are one write to the kernel: each begins where the one before ends. At least 1.
fn joined(requests: &[Request<'_>], checks: &[Result<(), DeviceError>]) -> usize {
    let (mut count, mut bytes, mut end) = (0, 0, None);
    for (request, check) in requests.iter().zip(checks).take(JOINED_REQUESTS_MAX) {
        let Request::Write { offset, buf } = request else { break };
        let follows = end.is_none_or(|end| end == *offset);
        bytes += buf.len();
        if !follows || check.is_err() || buf.is_empty() || bytes > JOINED_BYTES_MAX {
            break;
        }
        count += 1;
        end = Some(offset + buf.len() as u64);
    }
    count.max(1)
}

/// What tells a completion which requests it is of: the first, and how many.
fn user_data(first: usize, count: usize) -> u64 {
    (count as u64) << 32 | first as u64
}

fn requests_of(user_data: u64) -> std::ops::Range<usize> {
    let first = (user_data & u64::from(u32::MAX)) as usize;
    first..first + (user_data >> 32) as usize
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
    started: Instant,
) -> io::Result<()> {
    let fd = types::Fd(file.as_raw_fd());
    let mut next = 0;
    // Pushed into the submission queue and not yet completed.
    let mut pending = 0;
    // What joined requests write. Never grows, so that it stays where the kernel was told it is.
    let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(requests.len());
    loop {
        while next < requests.len() && pending < RING_ENTRIES as usize {
            let index = next;
            let count = joined(&requests[index..], &checks[index..]);
            next += count;
            if checks[index].is_err() || requests[index].bytes().is_empty() {
                continue;
            }
            let entry = match &mut requests[index] {
                Request::Write { offset, .. } if count > 1 => {
                    let (offset, first) = (*offset, slices.len());
                    slices.extend(requests[index..next].iter().map(|request| match request {
                        Request::Write { buf, .. } => IoSlice::new(buf),
                        Request::Read { .. } => unreachable!("only writes are joined"),
                    }));
                    // Std promises that an `IoSlice` is an iovec.
                    let iovecs = slices[first..].as_ptr().cast();
                    opcode::Writev::new(fd, iovecs, count as u32).offset(offset).build()
                }
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
            // before it returns, on all paths. A read's buffer is borrowed mutably by the group meanwhile. `slices` has room for
            // every request, so what the kernel reads of it does not move.
            let pushed = unsafe { ring.submission().push(&entry.user_data(user_data(index, count))) };
            pushed.expect("no more than the ring's entries are pending, so the queue has room");
            pending += 1;
        }
        if pending == 0 {
            return Ok(());
        }
        // Wait for half of them when more are to come, so that the queue does not run dry.
        let wanted = if next < requests.len() { pending / 2 } else { pending };
        let submitted = ring.submit_and_wait(wanted);
        pending -= reap(ring, requests, outcomes, started);
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
                    // A thread's own ring shows what has completed only to who asks (IORING_ENTER_GETEVENTS is 1).
                    // SAFETY: nothing is submitted, and no argument is given that would have to outlive anything.
                    let _ = unsafe { ring.submitter().enter::<()>(0, 0, 1, None) };
                    pending -= reap(ring, requests, outcomes, started);
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
fn reap(ring: &mut IoUring, requests: &[Request<'_>], outcomes: &mut [Outcome], started: Instant) -> usize {
    let latency = started.elapsed();
    let mut count = 0;
    for completion in ring.completion() {
        count += 1;
        let of = requests_of(completion.user_data());
        settle(&requests[of.clone()], &mut outcomes[of], completion.result(), latency);
    }
    count
}

/// What one completion says of the requests that were one to the kernel: bytes transferred, or the negated error number.
fn settle(requests: &[Request<'_>], outcomes: &mut [Outcome], result: i32, latency: Duration) {
    let mut done = usize::try_from(result).unwrap_or(0);
    // Interrupted or told to try again: nothing was transferred, the caller does it the simple way.
    let error = Some(result)
        .filter(|result| *result < 0)
        .map(i32::wrapping_neg)
        .filter(|errno| !is_transient(&io::Error::from_raw_os_error(*errno)));
    for (request, outcome) in requests.iter().zip(outcomes) {
        outcome.latency = latency;
        outcome.done_bytes = done.min(request.bytes().len());
        outcome.error = error;
        done -= outcome.done_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, Operation};

    fn writes<'a>(places: &[(u64, &'a [u8])]) -> Vec<Request<'a>> {
        places.iter().map(|(offset, buf)| Request::Write { offset: *offset, buf }).collect()
    }

    // Goal: writes are joined where each begins where the one before ends, and nowhere else.
    #[test]
    fn neighbours_are_joined() {
        let buf = AlignedBuf::from_slice(&[1; 16384]);
        let (one, two) = (&buf[..4096], &buf[..8192]);
        let requests =
            writes(&[(0, one), (4096, two), (12288, one), (20480, one), (24576, &[]), (24576, one)]);
        let mut checks: Vec<Result<(), DeviceError>> = requests.iter().map(|_| Ok(())).collect();
        let of = |checks: &[Result<(), DeviceError>]| -> Vec<usize> {
            (0..requests.len()).map(|at| joined(&requests[at..], &checks[at..])).collect()
        };
        assert_eq!(of(&checks), [3, 2, 1, 1, 1, 1], "a gap, and one that is empty");
        checks[1] = Err(DeviceError::NotPermitted {
            operation: Operation::Write,
            device: "".into(),
            text: "".into(),
        });
        assert_eq!(of(&checks), [1, 1, 1, 1, 1, 1], "one that may not be");
        let mut bytes = [0; 4096];
        let read = [writes(&[(0, one)]).remove(0), Request::Read { offset: 4096, buf: &mut bytes }];
        assert_eq!(joined(&read, &[Ok(()), Ok(())]), 1, "a read");
        let large = vec![0; JOINED_BYTES_MAX];
        let requests = writes(&[(0, &large), (large.len() as u64, &large)]);
        assert_eq!(joined(&requests, &[Ok(()), Ok(())]), 1, "large ones");
        let many: Vec<_> = (0..JOINED_REQUESTS_MAX as u64 + 1).map(|at| (at, &one[..1])).collect();
        let checks: Vec<_> = many.iter().map(|_| Ok(())).collect();
        assert_eq!(joined(&writes(&many), &checks), JOINED_REQUESTS_MAX, "too many");
    }

    // Goal: what a completion says reaches each of the requests it is of: all bytes, some of them, an error, and what is
    // to be tried again.
    #[test]
    fn a_completion_is_shared_out() {
        let buf = AlignedBuf::from_slice(&[1; 8192]);
        let requests = writes(&[(0, &buf[..4096]), (4096, &buf), (12288, &buf[..4096])]);
        let told = |result| {
            let mut outcomes = [Outcome::default(); 3];
            settle(&requests, &mut outcomes, result, Duration::from_micros(3));
            assert!(outcomes.iter().all(|outcome| outcome.latency == Duration::from_micros(3)));
            outcomes.map(|outcome| (outcome.done_bytes, outcome.error))
        };
        assert_eq!(told(16384), [(4096, None), (8192, None), (4096, None)]);
        assert_eq!(told(8192), [(4096, None), (4096, None), (0, None)]);
        let errno = |errno: Errno| errno.raw_os_error();
        assert_eq!(told(-errno(Errno::IO)), [(0, Some(errno(Errno::IO))); 3]);
        assert_eq!(told(-errno(Errno::AGAIN)), [(0, None); 3]);
        assert_eq!(requests_of(user_data(7, 3)), 7..10);
    }

    // Goal: joined or not, in more waves than one, all bytes of a group lie where they belong. Method: writes of one to three pages in
    // ascending order with gaps here and there, each page with a number of its own, beside what was in the file before.
    #[test]
    fn joined_writes_lie_where_they_belong() {
        let file = tempfile::tempfile().expect("a file");
        let pool = RingPool::new().expect("io_uring");
        let mut places = Vec::new();
        let (mut at, mut number) = (0_u64, 0_u8);
        for i in 0..2_000_u64 {
            number = number.wrapping_add(1).max(1);
            places.push((at, AlignedBuf::from_slice(&vec![number; 4096 * (1 + i as usize % 3)])));
            at += places[i as usize].1.len() as u64 + if i.is_multiple_of(5) { 4096 } else { 0 };
        }
        let mut wanted = vec![0; at as usize];
        for (offset, buf) in &places {
            wanted[*offset as usize..][..buf.len()].copy_from_slice(buf);
        }
        let mut requests: Vec<_> =
            places.iter().map(|(offset, buf)| Request::Write { offset: *offset, buf }).collect();
        let checks: Vec<_> = requests.iter().map(|_| Ok(())).collect();
        let outcomes = pool.run(&file, &mut requests, &checks, Instant::now()).expect("there is a ring");
        assert!(outcomes.iter().zip(&places).all(|(outcome, (_, buf))| outcome.done_bytes == buf.len()
            && outcome.error.is_none()
            && outcome.latency > Duration::ZERO));
        let mut found = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("it is there");
        found.resize(wanted.len(), 0);
        assert!(found == wanted, "the bytes differ");
    }

    // Goal: a thread has a ring of its own once it has come often, on whatever device, and lets go of it when it ends; where the
    // kernel has no such rings all goes on as before. Method: groups of two on two devices. Other tests may have all that
    // there may be just now.
    #[test]
    fn who_comes_often_has_a_ring() {
        let has_ring = || OWN.with(|own| own.borrow().ring.is_some());
        let mut builder = IoUring::<io_uring::squeue::Entry, io_uring::cqueue::Entry>::builder();
        let known = builder.setup_single_issuer().setup_defer_taskrun().build(8).is_ok();
        let ended = std::thread::spawn(move || {
            let files = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
            let pools = [(); 2].map(|()| RingPool::new().expect("io_uring"));
            let buf = AlignedBuf::from_slice(&[7; 4096]);
            let group = |group: u32| {
                let which = group as usize % 2;
                let mut requests = [0, 4096].map(|offset| Request::Write { offset, buf: &buf });
                let outcomes =
                    pools[which].run(&files[which], &mut requests, &[Ok(()), Ok(())], Instant::now());
                assert!(outcomes.expect("there is a ring").iter().all(|outcome| outcome.done_bytes == 4096));
            };
            for i in 0..OWN_AFTER_GROUPS {
                group(i);
                assert!(!has_ring(), "already after group {i}");
            }
            for i in 0..1_000_000 {
                group(i);
                if !known || has_ring() {
                    break;
                }
            }
            assert_eq!(has_ring(), known);
            (0..4).for_each(group);
            assert_eq!(has_ring(), known);
        })
        .join();
        ended.expect("no panic");
        assert!(!has_ring());
    }
}
