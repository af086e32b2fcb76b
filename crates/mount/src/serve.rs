//! The threads that answer, from a mount's first request to its last.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::Verbs;
use crate::dispatch::{Adapter, Scratch};
use crate::kernel::device::Device;
use crate::kernel::handshake::{Agreed, shake_hands};
use crate::kernel::inbox::Inbox;
use crate::kernel::reply::Reply;
use crate::kernel::request;
use crate::kernel::ring::{self, Arrival, Seat};

/// Failures in a row to receive anything before a thread gives up, and how long it waits after each.
const FAILURES_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Threads that answer through rings, in all and for each processor that the machine may have.
const SEATS_MAX: usize = 256;
const SEATS_EACH: std::ops::RangeInclusive<usize> = 4..=32;

/// How long a thread may take to get a ring, or a seat, on whatever machine.
const SEATING_MAX: Duration = Duration::from_secs(20);

/// What whoever mounts hears of the session.
pub(crate) enum Told {
    /// The mount answers, through rings or not.
    Serving {
        /// Whether it does.
        rings: bool,
    },
    /// The kernel had agreed on rings and does not take them. The mount is to be taken away.
    NoRings(io::Error),
    /// The mount is to be taken away.
    Failed(io::Error),
}

/// What a session needs.
pub(crate) struct Session<M> {
    /// The open file of the mount.
    pub device: Arc<Device>,
    /// Threads that answer without rings.
    pub threads: usize,
    /// Rings are wanted.
    pub rings: bool,
    /// Makes the adapter from what has been agreed on.
    pub make: M,
    /// Hears how it begins.
    pub tell: Sender<Told>,
    /// Ends the mount by force: nobody is there to answer.
    pub abort: Arc<dyn Fn() + Send + Sync>,
}

/// A mount from its first request to its last: until it is gone and nobody is being answered any more. The error is the first of
/// a thread that has given up.
pub(crate) fn session<V: Verbs, M: FnOnce(Agreed) -> Adapter<V>>(session: Session<M>) -> io::Result<()> {
    let plan = if session.rings { plan() } else { None };
    let rings = match plan {
        // All that can fail on our side is done before the kernel is told that there are rings: from then on it lets nobody in
        // until they are there.
        Some(plan) => {
            let crew = Crew::new(session.device.clone());
            let rings = thread::scope(|scope| serve_rings(scope, &crew, plan, session));
            if let Some(adapter) = crew.adapter.get() {
                adapter.end();
            }
            match rings {
                Rings::Done(result) => Rings::Done(result.and(crew.ended.into_inner())),
                without => without,
            }
        }
        None => Rings::Without(session, None),
    };
    let (session, agreed) = match rings {
        Rings::Done(result) => return result,
        Rings::Without(session, agreed) => (session, agreed),
    };
    let begun = agreed.map_or_else(|| shake_hands(&session.device, false), Ok).and_then(|agreed| {
        let mut devices = vec![session.device.clone()];
        for _ in 1..session.threads {
            devices.push(Arc::new(session.device.another()?));
        }
        Ok((agreed, devices))
    });
    match begun {
        Ok((agreed, devices)) => {
            let adapter = (session.make)(agreed);
            // From here on the mount is as long as those who serve it.
            drop(session.device);
            let _ = session.tell.send(Told::Serving { rings: false });
            serve(adapter, devices)
        }
        Err(error) => {
            let _ = session.tell.send(Told::Failed(error));
            Ok(())
        }
    }
}

/// How many queues the kernel wants, and how many seats each is to have. `None`: this process cannot have so many.
fn plan() -> Option<(u16, usize)> {
    let queues = ring::queues().inspect_err(|error| tracing::debug!("no rings: {error}")).ok()?;
    let each = (SEATS_MAX / usize::from(queues).max(1)).min(*SEATS_EACH.end());
    // A ring is an open file, and others are needed too.
    let files = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let enough = each >= *SEATS_EACH.start() && 2 * (each * usize::from(queues)) as u64 <= files;
    if !enough {
        tracing::debug!("no rings: {queues} queues, {files} open files");
    }
    enough.then_some((queues, each))
}

/// What came of trying with rings.
enum Rings<M> {
    /// The session is over.
    Done(io::Result<()>),
    /// The kernel has none, or we cannot have them; perhaps hands have been shaken already.
    Without(Session<M>, Option<Agreed>),
}

/// Those who answer through rings.
struct Crew<V> {
    device: Arc<Device>,
    /// Set before the gate opens.
    adapter: OnceLock<Adapter<V>>,
    gate: Mutex<Gate>,
    moved: Condvar,
    /// The mount is gone.
    gone: AtomicBool,
    /// The first error of a thread that has given up.
    ended: Mutex<io::Result<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Waiting,
    Open,
    Closed,
}

