//! FUSE over io_uring (Linux 6.14 and later, where the module's parameter `enable_uring` allows it): a queue for each
//! processor, so that whoever asks is answered on the processor where he is, and one system call that answers a request
//! and waits for the next. Forgetting, interruptions and what the kernel is told without having asked go through the
//! device as ever. Facts of the interface: `fuse.h` and Documentation/filesystems/fuse-io-uring.rst.
//!
//! A [`Seat`] is one thread's place at a queue. It has room for one request: while that is not answered the kernel gives
//! its queue's requests to other seats, and a request waits for a thread that waits itself only when all seats do. All are
//! there before the first request: the kernel looks for who waits when a seat has answered, not when one comes new.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::WRITE_BYTES_MAX;
use super::abi::{OutHeader, RingCommand, RingHead};
use super::device::Device;
use super::inbox::{self, Inbox};

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Head and payload.
const PARTS: u32 = 2;
/// How often what the kernel has no memory for is asked again, and after how long.
const ATTEMPTS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// How often who waits for an answer looks whether the mount is gone.
const LOOK: Duration = Duration::from_secs(1);

/// Not 0: the kernel takes no seats, and one is added for each.
#[cfg(test)]
pub static REFUSED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

type Uring = IoUring<Entry128, cqueue::Entry>;

/// What a seat shares with the kernel, and with whoever answers. The kernel has it from the submission of a command to
/// its completion; nobody here locks it then.
pub struct Slot {
    shared: Mutex<Shared>,
    answered: Condvar,
}

struct Shared {
    head: Box<RingHead>,
    payload: Vec<u8>,
    answered: bool,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl Slot {
    fn new() -> Slot {
        let shared = Shared {
            head: Box::new(RingHead::new_zeroed()),
            payload: vec![0; WRITE_BYTES_MAX],
            answered: false,
        };
        Slot { shared: Mutex::new(shared), answered: Condvar::new() }
    }

    /// Answers the request that is in it, with an error (0: none) or with bytes. Its seat sends the answer.
    pub fn answer(&self, unique: u64, error: i32, bytes: &[u8]) {
        let mut shared = self.shared.lock();
        let (error, bytes) = match shared.payload.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                (error, bytes.len())
            }
            None => {
                tracing::error!("an answer of {} bytes does not fit", bytes.len());
                (-Errno::IO.raw_os_error(), 0)
            }
        };
        // No longer than the payload.
        let len = (size_of::<OutHeader>() + bytes) as u32;
        let header = OutHeader { len, error, unique };
        shared.head.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        shared.head.payload_bytes = bytes as u32;
        shared.answered = true;
        drop(shared);
        self.answered.notify_one();
    }
}

/// One thread's place at the queue of a processor.
pub struct Seat {
    ring: Uring,
    device: Arc<Device>,
    queue: u16,
    slot: Arc<Slot>,
    /// Where head and payload are: the kernel reads it when the seat is registered.
    parts: Box<[[u64; 2]; 2]>,
    /// How the command ended that was submitted last, if it had ended at once.
    early: Option<i32>,
    /// The last command: `None` registers, a number answers the request of that name.
    command: Option<u64>,
    /// The kernel has the slot.
    lent: bool,
}

/// How a seat's wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// With a request.
    Request,
    /// With something else, which has been answered.
    Nonsense,
    /// The mount is gone.
    Gone,
}

impl Seat {
    /// A seat at `queue` for the thread that calls this, and for no other. The kernel does not know of it yet.
    pub fn new(device: Arc<Device>, queue: u16) -> io::Result<Seat> {
        let slot = Arc::new(Slot::new());
        let parts = {
            let mut shared = slot.shared.lock();
            let head = shared.head.as_mut_bytes();
            let head = [head.as_mut_ptr() as u64, head.len() as u64];
            Box::new([head, [shared.payload.as_mut_ptr() as u64, shared.payload.len() as u64]])
        };
        Ok(Seat { ring: ring()?, device, queue, slot, parts, early: None, command: None, lent: false })
    }

