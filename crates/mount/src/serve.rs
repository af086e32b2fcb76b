//! The threads that answer, from a mount's first request to its last.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::thread::{self, Scope};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::Verbs;
use crate::dispatch::{Adapter, Scratch};
use crate::kernel::device::Device;
use crate::kernel::inbox::Inbox;
use crate::kernel::reply::Reply;
use crate::kernel::request;
use crate::kernel::ring::{Arrival, Seat};

/// Failures in a row to receive anything before a thread gives up, and how long it waits after each.
const FAILURES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Threads that answer what comes from one processor, at most.
const SEATS_MAX: usize = 64;

/// Rings that a mount is to be served through.
pub(crate) struct Rings {
    /// How many the kernel wants: one for each processor that there may ever be.
    pub queues: u16,
    /// Hears of each queue whether there is somebody; before there is somebody at all of them, the kernel lets nobody in.
    pub ready: Sender<io::Result<()>>,
}

/// Those who answer what comes from one processor.
struct Queue {
    number: u16,
    seats: AtomicUsize,
    /// Who waits for a request.
    idle: AtomicUsize,
}

/// As [`serve`], through rings. `device` brings what does not come through them.
pub(crate) fn serve_rings<V: Verbs>(
    adapter: Adapter<V>,
    device: Arc<Device>,
    rings: Rings,
) -> io::Result<()> {
    let new = |number| Queue { number, seats: AtomicUsize::new(0), idle: AtomicUsize::new(0) };
    let queues: Vec<Queue> = (0..rings.queues).map(new).collect();
    let crew = Crew {
        adapter: &adapter,
        device: &device,
        allowed: rustix::thread::sched_getaffinity(None).ok(),
        ended: Mutex::new(Ok(())),
    };
    let result = thread::scope(|scope| {
        for queue in &queues {
            sit_down(scope, &crew, queue, Some(rings.ready.clone()));
        }
        drop(rings.ready);
        answer(&adapter, &device)
    });
    let ended = crew.ended.into_inner();
    adapter.end();
    result.and(ended)
}

/// What all who answer through rings share.
struct Crew<'a, V> {
    adapter: &'a Adapter<V>,
    device: &'a Arc<Device>,
    /// The processors that this process may use.
    allowed: Option<CpuSet>,
    /// The first error of a thread that has given up.
    ended: Mutex<io::Result<()>>,
}

/// One thread more at a queue.
fn sit_down<'scope, V: Verbs>(
    scope: &'scope Scope<'scope, '_>,
    crew: &'scope Crew<'scope, V>,
    queue: &'scope Queue,
    ready: Option<Sender<io::Result<()>>>,
) {
    let number = queue.seats.fetch_add(1, Relaxed);
    let name = format!("fuse-{}-{number}", queue.number);
    let tell = ready.clone();
    let started = thread::Builder::new().name(name).spawn_scoped(scope, move || {
        let result = answer_ring(scope, crew, queue, ready);
        if let Err(error) = result {
            tracing::error!("a thread that serves the mount gives up: {error}");
            let mut ended = crew.ended.lock();
            if ended.is_ok() {
                *ended = Err(error);
            }
        }
    });
    if let Err(error) = started {
        queue.seats.fetch_sub(1, Relaxed);
        match tell {
            Some(ready) => drop(ready.send(Err(error))),
            None => tracing::error!("processor {} is served by {number} threads only: {error}", queue.number),
        }
    }
}

fn answer_ring<'scope, V: Verbs>(
    scope: &'scope Scope<'scope, '_>,
    crew: &'scope Crew<'scope, V>,
    queue: &'scope Queue,
    ready: Option<Sender<io::Result<()>>>,
) -> io::Result<()> {
    let cpu = usize::from(queue.number);
    if crew.allowed.is_some_and(|allowed| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu)) {
        let mut here = CpuSet::new();
        here.set(cpu);
        // Elsewhere it answers just as well.
        let _ = rustix::thread::sched_setaffinity(None, &here);
    }
    // Counted from the moment the kernel may hand it a request.
    queue.idle.fetch_add(1, Relaxed);
    let mut seat = match (Seat::take(crew.device.clone(), queue.number), ready) {
        (Ok(seat), ready) => {
            if let Some(ready) = ready {
                let _ = ready.send(Ok(()));
            }
            seat
        }
        (Err(error), Some(ready)) => {
            let _ = ready.send(Err(error));
            return Ok(());
        }
        (Err(error), None) => {
            // The others go on.
            tracing::debug!("no seat more at queue {cpu}: {error}");
            queue.idle.fetch_sub(1, Relaxed);
            queue.seats.fetch_sub(1, Relaxed);
            return Ok(());
        }
    };
    let (mut inbox, mut scratch) = (Inbox::new(), Scratch::default());
    let setxattr_ext = crew.adapter.agreed.setxattr_ext();
    loop {
        match seat.receive(&mut inbox, |asked| request::op_bytes(asked, setxattr_ext))? {
            Arrival::Request => {}
            Arrival::Gone => return Ok(()),
        }
        if queue.idle.fetch_sub(1, Relaxed) == 1 && queue.seats.load(Relaxed) < SEATS_MAX {
            // Whoever asks next need not wait for this one.
            sit_down(scope, crew, queue, None);
        }
        let reply = Reply::through(seat.slot().clone(), inbox.header().unique);
        crew.adapter.answer(&mut inbox, reply, &mut scratch);
        seat.await_answer();
        queue.idle.fetch_add(1, Relaxed);
    }
}

/// Answers with one thread for each of these open files of the mount, until it is gone and nobody is being answered any
/// more. The error is the first of a thread that has given up; the others go on without it.
pub(crate) fn serve<V: Verbs>(adapter: Adapter<V>, devices: Vec<Arc<Device>>) -> io::Result<()> {
    let result = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(devices.len());
        for (number, device) in devices.into_iter().enumerate() {
            let adapter = &adapter;
            let answer = move || answer(adapter, &device);
            match thread::Builder::new().name(format!("fuse-{number}")).spawn_scoped(scope, answer) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(error) => tracing::error!("the mount is served by {number} threads only: {error}"),
            }
        }
        let panicked = |_| Err(io::Error::other("a thread that serves the mount panicked"));
        let mut result = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(panicked);
            result = result.and(ended);
        }
        result
    });
    adapter.end();
    result
}

fn answer<V: Verbs>(adapter: &Adapter<V>, device: &Arc<Device>) -> io::Result<()> {
    let (mut inbox, mut scratch) = (Inbox::new(), Scratch::default());
    let mut failed = 0;
    loop {
        match inbox.receive(device) {
            Ok(true) => failed = 0,
            Ok(false) => return Ok(()),
            // The kernel had no memory to hand a request over, and has ended it.
            Err(error) if is_passing(&error) && failed < FAILURES_MAX => {
                tracing::warn!("a request could not be received: {error}");
                failed += 1;
                thread::sleep(PAUSE);
                continue;
            }
            Err(error) => {
                tracing::error!("a thread that serves the mount gives up: {error}");
                return Err(error);
            }
        }
        let reply = Reply::new(device.clone(), inbox.header().unique);
        adapter.answer(&mut inbox, reply, &mut scratch);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOMEM | Errno::FAULT))
}