impl<V: Verbs> Crew<V> {
    fn new(device: Arc<Device>) -> Crew<V> {
        Crew {
            device,
            adapter: OnceLock::new(),
            gate: Mutex::new(Gate::Waiting),
            moved: Condvar::new(),
            gone: AtomicBool::new(false),
            ended: Mutex::new(Ok(())),
        }
    }

    fn move_gate(&self, to: Gate) {
        *self.gate.lock() = to;
        self.moved.notify_all();
    }

    /// Whether there will be requests.
    fn wait_at_gate(&self) -> bool {
        let mut gate = self.gate.lock();
        while *gate == Gate::Waiting {
            self.moved.wait(&mut gate);
        }
        *gate == Gate::Open
    }
}

/// Closes the gate that nobody has opened, should its holder fail: those who wait there would wait for ever.
struct Closes<'a, V: Verbs>(&'a Crew<V>);

impl<V: Verbs> Drop for Closes<'_, V> {
    fn drop(&mut self) {
        if *self.0.gate.lock() == Gate::Waiting {
            self.0.move_gate(Gate::Closed);
        }
    }
}

fn serve_rings<'scope, V: Verbs, M: FnOnce(Agreed) -> Adapter<V>>(
    scope: &'scope thread::Scope<'scope, '_>,
    crew: &'scope Crew<V>,
    (queues, each): (u16, usize),
    session: Session<M>,
) -> Rings<M> {
    let _closes = Closes(crew);
    let ((made, seats_made), (taken, seats_taken)) = (mpsc::channel(), mpsc::channel());
    let mut count = 0;
    for (number, queue) in (0..each).flat_map(|number| (0..queues).map(move |queue| (number, queue))) {
        let (made, taken, abort) = (made.clone(), taken.clone(), session.abort.clone());
        let sit = move || {
            let answers = catch_unwind(AssertUnwindSafe(|| answer_ring(crew, queue, &made, &taken)));
            let error = match answers {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(_) => {
                    if let Some(adapter) = crew.adapter.get() {
                        adapter.health.note_panic("a thread that serves the mount");
                    }
                    io::Error::other("a thread that serves the mount panicked")
                }
            };
            tracing::error!("a thread that serves the mount gives up, and ends it: {error}");
            let mut ended = crew.ended.lock();
            if ended.is_ok() {
                *ended = Err(error);
            }
            drop(ended);
            // The kernel waits for its answer, and whoever asked cannot be answered otherwise.
            abort();
        };
        match thread::Builder::new().name(format!("fuse-{queue}-{number}")).spawn_scoped(scope, sit) {
            Ok(_) => count += 1,
            Err(error) => {
                tracing::warn!("no threads for rings: {error}");
                break;
            }
        }
    }
    drop((made, taken));
    let well = (0..count).filter(|_| seats_made.recv_timeout(SEATING_MAX).unwrap_or(false)).count();
    let all = well == each * usize::from(queues);
    let agreed = match shake_hands(&session.device, all) {
        Ok(agreed) if agreed.over_rings() => agreed,
        Ok(agreed) => return Rings::Without(session, Some(agreed)),
        Err(error) => {
            let _ = session.tell.send(Told::Failed(error));
            return Rings::Done(Ok(()));
        }
    };
    let adapter = crew.adapter.get_or_init(|| (session.make)(agreed));
    crew.move_gate(Gate::Open);
    // All of them, whatever one says: a seat that is taken while the mount ends may keep it from ending.
    let silent = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
    let mut refused = None;
    for _ in 0..count {
        if let Err(error) = seats_taken.recv_timeout(SEATING_MAX).unwrap_or_else(silent) {
            refused = Some(error);
        }
    }
    let _ = session.tell.send(refused.map_or(Told::Serving { rings: true }, Told::NoRings));
    // What does not come through rings.
    let result = answer(adapter, &session.device);
    crew.gone.store(true, Relaxed);
    // Its seat waits for it.
    adapter.trims.end();
    Rings::Done(result)
}