    /// Tells the kernel of it: from here on there may be a request.
    pub fn register(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if REFUSED.load(Relaxed) > 0 {
            REFUSED.fetch_add(1, Relaxed);
            return Err(Errno::OPNOTSUPP.into());
        }
        self.submit_command();
        let mut attempts = 0;
        loop {
            match self.ring.submit() {
                Ok(_) => break,
                Err(error) if is_passing(&error) && attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        // A refusal is there at once; a request may be, too, and stays.
        self.early = self.ring.completion().next().map(|entry| entry.result());
        match self.early {
            Some(result @ ..0) => {
                self.lent = false;
                Err(io::Error::from_raw_os_error(-result))
            }
            _ => Ok(()),
        }
    }

    /// Sends the answer to the request that was received last, if there was one, and waits for the next.
    pub fn receive(&mut self, inbox: &mut Inbox, op_bytes: impl Fn(u32) -> usize) -> io::Result<Arrival> {
        let mut attempts = 0;
        loop {
            let ended =
                self.early.take().or_else(|| self.ring.completion().next().map(|entry| entry.result()));
            let error = match ended {
                Some(0..) => {
                    self.lent = false;
                    return Ok(self.take(inbox, &op_bytes));
                }
                Some(result) => {
                    self.lent = false;
                    let error = io::Error::from_raw_os_error(-result);
                    if is_end(&error) {
                        return Ok(Arrival::Gone);
                    }
                    error
                }
                None => match self.ring.submit_and_wait(1) {
                    Ok(_) => continue,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => error,
                },
            };
            if !is_passing(&error) || attempts == ATTEMPTS_MAX {
                return Err(error);
            }
            attempts += 1;
            std::thread::sleep(PAUSE);
            // What the kernel did not take is still to be submitted; what it gave back is asked again.
            if !self.lent {
                self.submit_command();
            }
        }
    }

    /// Waits until the request has been answered, and has the answer ready for [`Seat::receive`] to send; or until `gone`,
    /// when nobody is interested in it any more.
    pub fn await_answer(&mut self, gone: &AtomicBool) {
        let commit_id = {
            let mut shared = self.slot.shared.lock();
            while !shared.answered {
                let timed_out = self.slot.answered.wait_for(&mut shared, LOOK).timed_out();
                if timed_out && gone.load(Relaxed) && !shared.answered {
                    break;
                }
            }
            shared.answered = false;
            shared.head.commit_id
        };
        self.command = Some(commit_id);
        self.submit_command();
    }

    /// Where the request that was received last is to be answered.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    fn take(&mut self, inbox: &mut Inbox, op_bytes: &impl Fn(u32) -> usize) -> Arrival {
        let shared = self.slot.shared.lock();
        let payload = shared.payload.get(..shared.head.payload_bytes as usize);
        match payload.map(|payload| inbox.put(&shared.head, payload, op_bytes)) {
            Some(Ok(())) => Arrival::Request,
            _ => {
                let unique = inbox::header_of(&shared.head).unique;
                drop(shared);
                tracing::error!("the kernel sent what is no request");
                self.slot.answer(unique, -Errno::IO.raw_os_error(), &[]);
                Arrival::Nonsense
            }
        }
    }

    /// Has the last command ready to be submitted.
    #[expect(unsafe_code, reason = "the kernel is given memory")]
    fn submit_command(&mut self) {
        let mut bytes = [0; 80];
        let commit_id = self.command.unwrap_or(0);
        let asked = RingCommand { flags: 0, commit_id, queue: self.queue, padding: [0; 6] };
        bytes[..size_of::<RingCommand>()].copy_from_slice(asked.as_bytes());
        let (code, parts) = match self.command {
            None => (REGISTER, Some(self.parts.as_ptr() as u64)),
            Some(_) => (COMMIT_AND_FETCH, None),
        };
        let fd = types::Fd(self.device.as_raw_fd());
        let mut entry = opcode::UringCmd80::new(fd, code).addr(parts).cmd(bytes).build();
        if self.command.is_none() {
            // SAFETY: an entry is the kernel's structure of 128 bytes (`repr(C)`), whose field `len` is the 32 bits at 24.
            unsafe { (&raw mut entry).cast::<u32>().add(6).write(PARTS) };
        }
        // SAFETY: the entry names `parts`, which is laid out as the kernel's vector of two parts and lives as long as the seat,
        // and through it the slot's head and payload, which the slot does not move. They live until the command has ended:
        // see `Drop`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // One command at a time, and room for more.
        assert!(pushed.is_ok(), "a ring without commands has no room");
        self.lent = true;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.lent {
            // The ring's end does not wait for that of its command: the kernel may have the slot for a little longer.
            std::mem::forget(self.slot.clone());
        }
    }
}

/// Whether the same can be asked again soon.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::AGAIN, Errno::BUSY, Errno::NOMEM, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

/// Whether this is how the kernel says that the mount is gone.
fn is_end(error: &io::Error) -> bool {
    let ends = [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV, Errno::CANCELED, Errno::NOENT];
    Errno::from_io_error(error).is_some_and(|errno| ends.contains(&errno))
}

/// Of the thread that calls this, which is the only one that submits: what the kernel has to do for it is done while it waits.
fn ring() -> io::Result<Uring> {
    Uring::builder().setup_single_issuer().setup_defer_taskrun().build(2)
}

/// The number of queues: of processors that the machine may ever have.
pub fn queues() -> io::Result<u16> {
    let odd = || {
        io::Error::new(io::ErrorKind::InvalidData, "the list of possible processors is not to be understood")
    };
    count(&std::fs::read_to_string("/sys/devices/system/cpu/possible")?).ok_or_else(odd)
}

/// How many numbers a list like `0-3,8` has.
fn count(list: &str) -> Option<u16> {
    let mut sum = 0u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::super::reply::Reply;
    use super::*;

    // Goal: an answer lies where the kernel looks for it, one that does not fit or was never given is EIO, and each wakes the
    // seat. Method: each through a slot without a ring.
    #[test]
    fn answers_lie_in_their_slot() {
        let slot = Arc::new(Slot::new());
        let heard = |bytes: usize| {
            let mut shared = slot.shared.lock();
            assert!(std::mem::take(&mut shared.answered));
            let (header, _) = OutHeader::read_from_prefix(&shared.head.in_out).unwrap();
            assert_eq!((header.len as usize, header.unique), (16 + bytes, 7));
            assert_eq!(shared.head.payload_bytes as usize, bytes);
            (header.error, shared.payload[..bytes].to_vec())
        };
        let reply = || Reply::through(slot.clone(), 7);
        reply().bytes(b"data");
        assert_eq!(heard(4), (0, b"data".to_vec()));
        reply().empty();
        assert_eq!(heard(0), (0, vec![]));
        reply().error(Errno::NOENT);
        assert_eq!(heard(0), (-2, vec![]));
        reply().bytes(&vec![1; WRITE_BYTES_MAX + 1]);
        assert_eq!(heard(0), (-5, vec![]));
        reply().none();
        assert_eq!(heard(0), (0, vec![]));
        drop(reply());
        assert_eq!(heard(0), (-5, vec![]));
        let slow = reply();
        std::thread::spawn(move || slow.bytes(b"later")).join().unwrap();
        assert_eq!(heard(5), (0, b"later".to_vec()));
    }

    // Goal: lists of processors as the kernel writes them are counted. Method: some, and what is none.
    #[test]
    fn processors_are_counted() {
        for (list, processors) in [("0\n", 1), ("0-1\n", 2), ("0-3,8-11", 8), ("0,2", 2), ("0-8191", 8192)] {
            assert_eq!(count(list), Some(processors));
        }
        for list in ["", "a", "3-1", "0-", "0-65535"] {
            assert_eq!(count(list), None, "{list}");
        }
    }
}
