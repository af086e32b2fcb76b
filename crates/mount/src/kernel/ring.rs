//! FUSE over io_uring (Linux 6.14 and later, where the module's parameter `enable_uring` allows it): a queue for each
//! processor, so that whoever asks is answered on the processor where he is, and one system call that answers a request
//! and waits for the next. Forgetting, interruptions and what the kernel is told without having asked go through the
//! device as ever. Facts of the interface: `fuse.h` and Documentation/filesystems/fuse-io-uring.rst.
//!
//! A [`Seat`] is one thread's place at a queue. It has room for one request: while it is not answered the kernel gives
//! its queue's requests to other seats, and no request ever waits behind a thread that waits itself.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::WRITE_BYTES_MAX;
use super::abi::{OutHeader, RingCommand, RingHead};
use super::device::Device;
use super::inbox::Inbox;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Head and payload.
const PARTS: u32 = 2;

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
    /// How the command ended that was submitted last, if it had ended at once.
    early: Option<i32>,
}

/// How a seat's wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// With a request.
    Request,
    /// The mount is gone.
    Gone,
}

impl Seat {
    /// A seat at `queue` for the thread that calls this, and for no other. The kernel knows of it from here on.
    #[expect(unsafe_code, reason = "the kernel is given memory")]
    pub fn take(device: Arc<Device>, queue: u16) -> io::Result<Seat> {
        let mut seat = Seat { ring: ring()?, device, queue, slot: Arc::new(Slot::new()), early: None };
        let parts = {
            let mut shared = seat.slot.shared.lock();
            let head = shared.head.as_mut_bytes();
            let head = [head.as_mut_ptr() as u64, head.len() as u64];
            [head, [shared.payload.as_mut_ptr() as u64, shared.payload.len() as u64]]
        };
        let mut entry = seat.command(REGISTER, 0, Some(parts.as_ptr() as u64));
        // SAFETY: an entry is the kernel's structure of 128 bytes (`repr(C)`), whose field `len` is the 32 bits at 24.
        unsafe { (&raw mut entry).cast::<u32>().add(6).write(PARTS) };
        // SAFETY: `parts` is laid out as the kernel's vector of two parts, and read before `submit` returns. The parts
        // themselves are the slot's, which does not move them; they live until the ring has ended: see `Drop`.
        unsafe { seat.push(&entry) };
        loop {
            match seat.ring.submit() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A refusal is there at once; a request may be, too, and stays.
        seat.early = seat.ring.completion().next().map(|entry| entry.result());
        match seat.early {
            Some(result @ ..0) => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(seat),
        }
    }

    /// Sends the answer to the request that was received last, as soon as there is one, and waits for the next. To be called
    /// by the thread that has made it.
    pub fn receive(&mut self, inbox: &mut Inbox, op_bytes: impl Fn(u32) -> usize) -> io::Result<Arrival> {
        loop {
            let ended =
                self.early.take().or_else(|| self.ring.completion().next().map(|entry| entry.result()));
            if let Some(result) = ended {
                return self.arrived(result, inbox, op_bytes);
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the request has been answered, and has the answer ready for [`Seat::receive`] to send.
    #[expect(unsafe_code, reason = "the kernel is given memory")]
    pub fn await_answer(&mut self) {
        let commit_id = {
            let mut shared = self.slot.shared.lock();
            while !shared.answered {
                self.slot.answered.wait(&mut shared);
            }
            shared.answered = false;
            shared.head.commit_id
        };
        let entry = self.command(COMMIT_AND_FETCH, commit_id, None);
        // SAFETY: it names no memory but that of the slot, as `take` has registered it.
        unsafe { self.push(&entry) };
    }

    /// Where the request that was received last is to be answered.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    fn arrived(
        &mut self,
        result: i32,
        inbox: &mut Inbox,
        op_bytes: impl Fn(u32) -> usize,
    ) -> io::Result<Arrival> {
        match result {
            0.. => {
                let shared = self.slot.shared.lock();
                let payload = shared.payload.get(..shared.head.payload_bytes as usize);
                let odd = || {
                    io::Error::new(io::ErrorKind::InvalidData, "the kernel sent more than there is room for")
                };
                inbox.put(&shared.head, payload.ok_or_else(odd)?, op_bytes)?;
                Ok(Arrival::Request)
            }
            _ => match Errno::from_raw_os_error(-result) {
                Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED | Errno::NOENT => {
                    Ok(Arrival::Gone)
                }
                error => Err(error.into()),
            },
        }
    }

    fn command(&self, command: u32, commit_id: u64, parts: Option<u64>) -> Entry128 {
        let mut bytes = [0; 80];
        let asked = RingCommand { flags: 0, commit_id, queue: self.queue, padding: [0; 6] };
        bytes[..size_of::<RingCommand>()].copy_from_slice(asked.as_bytes());
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), command).addr(parts).cmd(bytes).build()
    }

    /// # Safety
    ///
    /// What the entry names must live until it is complete.
    #[expect(unsafe_code, reason = "the kernel is given memory")]
    unsafe fn push(&mut self, entry: &Entry128) {
        // SAFETY: as said above.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // One command at a time, and room for more.
        assert!(pushed.is_ok(), "a ring without commands has no room");
    }
}

/// Ended with the thread that waits in it, which is the only one that submits.
fn ring() -> io::Result<Uring> {
    let with = |quiet: bool| {
        let mut builder = Uring::builder();
        if quiet {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        builder.build(2)
    };
    with(true).or_else(|_| with(false))
}

/// Whether this process can have rings at all: it may be forbidden to.
pub fn available() -> bool {
    ring().is_ok()
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