fn answer_ring<V: Verbs>(
    crew: &Crew<V>,
    queue: u16,
    made: &Sender<bool>,
    taken: &Sender<io::Result<()>>,
) -> io::Result<()> {
    varve_device::pin_thread(usize::from(queue));
    let seat = Seat::new(crew.device.clone(), queue);
    if let Err(error) = &seat {
        tracing::debug!("no ring: {error}");
    }
    let _ = made.send(seat.is_ok());
    let (Ok(mut seat), true) = (seat, crew.wait_at_gate()) else { return Ok(()) };
    let Some(adapter) = crew.adapter.get() else { return Ok(()) };
    if let Err(error) = seat.register() {
        let _ = taken.send(Err(error));
        return Ok(());
    }
    let _ = taken.send(Ok(()));
    let (mut inbox, mut scratch) = (Inbox::new(), Scratch::default());
    let setxattr_ext = adapter.agreed.setxattr_ext();
    loop {
        match seat.receive(&mut inbox, |asked| request::op_bytes(asked, setxattr_ext))? {
            Arrival::Request => {
                let reply = Reply::through(seat.slot().clone(), inbox.header().unique);
                adapter.answer(&mut inbox, reply, &mut scratch);
            }
            Arrival::Nonsense => {}
            Arrival::Gone => return Ok(()),
        }
        seat.await_answer(&crew.gone);
    }
}

/// Answers with one thread for each of these open files of the mount, until it is gone and nobody is being answered any
/// more. The error is the first of a thread that has given up; the others go on without it.
pub(crate) fn serve<V: Verbs>(adapter: Adapter<V>, devices: Vec<Arc<Device>>) -> io::Result<()> {
    let result = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(devices.len());
        // What the kernel is told unasked goes through it, for as long as anybody serves.
        let first = devices.first().cloned();
        for (number, device) in devices.into_iter().enumerate() {
            let adapter = &adapter;
            let first = first.clone();
            let answer = move || {
                let _first = first;
                answer(adapter, &device)
            };
            match thread::Builder::new().name(format!("fuse-{number}")).spawn_scoped(scope, answer) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(error) => tracing::error!("the mount is served by {number} threads only: {error}"),
            }
        }
        drop(first);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::double::Double;
    use crate::kernel::abi::{InHeader, InitIn, init, opcode};
    use crate::trim::Trims;
    use crate::{Flags, Health, Policy};

    /// Longer than anything here takes; who is not told by then hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn adapter(agreed: Agreed) -> Adapter<Double> {
        Adapter {
            verbs: Arc::new(Double::default()),
            health: Arc::new(Health::default()),
            pins: crate::pins::Pins::default(),
            numbers: Default::default(),
            policy: Arc::new(Policy::new(Flags::default())),
            agreed,
            trims: Trims::default(),
            caches: Default::default(),
            tellings: Default::default(),
            waiters: Default::default(),
            device: std::sync::Weak::new(),
            direct_io: false,
            owner: None,
        }
    }

    // Goal: when the kernel has agreed on rings and takes none, whoever mounts hears why, nobody ends anything by force, and all threads
    // leave with the mount. Method: a socket in the place of the device, over which a kernel is played that has rings; the real one
    // refuses a command for them on a socket.
    #[test]
    fn rings_that_are_refused() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, kernel) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let device = Arc::new(Device::new(ours));
        if plan().is_none() || Seat::new(device.clone(), 0).is_err() {
            return eprintln!("SKIPPED, nothing shown: rings_that_are_refused: no io_uring here");
        }
        let known = init::OVER_IO_URING | init::INIT_EXT;
        let head = InitIn { major: 7, minor: 45, max_readahead: 4096, flags: known as u32 };
        let upper = (known >> 32) as u32;
        let rest = [head.as_bytes(), upper.as_bytes(), &[0; 44]].concat();
        let len = (size_of::<InHeader>() + rest.len()) as u32;
        let header = InHeader { len, opcode: opcode::INIT, unique: 2, ..InHeader::default() };
        let message = [header.as_bytes(), &rest].concat();
        assert_eq!(rustix::net::send(&kernel, &message, SendFlags::empty()).unwrap(), message.len());
        let (tell, told) = mpsc::channel();
        let aborted = Arc::new(AtomicU32::new(0));
        let abort = {
            let aborted = aborted.clone();
            Arc::new(move || {
                aborted.fetch_add(1, Relaxed);
            })
        };
        let session = Session { device, threads: 2, rings: true, make: adapter, tell, abort };
        let (end, ended) = mpsc::channel();
        thread::spawn(move || end.send(super::session(session).is_err()));
        let Told::NoRings(error) = told.recv_timeout(PATIENCE).expect("it is told") else {
            panic!("not refused")
        };
        assert_eq!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP), "{error}");
        // As the kernel does when the mount goes.
        drop(kernel);
        ended.recv_timeout(PATIENCE).expect("all threads leave");
        assert_eq!(aborted.load(Relaxed), 0);
    }
}
